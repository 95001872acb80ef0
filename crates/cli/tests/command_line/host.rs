//! Hosts from the command line.

use serde_json::Value;

use crate::harness::{Here, ended, err, out};

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_seen_labelled_cordoned_and_uncordoned() {
    let here = Here::start().await;
    let types = async |line: &[&str]| ended(here.berth(&[&["admin", "host"], line].concat())).await;
    let fine = async |line: &[&str]| {
        let done = types(line).await;
        assert!(done.status.success(), "{line:?} {done:?}");
        out(&done)
    };
    let json: Value = serde_json::from_str(&fine(&["list", "--json"]).await).expect("JSON");
    let (name, id) =
        (json["data"][0]["name"].as_str().expect("a name"), json["data"][0]["id"].as_str().expect("an id"));
    let listed = fine(&["list"]).await;
    assert!(listed.starts_with("NAME") && listed.contains(name) && listed.contains("ready"), "{listed}");
    let shown = fine(&["show", name]).await;
    assert!(shown.contains(id) && shown.contains("memory promised") && shown.contains("sandbox 4"), "{shown}");
    assert!(fine(&["cordon", name]).await.contains("cordoned"));
    assert!(fine(&["cordon", id]).await.contains("cordoned"), "once more");
    assert!(fine(&["list", "--state", "cordoned"]).await.contains(name));
    assert!(!fine(&["list", "--state", "ready"]).await.contains(name));
    assert!(fine(&["uncordon", &id[id.len() - 12..]]).await.contains("ready"));
    let labelled = fine(&["label", name, "disk=ssd", "rack=7", "--name", "north-1"]).await;
    assert!(labelled.contains("north-1") && labelled.contains("disk=ssd rack=7"), "{labelled}");
    assert!(fine(&["list", "--label", "rack=7"]).await.contains("north-1"));
    assert!(!fine(&["label", "north-1", "--no-labels"]).await.contains("rack"));
    let wrong = types(&["label", "north-1", "rack"]).await;
    assert!(wrong.status.code() == Some(2) && err(&wrong).contains("KEY=VALUE"), "{wrong:?}");
    let missing = types(&["cordon", "south-1"]).await;
    assert_eq!(missing.status.code(), Some(4), "{missing:?}");
    assert!(
        err(&missing).contains("There is no host called 'south-1'. List them: berth admin host list"),
        "{missing:?}"
    );
    assert_eq!(types(&["label", "north-1"]).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_added_told_again_and_removed() {
    let here = Here::start().await;
    let types = async |line: &[&str]| ended(here.berth(&[&["admin", "host"], line].concat())).await;
    let added = types(&["add", "north-2", "--label", "rack=7"]).await;
    assert!(added.status.success(), "{added:?}");
    let printed = out(&added);
    assert!(printed.starts_with("Type on the machine that becomes north-2, within 24 hours:"), "{printed}");
    let command = printed.lines().last().expect("a command").to_owned();
    assert!(command.starts_with(&format!("berth host join {} bht_", here.way.url)), "{command}");
    // A program gets the command alone.
    let again = types(&["token", "north-2", "-q"]).await;
    assert!(again.status.success() && out(&again).lines().count() == 1 && out(&again).trim() != command, "{again:?}");
    let json: Value = serde_json::from_str(&out(&types(&["token", "north-2", "--json"]).await)).expect("JSON");
    assert!(json["token"].as_str().is_some_and(|token| token.starts_with("bht_")), "{json}");
    let listed = out(&types(&["list", "--state", "joining"]).await);
    assert!(listed.contains("north-2") && listed.contains("joining"), "{listed}");
    let own = json_of_own(&out(&types(&["list", "--json"]).await));
    let refused = types(&["remove", &own]).await;
    assert!(
        refused.status.code() == Some(5) && err(&refused).contains("This service runs on that host"),
        "{refused:?}"
    );
    let wrong = types(&["add", "north-3", "--region", "moon"]).await;
    assert!(wrong.status.code() == Some(4) && err(&wrong).contains("There is no region moon"), "{wrong:?}");
    // Of one that nothing is on, nothing is waited for.
    let drained = types(&["drain", "north-2", "--restart", "--wait"]).await;
    assert!(drained.status.success(), "{drained:?}");
    assert!(out(&types(&["uncordon", "north-2"]).await).contains("joining"));
    let removed = types(&["remove", "north-2"]).await;
    assert!(out(&removed).contains("The host north-2 is removed and asked no more."), "{removed:?}");
    assert_eq!(types(&["show", "north-2"]).await.status.code(), Some(4));
}

/// The id of the only host that is ready.
fn json_of_own(list: &str) -> String {
    let list: Value = serde_json::from_str(list).expect("JSON");
    let all = list["data"].as_array().expect("hosts");
    let own = all.iter().find(|host| host["state"] == "ready").expect("the own one");
    own["id"].as_str().expect("an id").to_owned()
}
