//! Machines that go to another host while they run: real ones, between two engines.
//!
//! Wants the built images (`script/test` builds them).

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

#[path = "../host/mod.rs"]
mod host;
mod world;

use std::time::Duration;

use berth_domain::ids::DiskId;
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_host::vm::{Channel, Engine, Likeness, MachineSpec};
use rustix::process::{Pid, Signal, kill_process};

use host::until;
use world::World;

/// A shell's words for a data disk, as a guest knows it.
fn device(id: DiskId) -> String {
    let serial = id.serial();
    format!("$(for d in /sys/block/vd*; do [ \"$(cat $d/serial)\" = {serial} ] && echo /dev/${{d##*/}}; done)")
}

/// A program that counts, in memory, on the root disk and on a data disk, and notes for how long it stood still at most, in
/// milliseconds. It ends after the turn in which it finds `/tmp/stop`.
fn counting(disk: DiskId) -> String {
    format!(
        "cat >/tmp/counts <<'END'
d={}
n=0; most=0; last=$(cut -d' ' -f1 /proc/uptime | tr -d .)
until [ -e /tmp/stop ]; do
  n=$((n+1)); echo $n >/tmp/new; mv /tmp/new /tmp/count; echo $n >>/root/counted
  printf '%08d' $n | dd of=$d conv=fsync 2>/dev/null
  now=$(cut -d' ' -f1 /proc/uptime | tr -d .); gap=$(((now-last)*10)); last=$now
  [ $gap -gt $most ] && most=$gap && echo $most >/tmp/gap
  usleep 20000
done
touch /tmp/stopped
END
setsid sh /tmp/counts </dev/null >/dev/null 2>&1 & until [ -s /tmp/count ]; do usleep 10000; done",
        device(disk)
    )
}

fn reads(disk: DiskId, bytes: usize) -> String {
    format!("dd if={} bs=512 count=1 2>/dev/null | head -c {bytes}", device(disk))
}

/// How long something may take that happens by itself.
const LONGEST: Duration = Duration::from_mins(1);

/// The next start of a machine.
fn again(spec: &MachineSpec, goes_on: bool) -> MachineSpec {
    MachineSpec { generation: spec.generation + 1, goes_on, ..spec.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_goes_on_on_another_host_with_all_that_it_has() {
    let mut world = World::new().await;
    let [first, second] = [0, 1].map(|index| world.from.spec.data_disks[index].id);
    let boot = world.says(&world.from, "cat /proc/sys/kernel/random/boot_id").await;
    let written =
        format!("printf before | dd of={} conv=fsync 2>/dev/null; echo kept >/root/file; sync", device(first));
    world.says(&world.from, &written).await;
    world.says(&world.from, &counting(second)).await;
    world.says(&world.from, "echo 0 >/tmp/gap").await;

    let likeness = world.from.engine.likeness(&world.from.spec).await.expect("it runs");
    world.go().await.expect("it goes on");
    world.from.is(Machine::Paused).await;
    world.from.engine.power_off(world.from.spec.aim()).await.expect("an end");
    world.to.is(Machine::Running).await;
    let (engine, id) = (&world.to.engine, world.to.spec.id);
    assert!(engine.has_network(id).await && engine.usage(id).await.is_some());
    assert!(engine.picture(id).await.expect("a picture").starts_with(b"\x89PNG"));
    assert_eq!(world.says(&world.to, "cat /proc/sys/kernel/random/boot_id").await, boot, "the same boot");
    world.counts(&world.to).await;
    println!("the guest stood still for {} ms", world.says(&world.to, "cat /tmp/gap").await);
    world.says(&world.to, "awk '{n++; if ($1 != n) exit 1}' /root/counted").await;
    let refused = world.expect().await.expect_err("it runs");
    assert!(refused.is_final(), "{refused}");

    // It is like any other now: its memory is written and loaded, and it boots from its disks.
    engine.suspend(&world.to.spec).await.expect("a memory");
    engine.power_off(world.to.spec.aim()).await.expect("an end");
    world.to.spec = again(&world.to.spec, true);
    let started = world.to.engine.start(&world.to.spec).await.expect("a start").expect("it did not run");
    assert_eq!(started.unloadable, None);
    world.counts(&world.to).await;
    assert_eq!(world.says(&world.to, "cat /proc/sys/kernel/random/boot_id").await, boot, "the same boot");
    let ended = "touch /tmp/stop; until [ -e /tmp/stopped ]; do usleep 10000; done; sync; cat /tmp/count";
    let last: u64 = world.says(&world.to, ended).await.parse().expect("a number");
    world.to.engine.power_off(world.to.spec.aim()).await.expect("an end");
    world.to.spec = again(&world.to.spec, false);
    let refused = world.to.engine.expect_machine(&world.to.spec, &likeness).await.expect_err("its disks are at home");
    assert!(refused.is_final() && refused.to_string().contains("did not come with it"), "{refused}");
    world.to.start().await;
    assert_eq!(world.says(&world.to, "cat /root/file").await, "kept");
    assert_eq!(world.says(&world.to, &reads(first, 6)).await, "before");
    assert_eq!(world.says(&world.to, &reads(second, 8)).await.parse::<u64>().expect("a number"), last);
    world.says(&world.to, &format!("awk '{{n++; if ($1 != n) exit 1}} END {{exit n < {last}}}' /root/counted")).await;
    let refused =
        world.to.engine.likeness(&MachineSpec { rescue: Some("micro".into()), ..world.to.spec.clone() }).await;
    assert!(refused.expect_err("it is rescued").is_final());
    world.to.engine.likeness(&world.to.spec).await.expect("it may go on to a third");
}

/// Asserts that the other host refuses a machine that is like this, and has nothing of it.
async fn refused(world: &World, to_other: impl FnOnce(&mut Likeness), says: &str) {
    let mut likeness = world.from.engine.likeness(&world.from.spec).await.expect("it runs");
    to_other(&mut likeness);
    let error = world.to.engine.expect_machine(&world.to.spec, &likeness).await.expect_err("it is not alike");
    assert!(error.is_final() && error.to_string().contains(says), "{error}");
    assert_eq!(world.to.pid(), None);
    let disks = std::fs::read_dir(world.to.dir.path().join("disks")).expect("a folder").count();
    assert_eq!(disks, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_go_goes_on_where_it_is() {
    let world = World::new().await;
    let aim = world.from.spec.aim();
    world.says(&world.from, &counting(world.from.spec.data_disks[1].id)).await;
    refused(&world, |like| like.qemu = (1, 0), "QEMU 1.0").await;
    refused(&world, |like| like.processor = "kvm other".into(), "another processor").await;
    refused(&world, |like| like.disks = [].into(), "other disks").await;

    // The way ends while its disks are sent.
    for carried in world.mirror().await.expect("it is mirrored") {
        carried.abort();
    }
    until("a mirror ends", async || world.from.engine.mirrored(aim).await.is_err()).await;
    world.counts(&world.from).await;
    // Nobody takes its memory.
    let carried = world.mirror().await.expect("it is mirrored");
    let mut way = world.from.engine.send_machine(aim, Channel::Memory).await.expect("a way");
    let handed = tokio::time::timeout(Duration::from_secs(1), world.from.engine.hand_over(aim)).await;
    handed.expect_err("it does not end, and nobody waits for it any more");
    tokio::time::timeout(LONGEST, tokio::io::copy(&mut way, &mut tokio::io::sink()))
        .await
        .expect("it ends")
        .expect("it");
    world.counts(&world.from).await;
    drop(carried);
    // The other machine dies with its disks on both sides.
    world.mirror().await.expect("it is mirrored");
    kill_process(Pid::from_raw(world.to.pid().expect("a process")).expect("a process"), Signal::KILL).expect("an end");
    until("a mirror ends", async || world.from.engine.mirrored(aim).await.is_err()).await;
    for _ in 0..2 {
        world.from.engine.call_off(aim).await.expect("it runs");
    }
    world.counts(&world.from).await;
    // All is sent, and it is not to go on there after all.
    let mut carried = world.mirror().await.expect("it is mirrored");
    carried.push(world.carry(Channel::Memory).await.expect("a way"));
    world.from.engine.hand_over(aim).await.expect("it stands still");
    world.from.is(Machine::Paused).await;
    for _ in 0..2 {
        world.from.engine.call_off(aim).await.expect("it goes on");
    }
    world.from.is(Machine::Running).await;
    world.counts(&world.from).await;
    world.says(&world.from, "awk '{n++; if ($1 != n) exit 1}' /root/counted").await;
    world.to.engine.call_off(world.to.spec.aim()).await.expect("it waits");
    world.to.is(Machine::Paused).await;

    // Nothing of all that is left: its memory is written as any other's.
    world.from.engine.suspend(&world.from.spec).await.expect("a memory");
    world.from.engine.resume(aim).await.expect("it goes on");
    world.counts(&world.from).await;
    world.to.engine.power_off(world.to.spec.aim()).await.expect("an end");
    let error = world.to.engine.fill_machine(world.to.spec.aim(), Channel::Memory).await.err().expect("it is gone");
    assert!(matches!(error, EngineError::Transient(_)), "{error}");
}
