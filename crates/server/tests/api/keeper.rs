//! One data folder keeps a database: a service on another one is refused, and nothing of the first is touched.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, LayerId, MemoryId, UploadId};
use berth_host::clock::Clock;
use berth_host::network::Switches;
use berth_host::sandbox::{Kept, SandboxEngine};
use berth_host::vm::qemu::QemuEngine;
use berth_host::vm::{DiskSnapshotSpec, DiskSource, DiskSpec, Engine, ImageOfSnapshot};
use berth_server::app::{App, Engines};
use berth_server::config::{Acceleration, Config};
use berth_server::db::sql;
use berth_testkit::{Platform, SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};
use tempfile::TempDir;

/// A service on a folder of its own that is told to use the platform's database.
async fn on_another_folder(platform: &Platform, take_over: bool) -> (anyhow::Result<App>, TempDir) {
    let dir = tempfile::tempdir().expect("a folder");
    let config = Config { data_dir: dir.path().to_owned(), take_over, ..platform.config.clone() };
    (start(&config).await, dir)
}

async fn start(config: &Config) -> anyhow::Result<App> {
    let vm: Arc<SimulatedEngine> = Arc::default();
    let sandbox: Arc<SimulatedSandboxes> = Arc::default();
    let network: Arc<SimulatedNetworks> = Arc::default();
    App::start_with(config, Engines { vm, sandbox, network }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_folder_on_one_database_is_refused() {
    let platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    for take_over in [false, true] {
        let refusal = on_another_folder(&platform, take_over).await.0.err().expect("a refusal").to_string();
        let folder = platform.config.data_dir.display().to_string();
        assert!(refusal.contains(&folder) && refusal.contains("runs (seen"), "{refusal}");
        assert!(refusal.contains("BERTH_DATABASE_URL"), "{refusal}");
    }
    platform.admin.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_folder_starts_again_at_once() {
    let mut platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    platform.crash();
    let platform = platform.restart().await;
    platform.admin.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_is_taken_over_by_who_says_so_once_nobody_runs_on_it() {
    let mut platform = Platform::start().await;
    platform.stop().await;
    let refusal = on_another_folder(&platform, false).await.0.err().expect("a refusal").to_string();
    assert!(refusal.contains("was last seen at") && refusal.contains("berth serve --take-over"), "{refusal}");
    let (app, dir) = on_another_folder(&platform, true).await;
    app.expect("the service starts").stop().await;
    // From then on it is the new folder's.
    let config = Config { data_dir: dir.path().to_owned(), ..platform.config.clone() };
    start(&config).await.expect("the service starts").stop().await;
    let refusal = start(&platform.config).await.err().expect("a refusal").to_string();
    assert!(refusal.contains(&dir.path().display().to_string()), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_ends_when_a_copy_of_its_folder_is_started() {
    let platform = Platform::start().await;
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::copy(platform.config.data_dir.join("identity"), copy.path().join("identity")).expect("a copy");
    let config = Config { data_dir: copy.path().to_owned(), ..platform.config.clone() };
    let refusal = start(&config).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("is a copy of that folder") && refusal.contains("--take-over"), "{refusal}");
    let config = Config { take_over: true, ..config };
    let other = start(&config).await.expect("the service starts");
    platform.app().taken_over.cancelled().await;
    assert!(!other.taken_over.is_cancelled());
    other.stop().await;
}

/// Another database, which is new.
fn another(platform: &Platform) -> String {
    format!("sqlite:{}", platform.config.data_dir.join("another.db").display())
}

async fn restarted(platform: &Platform, config: &Config) -> anyhow::Result<App> {
    App::start_with(
        config,
        Engines {
            vm: platform.engine.clone(),
            sandbox: platform.sandboxes.clone(),
            network: platform.networks.clone(),
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_database_than_the_folders_is_refused_before_anything_is_touched() {
    let mut platform = Platform::start().await;
    let id = platform.admin.running_vm("web").await;
    platform.stop().await;
    let before = platform.engine.counts();
    let mistyped = Config { database_url: another(&platform), ..platform.config.clone() };
    let refusal = restarted(&platform, &mistyped).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("belongs to another database") && refusal.contains("BERTH_DATABASE_URL"), "{refusal}");
    assert_eq!(platform.engine.counts(), before);
    let platform = platform.restart().await;
    platform.admin.reaches(&id, "running").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_takes_another_database_when_it_is_told_to_and_refuses_the_first_from_then_on() {
    let mut platform = Platform::start().await;
    platform.stop().await;
    let other = Config { database_url: another(&platform), take_over: true, ..platform.config.clone() };
    restarted(&platform, &other).await.expect("the service starts").stop().await;
    let other = Config { take_over: false, ..other };
    restarted(&platform, &other).await.expect("it is the folder's").stop().await;
    let refusal = restarted(&platform, &platform.config).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("belongs to another database"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_tell_its_database_begins_with_none() {
    let mut platform = Platform::start().await;
    platform.stop().await;
    let noted = platform.config.data_dir.join("database");
    std::fs::remove_file(&noted).expect("removed");
    std::fs::create_dir(&noted).expect("nothing that can be read");
    let refusal = restarted(&platform, &platform.config).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("cannot be read") && refusal.contains("database"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_with_disks_from_before_it_named_its_database_begins_with_no_new_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let read = |name: &str| (name == "BERTH_DATA_DIR").then(|| dir.path().to_string_lossy().into_owned());
    let config = Config::from_sources(None, read).expect("a configuration");
    std::fs::create_dir(dir.path().join("disks")).expect("a folder");
    let disk = dir.path().join("disks/a.qcow2");
    std::fs::write(&disk, "a disk").expect("a file");
    let refusal = start(&config).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("belongs to another database"), "{refusal}");
    std::fs::remove_file(&disk).expect("removed");
    start(&config).await.expect("the service starts").stop().await;
    assert!(dir.path().join("database").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_cannot_be_read_is_not_taken_for_a_new_one() {
    let mut platform = Platform::start().await;
    let folder = platform.config.data_dir.clone();
    // As an older service left it.
    std::fs::remove_file(folder.join("database")).expect("removed");
    std::fs::create_dir_all(folder.join("disks")).expect("a folder");
    std::fs::write(folder.join("disks/a.qcow2"), "a disk").expect("a file");
    let mut tx = platform.app().db.begin().await.expect("a transaction");
    sql("ALTER TABLE settings RENAME COLUMN value TO text").execute(&mut tx).await.expect("another schema");
    tx.commit().await.expect("committed");
    platform.stop().await;
    let refusal = format!("{:#}", restarted(&platform, &platform.config).await.err().expect("a refusal"));
    assert!(refusal.contains("the database cannot be opened") && !refusal.contains("--take-over"), "{refusal}");
}

/// Names of what was set aside of a kind.
fn set_aside(data_dir: &Path, kind: &str) -> Vec<String> {
    let days = std::fs::read_dir(data_dir.join("lost")).into_iter().flatten().flatten();
    let kinds = days.map(|day| day.path().join(kind));
    let things = kinds.flat_map(|kind| std::fs::read_dir(kind).into_iter().flatten().flatten());
    things.map(|thing| thing.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_row_owns_is_set_aside_and_what_rows_own_stays() {
    let mut platform = Platform::start().await;
    platform.admin.running_vm("web").await;
    let sandboxes = platform.sandboxes.clone();
    let adopted = async || !sandboxes.scan().await.expect("a look").layers.is_empty();
    platform.admin.until("the platform's templates", |_| async { adopted().await }).await;
    platform.stop().await;
    let (_, disks, _) = platform.engine.counts();
    let disk = DiskId(uuid::Uuid::now_v7());
    platform.engine.make_disk(&DiskSpec { id: disk, source: DiskSource::Empty, size_gb: 1 }).await.expect("a disk");
    let (snapshot, image) = (DiskSnapshotId(disk.0), ImageId(disk.0));
    platform.engine.snapshot_disk(&DiskSnapshotSpec { id: snapshot, disk }, None).await.expect("a snapshot");
    let image = ImageOfSnapshot { id: image, name: "nobody's".into(), snapshot };
    platform.engine.make_image(&image).await.expect("an image");
    let (layer, memory, upload) = (LayerId(disk.0), MemoryId(disk.0), UploadId(disk.0));
    for kept in [Kept::Layer(layer), Kept::Memory(memory), Kept::Upload(upload)] {
        platform.sandboxes.leave(kept);
    }
    let platform = platform.restart().await;
    let folder = &platform.config.data_dir;
    for kind in ["disks", "snapshots", "images", "layers", "memories", "uploads"] {
        platform.admin.until(kind, |_| async { !set_aside(folder, kind).is_empty() }).await;
        assert_eq!(set_aside(folder, kind), [disk.to_string()], "{kind}");
    }
    assert_eq!(platform.engine.counts().1, disks);
    let found = platform.sandboxes.scan().await.expect("a look");
    assert!(!found.layers.contains(&layer) && !found.memories.contains(&memory) && found.uploads.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_set_aside_keeps_nothing_else_from_being_swept() {
    let platform = Platform::start().await;
    platform.admin.running_vm("web").await;
    let disk = DiskId(uuid::Uuid::now_v7());
    platform.engine.make_disk(&DiskSpec { id: disk, source: DiskSource::Empty, size_gb: 1 }).await.expect("a disk");
    std::fs::write(platform.config.data_dir.join("lost"), "in the way").expect("a file");
    let platform = platform.crash_for(8 * 86_400).await;
    let (db, week) = (platform.app().db.clone(), platform.app().clock.now().plus_seconds(-7 * 86_400));
    let old = async || {
        let count = sql("SELECT COUNT(*) FROM events WHERE created_at < $1").bind(week);
        count.fetch_one::<i64>(&db).await.expect("a count")
    };
    platform.admin.until("no old events", |_| async { old().await == 0 }).await;
    assert!(platform.engine.counts().1 > 1, "the disk is there still");
}

#[tokio::test]
async fn a_disk_is_set_aside_with_all_it_needs_to_be_put_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let config = Config { data_dir: dir.path().to_path_buf(), accel: Acceleration::Tcg, ..Config::default() };
    let engine = QemuEngine::open(config.vm_engine(), Clock::default(), Switches::open(&config.network_engine()));
    let id = DiskId(uuid::Uuid::now_v7());
    for folder in ["disks", "bases/micro-1", "bases/micro-0", "lost/2026-01-01/disks"] {
        std::fs::create_dir_all(dir.path().join(folder)).expect("a folder");
    }
    for base in ["bases/micro-1", "bases/micro-0"] {
        let base = std::fs::File::open(dir.path().join(base)).expect("a folder");
        base.set_modified(SystemTime::UNIX_EPOCH).expect("old");
    }
    std::fs::write(dir.path().join(format!("disks/{id}.qcow2")), "a disk").expect("a file");
    std::fs::write(dir.path().join(format!("disks/{id}.base")), "micro-1").expect("a file");
    engine.set_aside_disk(id, &dir.path().join("lost/2026-01-01/disks")).await.expect("set aside");
    let found = engine.scan().await.expect("a look");
    assert!(found.disks.is_empty() && found.machines.is_empty());
    let mut there = set_aside(dir.path(), "disks");
    there.sort();
    assert_eq!(there, [format!("{id}.base"), format!("{id}.qcow2")]);
    assert!(dir.path().join("bases/micro-1").exists(), "what it builds on stays");
    assert!(!dir.path().join("bases/micro-0").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_whose_address_is_taken_touches_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let dir = tempfile::tempdir().expect("a folder");
    let read = |name: &str| (name == "BERTH_DATA_DIR").then(|| dir.path().to_string_lossy().into_owned());
    let mut config = Config::from_sources(None, read).expect("a configuration");
    config.listen = taken.local_addr().expect("an address");
    let refusal = berth_server::app::open(&config, None).await.err().expect("a refusal").to_string();
    assert!(refusal.contains("cannot listen on") && refusal.contains("BERTH_LISTEN"), "{refusal}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0, "no database, no lock");
}
