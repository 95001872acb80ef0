//! A machine is known by what was noted of it.

use berth_qemu::machine::{self, Observed};
use rustix::process::{Pid, test_kill_process};

use crate::world::World;

#[tokio::test]
async fn a_process_that_overwrites_its_command_line_is_still_found_and_ended() {
    let world = World::new();
    world.start_vm().await;
    let pid = world.pid().expect("a process");
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).expect("a command line");
    let line = String::from_utf8_lossy(&line).into_owned();
    assert!(!line.contains(&world.id.to_string()), "{line}");
    assert_eq!(machine::observe(&world.dir, world.id).await, Observed::Running);
    // A second start finds it, too, and makes no other.
    machine::start(&world.vm()).await.expect("a machine");
    assert_eq!(world.pid(), Some(pid));
    // It does not end when it is told to, so it is ended.
    machine::end(&world.dir, world.id).await.expect("an end");
    assert_eq!(world.pid(), None);
    let gone = test_kill_process(Pid::from_raw(pid).expect("a number"));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(gone.is_err() || stat.contains(") Z "), "{stat}");
    assert_eq!(machine::observe(&world.dir, world.id).await, Observed::Absent);
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_no_machine() {
    let world = World::new();
    let missing = machine::Spec { qemu: "/nonexistent/qemu".into(), ..world.vm() };
    let error = machine::start(&missing).await.expect_err("no such program").to_string();
    assert!(error.contains("cannot start /nonexistent/qemu"), "{error}");
    assert_eq!(world.pid(), None);
    // Nothing of it is in the way of the next.
    world.start_vm().await;
    machine::end(&world.dir, world.id).await.expect("an end");
}

#[tokio::test]
async fn the_secrets_of_the_service_are_not_in_the_machine_s_environment() {
    let world = World::new();
    world.start_vm().await;
    let environment =
        std::fs::read(format!("/proc/{}/environ", world.pid().expect("a process"))).expect("an environment");
    assert_eq!(String::from_utf8_lossy(&environment), "MALLOC_ARENA_MAX=1\0");
}
