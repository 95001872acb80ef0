//! Events as server-sent events.

use berth_client::{Client, Tokens};
use berth_testkit::{Platform, vm};
use futures::StreamExt;

fn client(platform: &Platform) -> berth_client::ProjectClient {
    let caller = &platform.admin;
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    Client::new(&caller.base).expect("a client").with_tokens(tokens).project(names[4], names[6])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_vm_is_told_in_order_and_can_be_read_again() {
    let platform = Platform::start().await;
    let project = client(&platform);
    let mut live = std::pin::pin!(project.events(None).await.expect("a stream"));
    let id = platform.admin.create_vm(vm("web")).await;
    let mut told = Vec::new();
    loop {
        let event = live.next().await.expect("more").expect("an event");
        if event.subject == id {
            told.push((event.kind.clone(), event.data["status"].as_str().unwrap_or_default().to_owned()));
        }
        if event.kind == "vm.ready" {
            break;
        }
    }
    assert_eq!(told.first(), Some(&("vm.created".into(), "pending".into())));
    let mut statuses: Vec<_> = told.iter().map(|(_, status)| status.as_str()).filter(|s| !s.is_empty()).collect();
    statuses.dedup();
    assert_eq!(statuses, ["pending", "provisioning", "starting", "running"]);
    let mut again = std::pin::pin!(project.events(Some(0)).await.expect("a stream"));
    let mut last = 0;
    for _ in &told {
        let event = again.next().await.expect("more").expect("an event");
        assert!(event.id > last);
        last = event.id;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_none_is_refused() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    for bad in ["x", "-1", "1.5", ""] {
        let request = caller.request(reqwest::Method::GET, "/events").header("last-event-id", bad);
        caller.send(request).await.refused(400, "invalid_request");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn projects_do_not_hear_each_other() {
    let platform = Platform::start().await;
    let other = platform.sign_up("other@example.com").await;
    let theirs = other.create_vm(vm("theirs")).await;
    other.reaches(&theirs, "running").await;
    let ours = platform.admin.create_vm(vm("ours")).await;
    let mut events = std::pin::pin!(client(&platform).events(Some(0)).await.expect("a stream"));
    let first = events.next().await.expect("more").expect("an event");
    assert_eq!(first.subject, ours);
}
