//! Disks as files of this machine, over a simulated engine.

use std::time::Duration;

use berth_domain::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::harness::{Here, ended, out, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_away_for_a_moment_is_asked_for_the_rest_again() {
    let here = Here::start().await;
    let created = ended(here.berth(&["disk", "create", "data", "--wait", "--json"])).await;
    let disk: Value = serde_json::from_str(&out(&created)).expect("JSON");
    let path = format!("/disks/{}/export", disk["id"].as_str().expect("an id"));
    let whole = here.platform.admin.request(reqwest::Method::GET, &path).send().await.expect("an answer");
    let whole = whole.bytes().await.expect("all of it").to_vec();
    let sha256 = Sha256::digest(&whole);
    let file = here.home.path().join("data.qcow2");
    let part = here.home.path().join(format!("data.qcow2.{}.part", hex::encode(&sha256[..6])));
    std::fs::write(&part, &whole[..1000]).expect("a part");
    // The answer comes, and no other connection after it.
    here.platform.engine.hold("exported");
    let mut command = here.berth(&["disk", "export", "data", file.to_str().expect("a path"), "--json"]);
    let export = tokio::spawn(async move { command.output().await.expect("an end") });
    until("the answer that waits", async || here.platform.engine.waiting() > 0).await;
    here.way.shut(true);
    here.platform.engine.let_go();
    until("two tries", async || here.way.turned_away() > 1).await;
    here.way.shut(false);
    let output = tokio::time::timeout(Duration::from_mins(1), export).await.expect("an end in time").expect("an end");
    assert!(output.status.success(), "{output:?}");
    let saved: Value = serde_json::from_str(&out(&output)).expect("JSON");
    assert_eq!(saved["sha256"], hex::encode(&sha256));
    assert!(std::fs::read(&file).expect("a file") == whole && !part.exists());
}
