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
