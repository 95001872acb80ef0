//! The life of sandboxes and snapshots from the command line, and the client's names of it.

use berth_client::{Client, ForkSandbox, Page, SandboxFilter, Tokens};
use berth_host::EngineError;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::harness::{BOX, Here, PATIENCE, err, out, until};

#[tokio::test(flavor = "multi_thread")]
async fn from_creation_to_deletion() {
    let here = Here::start().await;
    let created = here.sandbox(&[
        "create",
        "--name",
        "web",
        "--env",
        "A=1",
        "--metadata",
        "team=blue",
        "--timeout",
        "1h",
        "--idle-timeout",
        "10m",
        "--on-timeout",
        "delete",
        "--egress",
        "deny",
        "--allow",
        "*.example.org",
        "--deny",
        "bad.example.org",
    ]);
    let created = created.await;
    assert!(created.status.success() && err(&created).contains("berth sandbox exec web --"), "{created:?}");
    let shown = out(&created);
    for word in ["Ready", "team=blue", "3600 s", "600 s", "delete", "deny, allow *.example.org, deny bad.example.org"] {
        assert!(shown.contains(word), "{word} {shown}");
    }
    let json: Value = serde_json::from_str(&here.fine(&["show", "web", "--json"]).await).unwrap();
    assert_eq!((json["name"].as_str(), json["network"]["egress"].as_str()), (Some("web"), Some("deny")));
    let listed = here.fine(&["list", "--metadata", "team=blue", "--phase", "Ready", "--template", "base"]).await;
    assert!(listed.starts_with("NAME") && listed.contains("web") && !listed.contains(BOX), "{listed}");
    let changed = here.fine(&["update", "web", "--timeout", "2h", "--metadata", "team=red"]).await;
    assert!(changed.contains("7200 s") && changed.contains("team=red"), "{changed}");
    // Who allows one more host opens no others.
    let allowed = here.fine(&["update", "web", "--allow", "example.com"]).await;
    assert!(allowed.contains("deny, allow example.com, deny bad.example.org"), "{allowed}");
    let opened = here.fine(&["update", "web", "--egress", "allow", "--no-allow", "--no-deny"]).await;
    assert!(!opened.contains("example"), "{opened}");
    assert_eq!(here.fine(&["pause", "web"]).await, "web Paused\n");
    assert_eq!(here.fine(&["pause", "web", "--no-wait"]).await, "web Paused\n");
    assert_eq!(here.fine(&["resume", "web"]).await, "web Ready\n");
    assert!(here.fine(&["wait", "web"]).await.contains("Ready"));
    assert!(here.fine(&["stats", "web", "--window", "1m", "--json"]).await.contains("memory_bytes"));
    here.fine(&["stats", "web"]).await;
    assert_eq!(here.fine(&["delete", "web", "--wait"]).await, "web deleted\n");
    let gone = here.sandbox(&["show", "web"]).await;
    assert_eq!(gone.status.code(), Some(4), "{gone:?}");
    let id = here.fine(&["create", "--quiet"]).await.trim().to_owned();
    assert_eq!(id.len(), 36);
    assert_eq!(here.fine(&["show", &id, "--json"]).await.matches(&id).count(), 2, "its id and its address");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_used_while_it_is_paused_is_resumed_where_that_is_wanted() {
    let here = Here::start().await;
    let wants = async |name: &str| {
        let shown: Value = serde_json::from_str(&here.fine(&["show", name, "--json"]).await).unwrap();
        shown["auto_resume"].as_bool()
    };
    let created = here.fine(&["create", "--name", "web", "--auto-resume"]).await;
    assert!(created.lines().any(|line| line.starts_with("auto resume") && line.ends_with(" yes")), "{created}");
    assert_eq!((wants("web").await, wants(BOX).await), (Some(true), Some(false)));
    here.fine(&["pause", BOX]).await;
    let refused = here.sandbox(&["exec", BOX, "--", "true"]).await;
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    assert!(err(&refused).contains("berth sandbox update SANDBOX --auto-resume"), "{refused:?}");
    let changed = here.fine(&["update", BOX, "--auto-resume"]).await;
    assert!(changed.contains("Paused") && wants(BOX).await == Some(true), "{changed}");
    assert_eq!(here.fine(&["exec", BOX, "--", "echo", "here"]).await, "here\n");
    here.fine(&["update", BOX, "--auto-resume=false"]).await;
    assert_eq!(wants(BOX).await, Some(false));
    here.fine(&["update", BOX, "--timeout", "1h"]).await;
    assert_eq!(wants(BOX).await, Some(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_paused_sandbox_ends_at_once() {
    let here = Here::start().await;
    here.fine(&["pause", BOX]).await;
    let refused = here.sandbox(&["wait", BOX]).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(err(&refused).contains(&format!("berth sandbox resume {BOX}")), "{refused:?}");
    assert!(here.sandbox(&["wait", BOX, "--phase", "paused"]).await.status.success());
    here.fine(&["resume", BOX, "--no-wait"]).await;
    assert!(here.fine(&["wait", BOX]).await.contains("Ready"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_sandbox_can_be_waited_for() {
    let here = Here::start().await;
    let id = here.fine(&["show", BOX, "-q"]).await.trim().to_owned();
    here.platform.sandboxes.refuse("end", EngineError::Transient("not yet".into()));
    here.fine(&["delete", BOX]).await;
    let mut wait = here.berth(&["sandbox", "wait", BOX, "--phase", "deleted"]).spawn().expect("a process");
    let mut said = BufReader::new(wait.stderr.take().expect("a pipe")).lines();
    let line = tokio::time::timeout(PATIENCE, said.next_line()).await.expect("a line in time").expect("a line");
    assert!(line.as_ref().is_some_and(|line| line.starts_with(&format!("{BOX}: Deleting"))), "{line:?}");
    let other = here.sandbox(&["wait", &id]).await;
    assert!(other.status.code() == Some(1) && err(&other).contains("is Deleting"), "{other:?}");
    here.platform.sandboxes.allow("end");
    here.platform.advance(20);
    let waited = tokio::time::timeout(PATIENCE, wait.wait_with_output()).await.expect("an end in time");
    let waited = waited.expect("an end");
    assert!(waited.status.success() && out(&waited).contains("Deleted"), "{waited:?}");
    // One that is gone is known by its id.
    assert!(here.fine(&["wait", &id, "--phase", "Deleted"]).await.contains("Deleted"));
    assert_eq!(here.sandbox(&["wait", BOX, "--phase", "Deleted"]).await.status.code(), Some(4));
    let never = here.sandbox(&["wait", &id, "--phase", "gone"]).await;
    assert!(never.status.code() == Some(2) && err(&never).contains("Deleted"), "{never:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_all_found_before_one_is_deleted() {
    let here = Here::start().await;
    here.fine(&["create", "--name", "web"]).await;
    for name in ["one", "two"] {
        here.fine(&["snapshot", "create", BOX, "--name", name]).await;
    }
    for (delete, list, both) in [
        (&["delete", BOX, "nope", "web"][..], &["list", "-o", "name"][..], [BOX, "web"]),
        (&["snapshot", "delete", "one", "nope", "two"], &["snapshot", "list", "-o", "name"], ["one", "two"]),
    ] {
        let refused = here.sandbox(delete).await;
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        assert!(err(&refused).contains("'nope'") && err(&refused).contains("Nothing was done"), "{refused:?}");
        let listed = here.fine(list).await;
        assert!(listed.lines().count() == 2 && both.iter().all(|name| listed.contains(name)), "{listed}");
    }
    assert!(here.fine(&["list"]).await.matches("Ready").count() == 2);
    let gone = here.fine(&["snapshot", "delete", "one", "two"]).await;
    assert_eq!(gone, "one is being deleted\ntwo is being deleted\n");
    assert_eq!(here.fine(&["delete", BOX, "web", "--wait"]).await, format!("{BOX} deleted\nweb deleted\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_out_of_a_sandbox_say_that_they_are_utf_8() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    let id = caller.get("/sandboxes").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    let inside = |path: &str| format!("/sandbox/{id}{path}");
    let program = json!({"argv": ["true"]});
    let started = caller.post(&inside("/processes"), program.clone()).await;
    assert_eq!(started.status, 201, "{started:?}");
    let logs = inside(&format!("/processes/{}/logs", started.body["pid"]));
    for request in [
        caller.request(Method::POST, &inside("/commands")).json(&program),
        caller.request(Method::GET, &logs),
        caller.request(Method::GET, &inside("/files/watch?path=.")),
    ] {
        let answer = request.send().await.expect("an answer");
        let url = answer.url().clone();
        assert_eq!(answer.status(), 200, "{url}");
        assert_eq!(answer.headers()["content-type"], "text/event-stream; charset=utf-8", "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_forks_and_restores() {
    let here = Here::start().await;
    let made = here.fine(&["snapshot", "create", BOX, "--name", "clean"]).await;
    assert!(made.contains("clean") && made.contains("Ready") && made.contains("disk"), "{made}");
    assert!(here.fine(&["snapshot", "list", BOX]).await.contains("clean"));
    assert_eq!(here.fine(&["restore", BOX, "clean"]).await, format!("{BOX} Ready\n"));
    let forks = here.fine(&["fork", BOX, "--count", "3", "--name", "copy"]).await;
    assert_eq!(forks.matches("Ready").count(), 3, "{forks}");
    assert!(forks.contains("copy-1") && forks.contains("copy-3"), "{forks}");
    let from = here.fine(&["fork", BOX, "--snapshot", "clean", "--json"]).await;
    assert!(from.contains("\"phase\": \"Ready\""), "{from}");
    here.fine(&["create", "--snapshot", "clean", "--name", "again"]).await;
    let unknown = here.sandbox(&["restore", BOX, "nothing"]).await;
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    assert!(err(&unknown).contains("berth sandbox snapshot list"));
    assert!(here.fine(&["snapshot", "delete", "clean"]).await.contains("is being deleted"));
    until("the snapshot's end", async || err(&here.sandbox(&["snapshot", "list"]).await).contains("No snapshots"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_says_what_the_service_understands() {
    let here = Here::start().await;
    let caller = &here.platform.admin;
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    let project = Client::new(&caller.base).unwrap().with_tokens(tokens).project(names[4], names[6]);
    let sandbox = project.sandboxes(&SandboxFilter::default()).await.unwrap().data.remove(0);
    assert_eq!(sandbox.name.as_deref(), Some(BOX));
    let mut told = serde_json::to_value(&sandbox).unwrap();
    let mut said = caller.get(&format!("/sandboxes/{}", sandbox.id)).await.body;
    // A second may have passed.
    assert!([&mut told, &mut said].into_iter().all(|one| one["running_seconds"].take().is_u64()));
    assert_eq!(told, said, "nothing is lost");
    let fork = ForkSandbox { count: 1, name: None, include_memory: true, snapshot_id: None };
    assert_eq!(project.fork_sandbox(&sandbox.id, &fork).await.unwrap().len(), 1);
    assert_eq!(project.snapshots(Page::default()).await.unwrap().data.len(), 0);
    let runtime = project.runtime(&sandbox).unwrap();
    runtime.write_file("a/b", Some("0600"), "content").await.unwrap();
    runtime.rename("a/b", "a/c", false).await.unwrap();
    assert!(runtime.exists("a/c").await.unwrap() && !runtime.exists("a/b").await.unwrap());
    let entry = runtime.stat("a/c").await.unwrap();
    assert_eq!((entry.size, entry.mode.as_str()), (7, "0600"));
    let names: Vec<_> = runtime.list(".", 2, 100).await.unwrap().data.into_iter().map(|entry| entry.path).collect();
    assert_eq!(names, ["a", "a/c"]);
    runtime.mkdir("d", false).await.unwrap();
    assert_eq!(runtime.mkdir("d", false).await.unwrap_err().code(), Some("already_exists"));
    assert_eq!(runtime.remove("a", false).await.unwrap_err().code(), Some("not_empty"));
    runtime.remove("a", true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_silent_for_a_moment_is_asked_again() {
    let here = Here::start().await;
    here.hang_up_once();
    // Without another try it would be given up after half a minute.
    let output = here.exec(&["echo", "there"]).await;
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(0), "there\n"), "{output:?}");
}
