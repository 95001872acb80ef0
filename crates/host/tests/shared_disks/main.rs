//! Machines whose disks lie in a store: real ones, on a real Ceph.
//!
//! Wants the built images and the programs of Ceph (`script/test` builds them, `script/bootstrap --test` installs those).

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

#[path = "../host/mod.rs"]
mod host;
mod snapshots;
mod world;

use std::time::{Duration, Instant};

use berth_domain::ids::{DiskId, DiskSnapshotId};
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_host::vm::{DataDisk, DiskSource, DiskSpec, Engine, MachineSpec, Store};
use rustix::process::{Pid, Signal, kill_process};
use uuid::Uuid;

use host::{Host, engine_in, until};
use world::{World, ceph};

/// A shell's words for a disk, as a guest knows it.
fn device(id: DiskId) -> String {
    let serial = id.serial();
    format!("$(for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = {serial} ] && echo ${{d##*/}}; done)")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_lives_on_disks_of_a_store_on_whichever_host() {
    let mut world = World::new(ceph());
    world.host.engine.reach_store(&world.store).await.expect("it is reached");
    let began = Instant::now();
    world.make().await;
    println!("two disks are made after {:?}", began.elapsed());
    world.make().await;
    let began = Instant::now();
    world.host.start().await;
    println!("it is ready after {:?}", began.elapsed());
    world.hides_the_key();
    world.says("echo kept >/root/file; mount | grep -q /mnt/data; echo kept >/mnt/data/file; sync").await;
    world.host.engine.grow_shared_disk(world.host.spec.root_disk, 2, &world.store).await.expect_err("it has it");
    world.host.engine.remove_shared_disk(world.host.spec.root_disk, &world.store).await.expect_err("it has it");

    // Another service takes over, and has what it needs to go on.
    world.host.engine = engine_in(world.host.dir.path());
    world.host.is(Machine::Running).await;
    world.host.engine.scan().await.expect("a scan");
    let more = DiskSpec { id: DiskId(Uuid::now_v7()), source: DiskSource::Empty, size_gb: 1 };
    world.host.engine.make_shared_disk(&more, &world.store).await.expect("a disk");
    for _ in 0..2 {
        let attached = world.host.engine.attach_shared_disk(world.host.spec.aim(), more.id, &world.store).await;
        attached.expect("it is attached");
    }
    let write =
        format!("d={}; printf written | dd of=/dev/$d conv=fsync 2>/dev/null; cat /sys/block/$d/size", device(more.id));
    assert_eq!(world.says(&write).await, (2 << 20).to_string());
    let detached = async || world.host.engine.detach_disk(world.host.spec.aim(), more.id).await == Ok(true);
    until("the guest lets go", detached).await;
    assert_eq!(world.server(more.id), None);

    world.says("sync").await;
    world.end().await;
    assert_eq!(world.served(), [] as [&str; 0]);
    let root = world.host.spec.root_disk;
    for gib in [21, 20] {
        world.host.engine.grow_shared_disk(root, gib, &world.store).await.expect("it grows");
    }
    world.host.spec.data_disks.push(DataDisk { id: more.id, mount: None });
    world.host.start().await;
    assert_eq!(world.says("cat /root/file /mnt/data/file").await, "kept\nkept");
    assert_eq!(world.says(&format!("cat /sys/block/{}/size", device(root))).await, (21 << 21).to_string());
    assert_eq!(world.says(&format!("head -c 7 /dev/{}", device(more.id))).await, "written");
    world.says("echo again >>/root/file; sync").await;
    world.end().await;

    // Another host, which never had the image, starts it from the same disks.
    let mut other = Host::new(world.host.spec.id, root, &world.key.public());
    std::fs::remove_dir_all(other.dir.path().join("images")).expect("images");
    other.spec = MachineSpec { ports: other.spec.ports.clone(), ..world.host.spec.clone() };
    let former = std::mem::replace(&mut world.host, other);
    world.host.start().await;
    assert_eq!(world.says("cat /root/file").await, "kept\nagain");
    former.engine.scan().await.expect("a scan");
    world.end().await;
    world.host.engine.discard(world.host.spec.aim()).await.expect("an end");
    for disk in [root, world.host.spec.data_disks[0].id, more.id, root] {
        world.host.engine.remove_shared_disk(disk, &world.store).await.expect("it goes");
    }
    let left: Vec<_> = world.ceph.images().into_iter().filter(|name| name.starts_with(&root.to_string())).collect();
    assert!(left.is_empty() && !world.host.dir.path().join("bases").join(root.to_string()).exists(), "{left:?}");
    drop(former);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_disk_is_not_served_any_more_is_seen_and_started_again() {
    let mut world = World::new(ceph());
    world.make().await;
    // Whoever starts it leaves in the middle, again and again.
    for millis in [20, 60, 120, 200] {
        let engine = &world.host.engine;
        let begun = tokio::time::timeout(Duration::from_millis(millis), engine.start(&world.host.spec)).await;
        if world.host.pid().is_none() {
            world.host.engine = engine_in(world.host.dir.path());
            world.host.engine.scan().await.expect("a scan");
            until("nothing is served", async || {
                world.host.engine.scan().await.expect("a scan");
                world.served().is_empty()
            })
            .await;
        }
        drop(begun);
    }
    world.end().await;
    world.start_late().await;
    let data = world.host.spec.data_disks[0].id;
    let server = world.server(data).and_then(Pid::from_raw).expect("a process");
    kill_process(server, Signal::KILL).expect("a process");
    until("it ended", async || world.server(data).is_none()).await;
    world.host.engine.scan().await.expect("a scan");
    world.host.is(Machine::Running).await;
    let failed = "dd if=/dev/zero of=/mnt/data/file bs=4k count=1 conv=fsync 2>/dev/null && echo wrote || echo failed";
    assert_eq!(world.says(failed).await, "failed");
    world.host.is(Machine::Running).await;
    world.end().await;
    world.start_late().await;
    assert_eq!(world.says(failed).await, "wrote");
    // A machine that dies leaves nothing that holds its disks.
    let machine = world.host.pid().and_then(Pid::from_raw).expect("a process");
    kill_process(machine, Signal::KILL).expect("a process");
    until("nothing is served", async || {
        world.server(data).is_none() && world.server(world.host.spec.root_disk).is_none()
    })
    .await;
    world.host.engine.scan().await.expect("a scan");
    assert_eq!(world.served(), [] as [&str; 0]);
}

/// How long a refusal may take at most.
const SOON: Duration = Duration::from_secs(20);

/// Asserts that a store is refused soon, with words that do not have the key.
async fn refused(world: &World, store: &Store, says: &str) {
    let refused = tokio::time::timeout(SOON, world.host.engine.reach_store(store)).await.expect("an answer");
    let Err(EngineError::Permanent(said)) = refused else { panic!("{refused:?}") };
    assert!(said.contains(says) && !said.contains(store.key.reveal()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_shut_hosts_out_is_told_before_one_is_lost() {
    let world = World::new(ceph());
    let (engine, store) = (&world.host.engine, &world.store);
    let key = world.ceph.fence_key().try_into().expect("a key");
    engine.may_fence(&Store { user: "fence".into(), key, ..store.clone() }).await.expect("it may");
    // That one may list who is shut out, and shut out others, but not take them back.
    let Err(EngineError::Permanent(said)) = engine.may_fence(store).await else { panic!("it may not") };
    assert!(said.contains("Ceph does not let client.berth shut hosts out"), "{said}");
    let silent = Store { monitors: vec!["127.0.0.1:9".into()], ..store.clone() };
    let Err(EngineError::Permanent(said)) = engine.may_fence(&silent).await else { panic!("nobody answers") };
    assert!(said.contains("127.0.0.1:9") && said.contains("do not answer"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_said_soon() {
    // Nothing of this one answers for a while, so that it is nobody else's.
    let world = World::new(std::sync::Arc::new(berth_testkit::Ceph::started()));
    let (engine, store, spec) = (&world.host.engine, &world.store, &world.host.spec);
    let key = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".to_owned();
    refused(&world, &Store { key: key.try_into().expect("a key"), ..store.clone() }, "client.berth").await;
    refused(&world, &Store { pool: "none".into(), ..store.clone() }, "has no pool none").await;
    refused(&world, &Store { monitors: vec!["127.0.0.1:9".into()], ..store.clone() }, "127.0.0.1:9").await;
    let snapshot = DiskSource::Snapshot { id: DiskSnapshotId(Uuid::now_v7()), is_root: false };
    let of_snapshot = DiskSpec { id: DiskId(Uuid::now_v7()), source: snapshot, size_gb: 1 };
    assert!(engine.make_shared_disk(&of_snapshot, store).await.expect_err("a snapshot").is_final());
    // There are no disks yet.
    let missing = engine.start(spec).await.expect_err("no disks");
    assert!(!missing.to_string().contains(&store.monitors[0]), "{missing}");
    assert!(world.host.pid().is_none() && world.served().is_empty());
    world.make().await;
    // Somebody else made of what it boots with what no host takes.
    let boot = format!("{}.boot", spec.root_disk);
    world.ceph.resize(&boot, 513);
    assert!(engine.start(spec).await.expect_err("a large archive").is_final());
    world.ceph.resize(&boot, 512);
    let rescued = MachineSpec { rescue: Some("micro".into()), ..spec.clone() };
    assert!(engine.start(&rescued).await.expect_err("a rescue").is_final());
    assert!(engine.suspend(spec).await.expect_err("a memory").is_final());

    world.ceph.answer_of_disks(false);
    refused(&world, store, "its OSDs do not answer client.berth: type `ceph -s`").await;
    world.ceph.answer(false);
    refused(&world, store, "do not answer").await;
    let began = Instant::now();
    let late = engine.start(spec).await.expect_err("it does not answer");
    println!("a start is given up after {:?}: {late}", began.elapsed());
    assert_eq!((world.host.pid(), world.served()), (None, Vec::new()));
    world.ceph.answer(true);
    until("it is reached again", async || engine.reach_store(store).await.is_ok()).await;
    world.host.start().await;

    // A machine whose disks do not answer is seen, and ends.
    world.says("setsid sh -c 'while echo late >>/root/late; do sync; done' </dev/null >/dev/null 2>&1 &").await;
    world.ceph.answer(false);
    let began = Instant::now();
    world.host.is(Machine::Running).await;
    println!("it is seen after {:?}", began.elapsed());
    world.host.engine.power_off(spec.aim()).await.expect("an end");
    println!("it ended after {:?}", began.elapsed());
    assert_eq!((world.host.pid(), world.served()), (None, Vec::new()));
    world.ceph.answer(true);
}
