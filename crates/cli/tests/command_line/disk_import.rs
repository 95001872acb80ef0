//! Files of this machine as disks, over a simulated engine.

use serde_json::{Value, json};

use crate::harness::{Here, ended, err, out};

#[tokio::test(flavor = "multi_thread")]
async fn a_file_says_what_its_disk_is_called_and_how_large_it_is() {
    let here = Here::start().await;
    let file = here.home.path().join("My_Data.qcow2");
    let content = [b"QFI\xfb".as_slice(), &[0; 20], &((12_u64 << 30) + 1).to_be_bytes(), &[7; 480]].concat();
    std::fs::write(&file, &content).expect("a file");
    let file = file.to_str().expect("a path");
    let made = ended(here.berth(&["disk", "import", file, "--json"])).await;
    assert!(made.status.success(), "{made:?}");
    let disk: Value = serde_json::from_str(&out(&made)).expect("JSON");
    let said = [&disk["name"], &disk["size_gb"], &disk["type"], &disk["status"]];
    assert_eq!(said, [&json!("my-data"), &json!(13), &json!("block"), &json!("ready")], "{disk}");
    let brought = here.platform.engine.brought(disk["id"].as_str().expect("an id"));
    assert!(brought.is_some_and(|(has, _)| has == content));
    let told = ended(here.berth(&["disk", "import", file])).await;
    let told = err(&told);
    assert!(told.contains("my-data: computing") && told.contains("my-data: sending 0 MiB"), "{told}");
    let typed = ["disk", "import", file, "other", "--size", "20", "--kind", "filesystem", "--json"];
    let other: Value = serde_json::from_str(&out(&ended(here.berth(&typed)).await)).expect("JSON");
    let said = [&other["name"], &other["size_gb"], &other["type"]];
    assert_eq!(said, [&json!("other"), &json!(20), &json!("filesystem")], "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_by_what_was_typed_before_all_of_the_file_is_sent() {
    let here = Here::start().await;
    let file = here.home.path().join("data.raw");
    std::fs::File::create(&file).expect("a file").set_len(64 << 20).expect("a size");
    let file = file.to_str().expect("a path");
    for (arguments, part) in [
        (vec!["disk", "import", file, "Data"], "NAME must"),
        (vec!["disk", "import", file, "--size", "9"], "--size must"),
        (vec!["disk", "import", file, "--region", "nowhere"], "no such region"),
        (vec!["disk", "import", "/nowhere"], "/nowhere cannot be read"),
    ] {
        let refused = ended(here.berth(&arguments)).await;
        assert!(!refused.status.success() && err(&refused).contains(part), "{arguments:?}: {refused:?}");
        // What is wrong whatever the service has is told before the file is read.
        assert_eq!(err(&refused).contains("computing"), part.contains("region"), "{arguments:?}: {refused:?}");
    }
    assert!(here.platform.engine.staged().is_empty());
}
