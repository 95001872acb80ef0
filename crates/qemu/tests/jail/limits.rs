//! What a machine's process may use, from its first instruction on.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_qemu::groups;
use berth_qemu::machine::{self, Jail};

use crate::world::World;

/// The groups that a process is in, as `/proc` says it: controllers and path.
fn groups_of(pid: i32) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("groups");
    let parts = text.lines().map(|line| line.splitn(3, ':').skip(1).map(str::to_owned).collect::<Vec<_>>());
    parts.filter_map(|parts| Some((parts.first()?.clone(), parts.get(1)?.clone()))).collect()
}

fn folder(controller: &str, path: &str) -> PathBuf {
    let tree =
        if controller.is_empty() && Path::new("/sys/fs/cgroup/unified").exists() { "unified" } else { controller };
    Path::new("/sys/fs/cgroup").join(tree).join(path.trim_start_matches('/'))
}

/// Whether this host lets the test make groups. Where root has some, it does.
fn may_limit() -> bool {
    let possible = groups::possible();
    let root_has_some = rustix::process::geteuid().is_root()
        && ["cgroup.procs", "memory/cgroup.procs"].iter().any(|name| Path::new("/sys/fs/cgroup").join(name).exists());
    assert!(possible.is_ok() || !root_has_some, "{possible:?}");
    possible.is_ok()
}

/// The folders of a machine's own groups.
fn own(world: &World) -> Vec<PathBuf> {
    let all = groups_of(world.process()).into_iter();
    let id = world.id.to_string();
    let own: Vec<_> =
        all.filter(|(_, path)| path.contains(&id)).map(|(controller, path)| folder(&controller, &path)).collect();
    assert!(!own.is_empty(), "it is in none");
    own
}

fn value(groups: &[PathBuf], names: [&str; 2]) -> String {
    let mut files = groups.iter().flat_map(|group| names.map(|name| group.join(name))).map(std::fs::read_to_string);
    files.find_map(Result::ok).expect("a limit").trim().to_owned()
}

#[tokio::test]
async fn vms_and_sandboxes_are_limited_alike() {
    if !may_limit() {
        return;
    }
    for is_vm in [true, false] {
        let world = World::new();
        let beside = if is_vm { 512 + 128 } else { 256 };
        if is_vm {
            world.start_vm().await;
        } else {
            world.play(&[]).await;
        }
        let own = own(&world);
        let memory = value(&own, ["memory.max", "memory.limit_in_bytes"]);
        assert_eq!(memory, ((64_u64 + beside) << 20).to_string());
        assert_eq!(value(&own, ["pids.max", "pids.max"]), "97");
        world.end().await;
        assert!(own.iter().all(|group| !group.exists()), "a group is left: {own:?}");
    }
}

#[tokio::test]
async fn more_threads_than_it_may_have_it_does_not_get() {
    if !may_limit() {
        return;
    }
    let world = World::new();
    let said = world.play(&["early threads", "threads"]).await;
    for said in said {
        let count: usize = said.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
        assert!((64..97).contains(&count), "{said}");
    }
    world.end().await;
}

#[tokio::test]
async fn what_a_machine_left_in_its_groups_ends_with_it() {
    if !may_limit() {
        return;
    }
    let world = World::new();
    world.start_vm().await;
    let own = own(&world);
    // Somebody else, whom nobody noted, joins the machine's groups.
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
    for group in &own {
        std::fs::write(group.join("cgroup.procs"), other.id().to_string()).expect("a group");
    }
    world.end().await;
    let status = other.wait().expect("an end");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert!(own.iter().all(|group| !group.exists()));
}

#[tokio::test]
async fn groups_of_an_earlier_berth_end_with_their_machine_and_those_of_another_folder_do_not() {
    if !may_limit() {
        return;
    }
    let world = World::new();
    world.start_vm().await;
    let (pid, id) = (world.process(), world.id);
    let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat");
    let named = |group: &PathBuf, name: String, pid: u32| {
        let group = group.with_file_name(name);
        std::fs::create_dir(&group).expect("a group");
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).expect("a group");
        group
    };
    let all = own(&world);
    let earlier: Vec<_> = all.iter().map(|group| named(group, id.to_string(), pid.unsigned_abs())).collect();
    let others: Vec<_> = all.iter().map(|group| named(group, format!("{id}-0"), other.id())).collect();
    world.end().await;
    assert!(earlier.iter().all(|group| !group.exists()), "{earlier:?}");
    assert!(other.try_wait().expect("an answer").is_none(), "it lives");
    other.kill().expect("its end");
    other.wait().expect("its end");
    for group in others.iter().filter(|group| group.exists()) {
        std::fs::remove_dir(group).expect("an empty group");
    }
}

#[tokio::test]
async fn a_launcher_that_does_not_let_go_of_the_folder_is_ended() {
    if !may_limit() {
        return;
    }
    let world = World::new();
    world.start_vm().await;
    let mut launcher = Command::new("flock")
        .args(["--no-fork".as_ref(), world.dir.as_os_str(), "cat".as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("flock");
    launcher.stdin.as_mut().expect("a pipe").write_all(b"x").expect("a word");
    launcher.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("an echo");
    for group in own(&world) {
        std::fs::write(group.join("cgroup.procs"), launcher.id().to_string()).expect("a group");
    }
    world.end().await;
    let status = launcher.wait().expect("an end");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}

#[tokio::test]
async fn what_is_required_and_there_is_no_obstacle() {
    let world = World::new();
    let vm = world.vm();
    let required = machine::Spec { jail: Jail { required: true, ..vm.jail }, ..vm };
    let is_whole = berth_qemu::confinement::of_host(world.root.path()).await.expect("an answer").missing().is_empty();
    let started = machine::start(&required).await;
    assert_eq!(started.is_ok(), is_whole, "{started:?}");
    world.end().await;
}
