//! Stored SSH keys from the command line, over simulated engines.

use std::process::{Output, Stdio};

use berth_testkit::key;
use serde_json::Value;
use tokio::io::AsyncWriteExt;

use crate::harness::{Here, ended, err, out};

async fn berth(here: &Here, line: &str) -> Output {
    ended(here.berth(&line.split(' ').collect::<Vec<_>>())).await
}

async fn fine(here: &Here, line: &str) -> String {
    let output = berth(here, line).await;
    assert!(output.status.success(), "{line}: {output:?}");
    out(&output)
}

/// The keys that a VM's machine was started with.
async fn keys_of(here: &Here, name: &str) -> Vec<String> {
    let shown: Value = serde_json::from_str(&fine(here, &format!("vm show {name} --json")).await).expect("JSON");
    here.platform.engine.spec(shown["id"].as_str().expect("an id")).expect("a machine").ssh_keys
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_stored_and_chosen_by_name() {
    let here = Here::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |number: usize| {
        let file = folder.path().join(format!("{number}.pub"));
        std::fs::write(&file, format!("{}\n", key(number))).expect("a file");
        file.display().to_string()
    };
    let project = here.platform.admin.project.rsplit('/').next().expect("a name").to_owned();
    fine(&here, &format!("ssh-key add laptop {}", file(1))).await;
    fine(&here, &format!("ssh-key add team {} --project {project}", file(2))).await;
    // From standard input.
    let mut adding = here.berth(&["ssh-key", "add", "desk", "-"]);
    let mut adding = adding.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
    let mut input = adding.stdin.take().expect("its input");
    input.write_all(key(3).as_bytes()).await.expect("a key is written");
    drop(input);
    assert!(adding.wait().await.expect("its end").success());
    let listed = fine(&here, "ssh-keys list --no-headers").await;
    let names: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["desk", "laptop"], "{listed}");
    assert!(fine(&here, &format!("ssh-key list --project {project}")).await.contains("team"));
    let make =
        format!("vm create web --image micro --size tiny --wait --ssh-key laptop --ssh-key team --ssh-key {}", file(4));
    fine(&here, &make).await;
    assert_eq!(keys_of(&here, "web").await, [key(4), key(1), key(2)]);
    fine(&here, "vm update web --ssh-key desk").await;
    fine(&here, "vm restart web --wait").await;
    assert_eq!(keys_of(&here, "web").await, [key(3)]);
    fine(&here, "vm update web --no-ssh-key").await;
    fine(&here, "vm restart web --wait").await;
    assert_eq!(keys_of(&here, "web").await, Vec::<String>::new());
    assert_eq!(fine(&here, "ssh-key delete laptop desk").await, "laptop deleted\ndesk deleted\n");
    assert_eq!(fine(&here, "ssh-key list --no-headers").await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_told_in_the_words_that_were_typed() {
    let here = Here::start().await;
    for (line, part) in [
        ("ssh-key add Laptop /dev/null", "NAME must be"),
        ("ssh-key add laptop /dev/null", "FILE must have 50 to 2000 characters"),
        ("ssh-key add laptop /nowhere/key.pub", "/nowhere/key.pub cannot be read"),
        ("ssh-key delete nope", "There is no SSH key called 'nope'"),
        ("vm create web --ssh-key nope", "no stored SSH key called 'nope'"),
        ("vm create web --ssh-key /nowhere/key.pub", "/nowhere/key.pub cannot be read"),
    ] {
        let refused = berth(&here, line).await;
        assert!(!refused.status.success() && err(&refused).contains(part), "{line}: {refused:?}");
    }
}
