//! Backups of disks from the command line, over a simulated engine and a folder.

use berth_host::EngineError;
use serde_json::Value;

use crate::harness::{Here, ended, err, out};

async fn berth(here: &Here, words: &[&str]) -> String {
    let output = ended(here.berth(words)).await;
    assert!(output.status.success(), "{words:?}: {output:?}");
    out(&output)
}

async fn json(here: &Here, words: &[&str]) -> Value {
    let text = berth(here, &[words, &["--json"]].concat()).await;
    serde_json::from_str(&text).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_kept_restored_and_kept_again_and_again() {
    let here = Here::start_with(|config| config.backups.folder = config.data_dir.join("backups")).await;
    berth(&here, &["disk", "create", "data", "--wait"]).await;
    let made = json(&here, &["disk", "backup", "create", "data", "--name", "before"]).await;
    assert_eq!((&made["status"], &made["name"]), (&Value::from("ready"), &Value::from("before")), "it is waited for");
    let listed = berth(&here, &["disk", "backup", "list", "data", "--no-headers"]).await;
    assert!(listed.starts_with("before") && listed.contains("1 MiB"), "{listed}");
    let restored = json(&here, &["disk", "backup", "restore", "before", "--name", "back"]).await;
    assert_eq!((&restored["status"], &restored["backup_id"]), (&Value::from("ready"), &made["id"]), "{restored}");
    let again = ["disk", "backup", "schedule", "create", "data", "--name", "nightly", "--every", "30 2 * * *"];
    let schedule = json(&here, &[&again[..], &["--keep", "7"]].concat()).await;
    assert!(schedule["next_at"].as_str().is_some_and(|at| at.contains("T02:30:00")), "{schedule}");
    let off = json(&here, &["disk", "backup", "schedule", "disable", "nightly"]).await;
    assert_eq!((&off["enabled"], &off["next_at"]), (&Value::from(false), &Value::Null));
    let fewer = json(&here, &["disk", "backup", "schedule", "update", "nightly", "--keep", "3"]).await;
    assert_eq!(fewer["keep"], 3);
    let wrong = ended(here.berth(&[&again[..], &["--keep", "0"]].concat())).await;
    assert!(!wrong.status.success() && err(&wrong).contains("--keep"), "{wrong:?}");
    berth(&here, &["disk", "backup", "schedule", "delete", "nightly"]).await;
    berth(&here, &["disk", "backup", "delete", "before", "--wait"]).await;
    assert!(berth(&here, &["disk", "backup", "list", "-q"]).await.trim().is_empty());
    let none = ended(here.berth(&["disk", "backup", "show", "before"])).await;
    assert!(!none.status.success() && err(&none).contains("berth disk backup list"), "{none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_of_a_vm_are_a_list_and_all_are_waited_for() {
    let here = Here::start_with(|config| config.backups.folder = config.data_dir.join("backups")).await;
    let vm = here.platform.admin.running_vm("web").await;
    let made = json(&here, &["disk", "backup", "create", "--vm", "web"]).await;
    let one = made.as_array().expect("a list, also of one");
    assert_eq!((one.len(), &one[0]["status"]), (1, &Value::from("ready")), "{made}");
    berth(&here, &["disk", "create", "data", "--wait"]).await;
    berth(&here, &["disk", "attach", "data", &vm, "--wait"]).await;
    here.platform.engine.refuse("export", EngineError::Permanent("it is broken".into()));
    let output = ended(here.berth(&["disk", "backup", "create", "--vm", "web", "--json"])).await;
    assert!(!output.status.success(), "{output:?}");
    let made: Value = serde_json::from_str(&out(&output)).expect("JSON, of those that failed, too");
    let told: Vec<_> = made.as_array().expect("a list").iter().map(|one| one["status"].clone()).collect();
    assert_eq!(told, ["failed", "failed"], "each is waited for: {output:?}");
    assert!(err(&output).contains("2 of 2 failed"), "{output:?}");
}
