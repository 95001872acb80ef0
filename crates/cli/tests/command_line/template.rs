//! Templates from the command line: what is sent for them, and what stays of it.

use std::path::Path;
use std::process::Output;

use berth_host::EngineError;
use serde_json::{Value, json};

use crate::harness::{BOX, Here, ended, err, out, until};

impl Here {
    /// `berth template` with these arguments, to its end.
    async fn template(&self, arguments: &[&str]) -> Output {
        ended(self.berth(&[&["template"], arguments].concat())).await
    }

    /// How often something was sent.
    async fn sent(&self) -> u64 {
        let admin = &self.platform.admin;
        let path = format!("{}/audit_log?action=upload.create", admin.org());
        admin.get(&path).await.body["pagination"]["total_items"].as_u64().expect("a number")
    }

    /// Waits until nothing of what was sent is there.
    async fn nothing_stays(&self) {
        until("the end of what was sent", async || self.platform.sandboxes.uploads() == 0).await;
    }
}

/// A file with this content; its path.
fn file(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn from_creation_to_deletion() {
    let here = Here::start().await;
    here.fine(&["snapshot", "create", BOX, "--name", "clean"]).await;
    let made = here.template(&["create", "mine", "--from-snapshot", "clean", "--env", "A=1"]).await;
    assert!(out(&made).contains("ready") && err(&made).contains("--template mine"), "{made:?}");
    let listed = here.template(&["list"]).await;
    assert!(out(&listed).contains("mine"), "{listed:?}");
    here.fine(&["create", "--template", "mine", "--name", "of-mine"]).await;
    let sourceless = here.template(&["create", "other"]).await;
    assert_eq!(sourceless.status.code(), Some(2), "{sourceless:?}");
    let shown = here.template(&["show", "mine", "--json"]).await;
    assert_eq!(serde_json::from_slice::<Value>(&shown.stdout).unwrap()["status"], "ready");
    assert!(here.template(&["delete", "mine"]).await.status.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_for_people_and_for_programs() {
    let here = Here::start().await;
    let made = here.template(&["create", "mine", "--image", "base"]).await;
    assert!(made.status.success() && err(&made).contains("simulated\n"), "{made:?}");
    assert_eq!(out(&here.template(&["logs", "mine"]).await), "simulated\n");
    for arguments in [&["logs", "mine", "--json"][..], &["logs", "mine", "--follow", "--json"]] {
        let told = out(&here.template(arguments).await);
        let lines = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
        let log = json!({"event": "log", "text": "simulated\n", "offset": 10});
        assert_eq!(lines, [log, json!({"event": "end", "status": "ready", "message": null})], "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_sent_stays_longer_than_its_build() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    let image = file(dir.path(), "image.tar", "an image");
    let made = here.template(&["create", "mine", "--image-file", &image]).await;
    assert!(out(&made).contains("ready"), "{made:?}");
    here.nothing_stays().await;
    let dockerfile = file(dir.path(), "Dockerfile", "FROM base\nCOPY . /app\n");
    let context = ["--dockerfile", &dockerfile, "--context", dir.path().to_str().unwrap()];
    for source in [&["--image-file", &image][..], &context] {
        let taken = here.template(&[&["create", "mine"], source].concat()).await;
        assert_eq!(taken.status.code(), Some(5), "{taken:?}");
        here.nothing_stays().await;
    }
    here.platform.sandboxes.refuse("build_template", EngineError::Permanent("it is broken".into()));
    let failed = here.template(&["create", "bad", "--image-file", &image, "--json"]).await;
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(err(&failed).contains("bad failed: it is broken"), "{failed:?}");
    here.nothing_stays().await;
    assert_eq!(here.sent().await, 4);
    // A build that nobody waits for needs it.
    here.platform.sandboxes.allow("build_template");
    here.platform.sandboxes.set_builds_last(true);
    let begun = here.template(&["create", "slow", "--image-file", &image, "--no-wait"]).await;
    assert!(begun.status.success(), "{begun:?}");
    assert_eq!(here.platform.sandboxes.uploaded(), [b"an image"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_in_vain_and_nothing_that_is_ignored() {
    let here = Here::start().await;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("app");
    let image = file(dir.path(), "image.tar", "an image");
    let wrong = file(dir.path(), "Wrong", "FROM base\nRUNN true\n");
    let right = file(dir.path(), "Right", "FROM base\nCOPY . /app\n");
    for name in ["data", "secret/key", "secret/public"] {
        file(&folder, name, name);
    }
    file(&folder, ".dockerignore", "secret\n!secret/public\n");
    let context = folder.to_str().unwrap();
    for (arguments, what) in [
        (&["x", "--image-file", &image, "--env", "NOT_SET_HERE"][..], "NOT_SET_HERE=VALUE"),
        (&["x", "--image-file", &image, "--env", "1A=x"], "--env names must"),
        (&["x", "--image-file", &image, "--vcpu", "99"], "--vcpu"),
        (&["x y", "--dockerfile", &right, "--context", context], "NAME "),
        (&["x", "--dockerfile", &wrong, "--context", context], "line 2"),
        (&["x", "--dockerfile", &right], "name their directory: --context DIR"),
        (&["x", "--dockerfile", &right, "--context", &right], "is no directory"),
    ] {
        let refused = here.template(&[&["create"], arguments].concat()).await;
        assert_eq!(refused.status.code(), Some(2), "{arguments:?} {refused:?}");
        assert!(err(&refused).contains(what), "{arguments:?} {refused:?}");
    }
    assert_eq!(here.sent().await, 0);
    here.platform.sandboxes.set_builds_last(true);
    let begun = here.template(&["create", "x", "--dockerfile", &right, "--context", context, "--no-wait"]).await;
    assert!(begun.status.success(), "{begun:?}");
    let uploaded = here.platform.sandboxes.uploaded();
    assert_eq!(uploaded.len(), 1);
    let mut archive = tar::Archive::new(uploaded[0].as_slice());
    let names = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string());
    assert_eq!(names.collect::<Vec<_>>(), [".dockerignore", "data", "secret/public"]);
}
