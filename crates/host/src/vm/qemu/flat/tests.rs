//! Files of disks, made by the qemu-img of this machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use berth_domain::host::image::ImageOfSnapshot;
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_qemu::machine::{Drive, snapshot};
use berth_qemu::{disk, image};
use futures::future::WeakShared;
use uuid::Uuid;

use super::super::exports::{AT_ONCE, KEPT, OLDEST};
use super::super::tests::engine;
use super::*;
use crate::vm::{DiskSnapshotSpec, DiskSource, DiskSpec, Engine};

const WRITTEN: u64 = 70 << 20;

/// An engine with a data disk of a GiB on which something is written.
async fn with_disk(reserve_gb: i64) -> (tempfile::TempDir, QemuEngine, DiskId) {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), reserve_gb);
    let id = DiskId(Uuid::now_v7());
    engine.make_disk(&DiskSpec { id, source: DiskSource::Empty, size_gb: 1 }).await.unwrap();
    write(&engine, id, b"here");
    (data, engine, id)
}

fn write(engine: &QemuEngine, id: DiskId, bytes: &[u8]) {
    let file = File::options().write(true).open(engine.disk_file(id, false)).unwrap();
    file.write_all_at(bytes, WRITTEN).unwrap();
}

async fn bytes(engine: &QemuEngine, of: &ExportSource, about: &Exported, part: Part) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut content = engine.exported(of, &about.sha256, part).await.unwrap();
    content.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// What such a file has where something was written, and that it is one of a GiB that lies on nothing.
async fn unpacked(file: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (path, raw) = (dir.path().join("export.qcow2"), dir.path().join("raw"));
    std::fs::write(&path, file).unwrap();
    let found = disk::info(&path, "qcow2").await.unwrap();
    assert_eq!((found.virtual_size, found.backing), (1 << 30, None));
    snapshot::unpack(&Drive { path, format: "qcow2", bases: Vec::new(), serial: String::new() }, &raw).await.unwrap();
    let mut found = vec![0; 4];
    File::open(raw).unwrap().read_exact_at(&mut found, WRITTEN).unwrap();
    found
}

fn left(engine: &QemuEngine) -> Vec<String> {
    let entries = std::fs::read_dir(&engine.exports.folder).into_iter().flatten().flatten();
    let mut ends: Vec<_> =
        entries.map(|entry| entry.path().extension().unwrap().to_string_lossy().into_owned()).collect();
    ends.sort();
    ends
}

#[tokio::test]
async fn a_disk_at_rest_becomes_a_file_once_and_another_when_it_was_written_to() {
    let (_data, engine, id) = with_disk(0).await;
    let of = ExportSource::Disk { id, of: Some(MachineId(Uuid::now_v7())) };
    let about = engine.export(&of).await.unwrap();
    let all = bytes(&engine, &of, &about, about.whole()).await;
    assert_eq!(all.len() as u64, about.bytes);
    assert_eq!(unpacked(&all).await, b"here");
    let path = engine.exports.folder.join("of the test");
    std::fs::write(&path, &all).unwrap();
    assert_eq!(image::hash(&mut File::open(&path).unwrap()).unwrap(), about.sha256);
    std::fs::remove_file(path).unwrap();
    let part = Part { from: 4, bytes: 8 };
    assert_eq!(bytes(&engine, &of, &about, part).await, all[4..12]);
    let beyond = Part { from: about.bytes, bytes: 1 };
    assert!(matches!(engine.exported(&of, &about.sha256, beyond).await.err(), Some(EngineError::Permanent(_))));
    // The same file again, and not one more.
    assert_eq!(engine.export(&of).await.unwrap(), about);
    assert_eq!(left(&engine), ["json", "qcow2"]);
    write(&engine, id, b"more");
    assert!(matches!(engine.exported(&of, &about.sha256, about.whole()).await.err(), Some(EngineError::Transient(_))));
    let anew = engine.export(&of).await.unwrap();
    assert_eq!(unpacked(&bytes(&engine, &of, &anew, anew.whole()).await).await, b"more");
    assert_eq!(left(&engine), ["json", "qcow2"], "nobody asks for what it was before");
}

#[tokio::test]
async fn all_who_ask_wait_for_one_copy_which_ends_with_the_last_of_them() {
    let (_data, engine, id) = with_disk(0).await;
    let of = ExportSource::Disk { id, of: None };
    let turns = engine.exports.turns.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
    let name = engine.copy_of(&of).unwrap().name;
    let is_wanted = || engine.exports.under_way.lock().unwrap().get(&name).and_then(WeakShared::upgrade).is_some();
    {
        let (mut one, mut other) = (Box::pin(engine.export(&of)), Box::pin(engine.export(&of)));
        assert!(futures::poll!(&mut one).is_pending() && futures::poll!(&mut other).is_pending());
        assert_eq!(engine.exports.under_way.lock().unwrap().len(), 1);
        drop(one);
        assert!(is_wanted());
        drop(turns);
        other.await.unwrap();
    }
    assert!(!is_wanted());
    write(&engine, id, b"more");
    let name = engine.copy_of(&of).unwrap().name;
    let mut leaving = Box::pin(engine.export(&of));
    let mut tries = 0;
    while !engine.exports.folder.join(format!("{name}.half")).exists() && tries < 10_000 {
        assert!(futures::poll!(&mut leaving).is_pending(), "it is left before it is whole");
        tokio::task::yield_now().await;
        tries += 1;
    }
    drop(leaving);
    assert_eq!(left(&engine), ["json", "qcow2"], "nothing of what nobody waits for");
}

#[tokio::test]
async fn a_disk_that_is_written_to_while_it_is_copied_is_not_exported() {
    let (_data, engine, id) = with_disk(0).await;
    let of = ExportSource::Disk { id, of: None };
    let copy = engine.copy_of(&of).unwrap();
    write(&engine, id, b"more");
    let error = engine.exports.make(copy).await.unwrap_err();
    assert!(error.to_string().contains("written to"), "{error}");
    assert!(left(&engine).is_empty());
}

#[tokio::test]
async fn files_go_that_nobody_asked_for_of_late_and_all_of_an_earlier_service() {
    let (data, engine, id) = with_disk(0).await;
    let of = ExportSource::Disk { id, of: None };
    engine.export(&of).await.unwrap();
    engine.exports.sweep(KEPT);
    assert_eq!(left(&engine), ["json", "qcow2"]);
    let older = |end: &str, by: Duration| {
        let notes = std::fs::read_dir(&engine.exports.folder).unwrap().flatten().map(|entry| entry.path());
        let note = notes.into_iter().find(|path| path.extension().unwrap() == end).unwrap();
        let at = std::fs::metadata(&note).unwrap().modified().unwrap().checked_sub(by).unwrap();
        File::open(note).unwrap().set_modified(at).unwrap();
    };
    let age = |by: Duration| older("json", by);
    age(KEPT.checked_sub(Duration::from_mins(1)).unwrap());
    engine.exports.sweep(KEPT);
    assert_eq!(left(&engine), ["json", "qcow2"]);
    age(KEPT + Duration::from_secs(1));
    // Who asks for it keeps it.
    engine.export(&of).await.unwrap();
    engine.exports.sweep(KEPT);
    assert_eq!(left(&engine), ["json", "qcow2"]);
    age(KEPT + Duration::from_secs(1));
    engine.exports.sweep(KEPT);
    assert!(left(&engine).is_empty());
    engine.export(&of).await.unwrap();
    older("qcow2", OLDEST.checked_sub(Duration::from_mins(1)).unwrap());
    engine.exports.sweep(KEPT);
    assert_eq!(left(&engine), ["json", "qcow2"]);
    older("qcow2", Duration::from_mins(2));
    engine.exports.sweep(KEPT);
    assert!(left(&engine).is_empty(), "whoever asks again and again");
    engine.export(&of).await.unwrap();
    let later = super::super::tests::engine(data.path(), 0);
    later.exports.sweep(KEPT);
    assert!(left(&later).is_empty(), "it knew who waited for it");
}

#[tokio::test]
async fn there_is_room_for_it_first() {
    for (reserve, refused) in [(1 << 30, true), (0, false)] {
        let (_data, engine, id) = with_disk(reserve).await;
        let made = engine.export(&ExportSource::Disk { id, of: None }).await;
        assert_eq!(matches!(made, Err(EngineError::NoCapacity(_))), refused, "{made:?}");
    }
}

#[tokio::test]
async fn a_header_that_a_guest_wrote_is_not_followed() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), 0);
    let (secret, id) = (data.path().join("secret.qcow2"), DiskSnapshotId(Uuid::now_v7()));
    disk::create_block(&data.path().join("raw"), 1 << 20).await.unwrap();
    disk::flatten(&data.path().join("raw"), "raw", &secret).await.unwrap();
    std::fs::create_dir_all(engine.snapshots()).unwrap();
    disk::clone_image(&secret, &engine.snapshot_file(id), 1 << 20).await.unwrap();
    let error = engine.export(&ExportSource::Snapshot(id)).await.unwrap_err();
    assert!(error.is_final() && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn an_image_of_a_root_disk_is_whole_or_not_there_and_is_its_own_export() {
    let data = tempfile::tempdir().unwrap();
    let engine = engine(data.path(), 0);
    let folder = data.path().join("images/micro");
    std::fs::remove_file(folder.join("disk.qcow2")).unwrap();
    disk::create_block(&data.path().join("raw"), 1 << 30).await.unwrap();
    disk::flatten(&data.path().join("raw"), "raw", &folder.join("disk.qcow2")).await.unwrap();
    let id = DiskId(Uuid::now_v7());
    engine.make_disk(&DiskSpec { id, source: DiskSource::Image("micro".into()), size_gb: 1 }).await.unwrap();
    let taken = DiskSnapshotSpec { id: DiskSnapshotId(Uuid::now_v7()), disk: id };
    engine.snapshot_disk(&taken, None).await.unwrap().unwrap();
    let wanted = ImageOfSnapshot { id: ImageId(Uuid::now_v7()), name: "Mine".into(), snapshot: taken.id };
    // What a service left that died meanwhile.
    let half = data.path().join(format!("images/.{}.making", wanted.id));
    std::fs::create_dir_all(half.join("in the way")).unwrap();
    assert_eq!(engine.scan().await.unwrap().images, [wanted.id]);
    let made = engine.make_image(&wanted).await.unwrap();
    assert_eq!((made.name.as_str(), made.login_user.as_str(), made.virtual_size), ("Mine", "root", 1 << 30));
    assert!(!half.exists());
    assert_eq!(engine.make_image(&wanted).await.unwrap(), made, "one that is there stays as it is");
    let names: Vec<_> = engine.images().await.unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(names, ["micro"], "it is none of the platform's");
    assert_eq!(engine.image(&wanted.id.to_string()).await.unwrap(), Some(made.clone()));
    let of = ExportSource::Image(wanted.id);
    let about = engine.export(&of).await.unwrap();
    assert_eq!(about.sha256, made.version);
    let all = bytes(&engine, &of, &about, about.whole()).await;
    assert_eq!(unpacked(&all).await, [0; 4]);
    assert!(left(&engine).is_empty(), "it needs no copy");
    // What was cloned from it stays when it goes.
    let clone = DiskId(Uuid::now_v7());
    let source = DiskSource::Image(wanted.id.to_string());
    engine.make_disk(&DiskSpec { id: clone, source, size_gb: 1 }).await.unwrap();
    std::fs::create_dir_all(&half).unwrap();
    engine.remove_image(&wanted.id.to_string()).await.unwrap();
    assert!(engine.scan().await.unwrap().images.is_empty() && !half.exists());
    assert!(engine.any_drive(clone).unwrap().bases.iter().all(|base| base.exists()));
    engine.export(&ExportSource::Disk { id: clone, of: None }).await.unwrap();
    assert!(matches!(engine.export(&of).await, Err(EngineError::Permanent(_))));
}
