//! Snapshots of disks that lie in a store, disks that are made of them, and copies from which files are made.

use std::time::{Duration, Instant};

use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_host::vm::qemu::QemuEngine;
use berth_host::vm::{
    DataDisk, DiskSnapshotSpec, DiskSource, DiskSpec, Engine, ExportSource, Exported, ImageOfSnapshot, MachineSpec,
    Store,
};
use futures::future::join_all;
use tokio::time::timeout;
use uuid::Uuid;

use crate::host::{Host, engine_in};
use crate::world::{World, ceph};

fn snapshot_of(disk: DiskId) -> DiskSnapshotSpec {
    DiskSnapshotSpec { id: DiskSnapshotId(Uuid::now_v7()), disk }
}

fn disk_of(snapshot: DiskSnapshotSpec, is_root: bool, size_gb: i64) -> DiskSpec {
    DiskSpec { id: DiskId(Uuid::now_v7()), source: DiskSource::Snapshot { id: snapshot.id, is_root }, size_gb }
}

/// What a step says in the end that may have to wait for what Ceph knows of a program which was ended by force.
async fn in_the_end<T>(step: impl AsyncFn() -> berth_host::Result<T>) -> T {
    let began = Instant::now();
    loop {
        match step().await {
            Ok(said) => return said,
            Err(error) => assert!(!error.is_final() && began.elapsed() < Duration::from_mins(4), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl World {
    /// Images of the store that are called after one of these.
    fn left(&self, ids: impl IntoIterator<Item = Uuid>) -> Vec<String> {
        let images = self.ceph.images();
        let of = |id: Uuid| images.iter().filter(move |name| name.starts_with(&id.to_string())).cloned();
        ids.into_iter().flat_map(of).collect()
    }

    /// Another machine on another host, which never had the image, with disks that are made of snapshots.
    async fn restored(&self, [root, data]: [DiskSnapshotSpec; 2]) -> Self {
        let (root, data) = (disk_of(root, true, 21), disk_of(data, false, 2));
        let mut host = Host::new(MachineId(Uuid::now_v7()), root.id, &self.key.public());
        std::fs::remove_dir_all(host.dir.path().join("images")).expect("images");
        let data_disks = vec![DataDisk { id: data.id, mount: Some("/mnt/data".into()) }];
        host.spec = MachineSpec { data_disks, store: Some(self.store.clone()), ..host.spec.clone() };
        for disk in [root, data] {
            let small = DiskSpec { size_gb: disk.size_gb - 2, ..disk.clone() };
            assert!(host.engine.restore_shared_disk(&small, &self.store).await.expect_err("too small").is_final());
            let began = Instant::now();
            host.engine.restore_shared_disk(&disk, &self.store).await.expect("a disk");
            println!("a disk is made of a snapshot after {:?}", began.elapsed());
            host.engine.restore_shared_disk(&disk, &self.store).await.expect("it is there");
        }
        Self { host, key: self.key.clone(), store: self.store.clone(), ceph: self.ceph.clone() }
    }

    async fn remove_disk(&self, id: DiskId) {
        let began = Instant::now();
        for _ in 0..2 {
            in_the_end(async || self.host.engine.remove_shared_disk(id, &self.store).await).await;
        }
        println!("a disk goes after {:?}", began.elapsed());
    }

    async fn remove_snapshot(&self, snapshot: &DiskSnapshotSpec) {
        let began = Instant::now();
        for _ in 0..2 {
            in_the_end(async || self.host.engine.remove_shared_snapshot(snapshot, &self.store).await).await;
        }
        println!("a snapshot goes after {:?}", began.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_outlives_its_disk_and_what_was_made_of_it_outlives_the_snapshot() {
    let mut world = World::new(ceph());
    world.make().await;
    world.host.start().await;
    world.says("echo kept | tee /root/file >/mnt/data/file; sync").await;
    let (root, data) = (world.host.spec.root_disk, world.host.spec.data_disks[0].id);
    let snapshots = [root, data].map(snapshot_of);
    for snapshot in &snapshots {
        let began = Instant::now();
        let taken = async || {
            let (engine, aim) = (&world.host.engine, Some(world.host.spec.aim()));
            engine.snapshot_shared_disk(snapshot, aim, &world.store).await.expect("a snapshot")
        };
        let bytes = taken().await;
        println!("a snapshot of {bytes} bytes is taken after {:?}", began.elapsed());
        assert!((1 << 20..1 << 30).contains(&bytes), "{bytes}");
        world.says("echo later | tee /root/file >/mnt/data/file; sync").await;
        assert_eq!(taken().await, bytes, "it stays as it was");
        world.says("echo kept | tee /root/file >/mnt/data/file; sync").await;
    }
    world.says("echo later | tee /root/file >/mnt/data/file; sync").await;
    let mut other = world.restored(snapshots).await;
    other.host.start().await;
    assert_eq!(other.says("cat /root/file /mnt/data/file").await, "kept\nkept");
    other.says("echo of its own >/root/own; sync").await;
    assert_eq!(world.says("cat /root/file /mnt/data/file; ls /root").await, "later\nlater\nfile");

    // The disks go first; whoever runs from what was made of their snapshots goes on.
    world.end().await;
    for disk in [root, data] {
        world.remove_disk(disk).await;
    }
    assert_eq!(world.left([root.0, data.0]), [] as [&str; 0]);
    for snapshot in &snapshots {
        assert_eq!(world.ceph.reads_from(&snapshot.id.to_string()), None);
    }
    other.says("echo 3 >/proc/sys/vm/drop_caches").await;
    assert_eq!(other.says("cat /root/file /mnt/data/file /root/own").await, "kept\nkept\nof its own");
    let mut third = world.restored(snapshots).await;

    // Then the snapshots go, while one machine runs from them and another is off.
    for snapshot in &snapshots {
        world.remove_snapshot(snapshot).await;
    }
    assert_eq!(world.left(snapshots.map(|snapshot| snapshot.id.0)), [] as [&str; 0]);
    let gone = disk_of(snapshots[0], true, 21);
    assert!(world.host.engine.restore_shared_disk(&gone, &world.store).await.expect_err("it is gone").is_final());
    other.says("echo 3 >/proc/sys/vm/drop_caches; echo more >>/root/own; sync").await;
    assert_eq!(other.says("cat /root/file /mnt/data/file /root/own").await, "kept\nkept\nof its own\nmore");
    other.end().await;
    third.host.start().await;
    assert_eq!(third.says("cat /root/file /mnt/data/file; ls /root").await, "kept\nkept\nfile");
    third.end().await;
    for world in [other, third] {
        let disks = [world.host.spec.root_disk, world.host.spec.data_disks[0].id];
        for disk in disks {
            world.remove_disk(disk).await;
        }
        assert_eq!(world.left(disks.map(|disk| disk.0)), [] as [&str; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_running_disk_is_a_snapshot_of_its_host_with_all_that_is_made_of_those() {
    let mut world = World::new(ceph());
    world.make().await;
    world.host.start().await;
    world.says("echo kept | tee /root/file >/mnt/data/file; sync").await;
    let (root, data) = (world.host.spec.root_disk, world.host.spec.data_disks[0].id);
    let copies = [root, data].map(snapshot_of);
    for copy in &copies {
        let began = Instant::now();
        let aim = Some(world.host.spec.aim());
        let bytes = world.host.engine.copy_shared_disk(copy, aim, &world.store).await.expect("a copy");
        println!("a copy of {bytes} bytes is made after {:?}", began.elapsed());
        world.says("echo later | tee /root/file >/mnt/data/file; sync").await;
        let again = world.host.engine.copy_shared_disk(copy, aim, &world.store).await.expect("a copy");
        assert_eq!((again, world.ceph.moments(&copy.disk.to_string())), (bytes, 0));
        world.says("echo kept | tee /root/file >/mnt/data/file; sync").await;
    }
    world.hides_the_key();
    let mut found = world.host.engine.scan().await.expect("a scan").snapshots;
    found.sort_unstable();
    assert_eq!(found, copies.map(|copy| copy.id));
    world.end().await;
    for disk in [root, data] {
        world.remove_disk(disk).await;
    }

    let engine = &world.host.engine;
    let exported = engine.export(&ExportSource::Snapshot(copies[0].id)).await.expect("a file");
    assert!(exported.bytes > 1 << 20, "{exported:?}");
    let image = ImageOfSnapshot { id: ImageId(Uuid::now_v7()), name: "mine".into(), snapshot: copies[0].id };
    let made = engine.make_image(&image).await.expect("an image");
    assert_eq!(made.virtual_size, 20 << 30);
    // A machine of this host has disks of the image and of the copy of the data disk.
    let mut spec = MachineSpec { store: None, ..world.host.spec.clone() };
    (spec.root_disk, spec.id) = (DiskId(Uuid::now_v7()), MachineId(Uuid::now_v7()));
    let of_image = DiskSource::Image(image.id.to_string());
    engine.make_disk(&DiskSpec { id: spec.root_disk, source: of_image, size_gb: 20 }).await.expect("a disk");
    let of_data = disk_of(copies[1], false, 1);
    engine.make_disk(&of_data).await.expect("a disk");
    spec.data_disks[0].id = of_data.id;
    // A root disk of the copy itself boots as well.
    let of_root = disk_of(copies[0], true, 20);
    engine.make_disk(&of_root).await.expect("a disk");
    for copy in &copies {
        world.remove_snapshot(copy).await;
    }
    assert_eq!(world.host.engine.scan().await.expect("a scan").snapshots, []);
    world.host.spec = spec;
    for root in [world.host.spec.root_disk, of_root.id] {
        world.host.spec.root_disk = root;
        world.host.start().await;
        assert_eq!(world.says("cat /root/file /mnt/data/file").await, "kept\nkept");
        world.end().await;
    }
}

/// A disk with a file system in a store, and two hosts that reach it.
struct Two {
    world: World,
    other: (tempfile::TempDir, QemuEngine),
    disk: DiskSpec,
}

impl Two {
    async fn new() -> Self {
        let (world, dir) = (World::new(ceph()), tempfile::tempdir().expect("a folder"));
        let source = DiskSource::Filesystem("data".into());
        let disk = DiskSpec { id: DiskId(Uuid::now_v7()), source, size_gb: 1 };
        world.host.engine.make_shared_disk(&disk, &world.store).await.expect("a disk");
        let engine = engine_in(dir.path());
        Self { world, other: (dir, engine), disk }
    }

    /// What a disk has, as a file of which nothing stays.
    async fn content(&self, disk: DiskId) -> Exported {
        let copy = snapshot_of(disk);
        content_of(&self.other.1, &copy, &self.world.store).await
    }
}

async fn content_of(engine: &QemuEngine, copy: &DiskSnapshotSpec, store: &Store) -> Exported {
    in_the_end(async || engine.copy_shared_disk(copy, None, store).await).await;
    let exported = engine.export(&ExportSource::Snapshot(copy.id)).await.expect("a file");
    in_the_end(async || engine.remove_shared_snapshot(copy, store).await).await;
    exported
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_in_the_middle_is_made_and_removed_by_whoever_comes_next() {
    // Each has a disk of its own: whoever is ended by force holds that for half a minute.
    join_all([150, 400, 900].map(async |millis| life(Duration::from_millis(millis)).await)).await;
}

/// What may become of a disk, each step of which is left after so long, and made by another host.
async fn life(patience: Duration) {
    let two = Two::new().await;
    let (one, other, store) = (&two.world.host.engine, &two.other.1, &two.world.store);
    let content = two.content(two.disk.id).await;
    let (snapshot, copy) = (snapshot_of(two.disk.id), snapshot_of(two.disk.id));
    let _ = timeout(patience, one.snapshot_shared_disk(&snapshot, None, store)).await;
    in_the_end(async || other.snapshot_shared_disk(&snapshot, None, store).await).await;
    let disk = disk_of(snapshot, false, 1);
    let _ = timeout(patience, one.restore_shared_disk(&disk, store)).await;
    in_the_end(async || other.restore_shared_disk(&disk, store).await).await;
    let _ = timeout(patience, one.copy_shared_disk(&copy, None, store)).await;
    assert_eq!(content_of(one, &copy, store).await, content);
    // Who gives a copy up has nothing left of it in either place.
    let _ = timeout(patience, one.copy_shared_disk(&copy, None, store)).await;
    in_the_end(async || one.remove_shared_snapshot(&copy, store).await).await;
    assert_eq!(one.scan().await.expect("a scan").snapshots, []);
    let _ = timeout(patience, one.remove_shared_disk(two.disk.id, store)).await;
    in_the_end(async || other.remove_shared_disk(two.disk.id, store).await).await;
    let _ = timeout(patience, one.remove_shared_snapshot(&snapshot, store)).await;
    in_the_end(async || other.remove_shared_snapshot(&snapshot, store).await).await;
    assert_eq!(two.content(disk.id).await, content);
    assert_eq!(two.world.ceph.moments(&disk.id.to_string()), 0);
    let _ = timeout(patience, one.remove_shared_disk(disk.id, store)).await;
    in_the_end(async || other.remove_shared_disk(disk.id, store).await).await;
    assert_eq!(two.world.left([two.disk.id.0, snapshot.id.0, copy.id.0, disk.id.0]), [] as [&str; 0]);
    let gone = snapshot_of(two.disk.id);
    assert!(one.snapshot_shared_disk(&gone, None, store).await.expect_err("no disk").is_final());
    assert!(one.copy_shared_disk(&gone, None, store).await.expect_err("no disk").is_final());
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_of_snapshots_of_disks_of_snapshots_read_from_few() {
    let two = Two::new().await;
    let (engine, store, ceph) = (&two.world.host.engine, &two.world.store, &two.world.ceph);
    let content = two.content(two.disk.id).await;
    let (mut disks, mut snapshots) = (vec![two.disk.id], Vec::new());
    for _ in 0..5 {
        let snapshot = snapshot_of(*disks.last().expect("a disk"));
        engine.snapshot_shared_disk(&snapshot, None, store).await.expect("a snapshot");
        let disk = disk_of(snapshot, false, 1);
        engine.restore_shared_disk(&disk, store).await.expect("a disk");
        snapshots.push(snapshot);
        disks.push(disk.id);
    }
    let below = |id: &DiskId| std::iter::successors(ceph.reads_from(&id.to_string()), |at| ceph.reads_from(at)).count();
    assert_eq!(disks.iter().map(below).collect::<Vec<_>>(), [0, 2, 4, 6, 8, 0]);
    assert_eq!(two.content(disks[5]).await, content);
    // The eldest go first, and then the youngest, which nothing was cloned from.
    two.world.remove_disk(disks[0]).await;
    two.world.remove_snapshot(&snapshots[0]).await;
    for (disk, snapshot) in disks[1..5].iter().zip(&snapshots[1..]).rev() {
        two.world.remove_snapshot(snapshot).await;
        two.world.remove_disk(*disk).await;
    }
    assert_eq!(two.world.left(disks[..5].iter().map(|disk| disk.0)), [] as [&str; 0]);
    assert_eq!(two.world.left(snapshots.iter().map(|snapshot| snapshot.id.0)), [] as [&str; 0]);
    assert_eq!(two.content(disks[5]).await, content);
    two.world.remove_disk(disks[5]).await;
}
