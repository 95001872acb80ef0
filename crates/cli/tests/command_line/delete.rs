//! Deletion, and other verbs that take several things or wait for them, over simulated engines.

use std::process::Output;

use berth_host::EngineError;

use crate::harness::{BOX, Here, ended, err, out};

async fn berth(here: &Here, line: &str) -> Output {
    ended(here.berth(&line.split(' ').collect::<Vec<_>>())).await
}

/// Commands, each of which has to work.
async fn fine(here: &Here, lines: &[&str]) {
    for line in lines {
        let done = berth(here, line).await;
        assert!(done.status.success(), "{line}: {done:?}");
    }
}

/// Brings in two images.
async fn import(here: &Here) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("one.img");
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    for id in ["one", "two"] {
        let import = format!("image import {} --id {id} --login-user ada", file.display());
        let done = berth(here, &import).await;
        assert!(done.status.success() && out(&done).contains("ready"), "{done:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_all_found_before_one_is_touched() {
    let here = Here::start().await;
    import(&here).await;
    fine(&here, &["template create one --image base", "template create two --image base"]).await;
    fine(&here, &["key create one --scope vm", "key create two --scope vm"]).await;
    for (verb, list, done) in [
        ("template delete", "template list -o name", "one is being deleted\ntwo is being deleted\n"),
        ("image delete", "image list -o name", "one is being deleted\ntwo is being deleted\n"),
        ("key revoke", "key list", "The key one is revoked.\nThe key two is revoked.\n"),
    ] {
        let refused = berth(&here, &format!("{verb} one nope two")).await;
        assert_eq!(refused.status.code(), Some(4), "{refused:?}");
        assert!(err(&refused).contains("'nope'") && err(&refused).contains("Nothing was done"), "{refused:?}");
        let listed = out(&berth(&here, list).await);
        let there = |name: &str| listed.lines().any(|line| line.starts_with(name) && !line.contains("revoked"));
        assert!(there("one") && there("two"), "{verb}: {listed}");
        assert_eq!(out(&berth(&here, &format!("{verb} one two")).await), done, "{verb}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_waited_for_where_that_is_said() {
    let here = Here::start().await;
    import(&here).await;
    fine(&here, &["template create mine --image base", "disk create a --wait", "disk create b --wait"]).await;
    let snapshot = format!("sandbox snapshot create {BOX} --name clean");
    let vm = "vm create web --no-ssh-key --image micro --size tiny --keep-root-disk --wait";
    fine(&here, &[&snapshot, vm, "vm delete web --wait"]).await;
    for (line, told, list) in [
        ("disk delete a b --wait", "a deleted\nb deleted\n", "disk list -q"),
        ("disk delete --root web --wait --timeout 1m", "web deleted\n", "disk list --root -q"),
        ("sandbox snapshot delete clean --wait", "clean deleted\n", "sandbox snapshot list -q"),
        ("template delete mine --wait", "mine deleted\n", "template list -q"),
        ("image delete one two --wait", "one deleted\ntwo deleted\n", "image list -q"),
    ] {
        let before = out(&berth(&here, list).await).lines().count();
        let done = berth(&here, line).await;
        assert_eq!(out(&done), told, "{line}: {done:?}");
        let after = out(&berth(&here, list).await).lines().count();
        assert_eq!(before - after, told.lines().count(), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_does_not_come_is_late() {
    let here = Here::start().await;
    fine(&here, &["disk create a --wait"]).await;
    here.platform.engine.refuse("remove_disk", EngineError::Transient("not now".into()));
    let late = berth(&here, "disk delete a --wait --wait-timeout 1").await;
    assert_eq!(late.status.code(), Some(6), "{late:?}");
    assert!(err(&late).contains("a is still there after 1 s"), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_is_waited_for_as_long_as_is_said() {
    let here = Here::start().await;
    here.platform.engine.refuse("import_image", EngineError::Transient("not now".into()));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("slow.img");
    std::fs::write(&file, vec![7; 1 << 20]).expect("a file");
    let import = format!("image import {} --login-user ada", file.display());
    let begun = berth(&here, &format!("{import} --no-wait")).await;
    assert!(begun.status.success() && out(&begun).contains("importing"), "{begun:?}");
    let late = berth(&here, &format!("{import} --id slower --wait-timeout 1s")).await;
    assert_eq!(late.status.code(), Some(6), "{late:?}");
    assert!(err(&late).contains("slower is still importing after 1 s"), "{late:?}");
}
