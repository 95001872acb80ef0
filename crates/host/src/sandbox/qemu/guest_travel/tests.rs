//! Guests in real folders: what comes takes the place of what is there whole or not at all.

use std::path::Path;

use berth_domain::hex;
use berth_qemu::accel::Request;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::*;
use crate::clock::Clock;
use crate::network::Switches;
use crate::sandbox::qemu::Settings;
use crate::sandbox::travel::carry_guest;
use crate::{HostSettings, Machines};

/// An engine that keeps nothing free.
pub fn engine(data: &Path) -> QemuSandboxes {
    let host = HostSettings {
        data: data.to_owned(),
        qemu: None,
        acceleration: Request::Tcg,
        machines: Machines::default(),
        memory_reserve_mb: 0,
    };
    let switches = Switches::open(&host);
    let settings = Settings {
        host,
        disk_reserve_gb: 0,
        builders: 1,
        registries: Vec::new(),
        plain_registries: Vec::new(),
        unlock: Vec::new(),
        warm_machines: None,
    };
    QemuSandboxes::open(settings, Clock::default(), switches)
}

/// Puts a guest of so many bytes into a folder, as whoever builds it does.
pub fn build(data: &Path, version: &str, bytes: usize) {
    let dir = data.join("sandbox/guest");
    std::fs::create_dir_all(&dir).unwrap();
    let sum = |text: &str| hex::encode(&Sha256::digest(text));
    let (kernel, initrd) = (format!("kernel {version}").repeat(bytes / 8), format!("initrd {version}"));
    let manifest = json!({
        "id": "guest", "version": version,
        "boot": {"kind": "kernel", "kernel": "vmlinux", "initrd": "initrd", "cmdline": "quiet"},
        "sha256": {"vmlinux": sum(&kernel), "initrd": sum(&initrd)},
    });
    std::fs::write(dir.join("vmlinux"), kernel).unwrap();
    std::fs::write(dir.join("initrd"), initrd).unwrap();
    std::fs::write(dir.join(MANIFEST), manifest.to_string()).unwrap();
}

/// What lies in the folder of sandboxes.
fn found(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("sandbox")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

async fn carry(from: &QemuSandboxes, to: &QemuSandboxes) -> Result<u64> {
    let version = from.guest().unwrap().hash().to_owned();
    carry_guest(from, to, &version).await
}

async fn has(engine: &QemuSandboxes) -> (Option<String>, bool) {
    (SandboxEngine::guest(engine).await.unwrap(), engine.capacity().await.unwrap().has_guest)
}

#[tokio::test]
async fn a_host_boots_what_came_without_another_start() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(here.path(), "1", 300_000);
    let (from, to) = (engine(here.path()), engine(there.path()));
    assert_eq!(has(&to).await, (None, false));
    for version in ["1", "2", "3"] {
        build(here.path(), version, 300_000);
        carry(&from, &to).await.unwrap();
        assert_eq!(has(&to).await, has(&from).await);
        assert!(has(&to).await.1);
        for file in ["vmlinux", "initrd", MANIFEST] {
            let [one, other] = [&here, &there].map(|dir| std::fs::read(dir.path().join("sandbox/guest").join(file)));
            assert!(one.unwrap() == other.unwrap(), "{file}");
        }
        let readable = std::fs::metadata(there.path().join("sandbox/guest/vmlinux")).unwrap().permissions();
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&readable) & 0o777, 0o644);
        assert_eq!(found(there.path()), ["guest"], "nothing else is left");
        assert!(to.guest().unwrap().kernel().exists());
    }
    // What is there already is left as it is.
    carry(&from, &to).await.unwrap();
    assert_eq!(found(there.path()), ["guest"]);
}

#[tokio::test]
async fn whoever_has_begun_to_boot_what_was_there_is_waited_for() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(here.path(), "2", 8);
    build(there.path(), "1", 8);
    let (from, to) = (engine(here.path()), engine(there.path()));
    let (before, stays) = (to.guest().unwrap(), to.guests.stays().await);
    let mut carried = Box::pin(carry(&from, &to));
    // All of it comes, and whoever is to boot it waits until its place is free.
    let wanted = async {
        while futures::poll!(std::pin::pin!(to.guests.stays())).is_ready() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = &mut carried => panic!("it took the place of what is booted: {done:?}"),
        () = wanted => {}
    }
    assert_eq!(to.guest().unwrap().hash(), before.hash());
    drop(stays);
    carried.await.unwrap();
    assert_eq!(has(&to).await, has(&from).await);
}

#[tokio::test]
async fn what_is_not_what_its_manifest_says_takes_no_place() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    build(here.path(), "1", 8);
    build(there.path(), "0", 8);
    let (from, to) = (engine(here.path()), engine(there.path()));
    let (version, before) = (from.guest().unwrap().hash().to_owned(), has(&to).await);
    let files = from.files_of_guest(&version).unwrap();
    // A file less than the manifest names.
    let less = files.iter().filter(|file| file.name != "initrd").cloned().collect();
    let arrival = GuestArrival { travel: Uuid::now_v7(), version: version.clone(), files: less };
    to.expect_guest(&arrival).await.unwrap();
    assert!(matches!(to.adopt_guest(&arrival).await, Err(EngineError::Transient(_))), "nothing came");
    for file in &arrival.files {
        let content = from.guest_file(&version, file).await.unwrap();
        to.take_guest_file(arrival.travel, file, content).await.unwrap();
    }
    assert!(matches!(to.adopt_guest(&arrival).await, Err(EngineError::Permanent(_))));
    assert_eq!(has(&to).await, before);
    // One that is damaged where it comes from does not begin to travel; it is as good as none where it is.
    let from = engine(here.path());
    std::fs::write(here.path().join("sandbox/guest/initrd"), "x").unwrap();
    assert_eq!(has(&from).await.0, None);
    assert!(from.guest_files(&version).await.is_err());
    // The next try has nothing left of the last one.
    build(here.path(), "1", 8);
    carry(&from, &to).await.unwrap();
    assert_eq!((found(there.path()), has(&to).await), (vec!["guest".to_owned()], has(&from).await));
}
