//! A taken-over QEMU tries each way out of its jail; none opens. What it tries is in `hostile.rs`, and which line of
//! `docs/security.md` each test stands for is said there.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::sync::Arc;

use berth_qemu::launch::Part;
use berth_qemu::machine::{self, Assigned, HostDevice, Link, Tap};
use berth_qemu::sandbox;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use crate::world::World;

#[tokio::test]
async fn files_that_are_not_its_own_are_not_there() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    let others = world.others();
    let lines = [
        format!("early read {others}"),
        format!("early write {others}"),
        "early read ../others".into(),
        "early read /etc/passwd".into(),
        "early read /proc/1/environ".into(),
        "early make /usr/made".into(),
        "early make /made".into(),
        format!("early climb {others}"),
        format!("read {others}"),
        format!("write {others}"),
        "read ../others".into(),
        "read /etc/passwd".into(),
    ];
    world.in_vain(&lines.each_ref().map(String::as_str)).await;
    world.end().await;
}

#[tokio::test]
async fn a_file_system_below_the_host_s_programs_cannot_be_written_to_either() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // What is mounted here, this thread and what it starts see alone.
    #[expect(deprecated, reason = "its successor is unsafe for the sake of descriptors, which are not unshared here")]
    rustix::thread::unshare(UnshareFlags::NEWNS).expect("a namespace");
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).expect("mounts of its own");
    let below =
        ["/usr/local/src", "/usr/src", "/usr/games"].into_iter().find(|path| std::path::Path::new(path).is_dir());
    let below = below.expect("a folder that nobody needs");
    mount("tmpfs", below, "tmpfs", MountFlags::empty(), None).expect("a file system");
    std::fs::write(format!("{below}/there"), "a file").expect("a file");
    let world = World::new();
    let lines = [format!("early make {below}/made"), format!("early write {below}/there")];
    world.in_vain(&lines.each_ref().map(String::as_str)).await;
    world.end().await;
}

#[tokio::test]
async fn what_it_only_reads_cannot_be_written_to() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    let kernel = world.root.path().join("kernel").display().to_string();
    let lines = [format!("early read {kernel}"), format!("early write {kernel}"), format!("write {kernel}")];
    let said = world.play(&lines.each_ref().map(String::as_str)).await;
    assert!(said[0].starts_with("OPEN"), "{said:?}");
    assert!(said[1..].iter().all(|said| said.starts_with("refused")), "{said:?}");
    world.end().await;
}

#[tokio::test]
async fn of_devices_it_has_its_own_and_no_others() {
    let world = World::new();
    if !world.has(Part::Files).await || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = |name: &str| world.root.path().join(name);
    for name in ["vfio", "sys", "sys/0000:01:00.0"] {
        std::fs::create_dir(place(name)).expect("a folder");
    }
    for name in ["vfio/vfio", "vfio/7", "vfio/8", "sys/0000:01:00.0/config"] {
        std::fs::write(place(name), "device").expect("a file");
    }
    let assigned = Assigned {
        files: vec![place("vfio/vfio"), place("vfio/7")],
        folders: vec![place("sys/0000:01:00.0")],
        ..Assigned::default()
    };
    let tried = |verb: &str, name: &str| format!("early {verb} {}", place(name).display());
    let config = "sys/0000:01:00.0/config";
    let lines = [("write", "vfio/vfio"), ("write", "vfio/7"), ("read", config), ("write", config), ("write", "vfio/8")];
    let lines = lines.map(|(verb, name)| tried(verb, name));
    world.plan(&lines.each_ref().map(String::as_str));
    let vm = machine::Spec { assigned, ..world.vm() };
    machine::start(&vm).await.unwrap_or_else(|error| panic!("{error}\n{}", world.log()));
    let log = world.log();
    let opened: Vec<_> = log.lines().take(lines.len()).map(|said| said.starts_with("OPEN ")).collect();
    assert_eq!(opened, [true, true, true, false, false], "{log}");
    world.end().await;
}

/// What its devices write to is locked: the guest's memory and a GiB.
#[tokio::test]
async fn a_machine_with_devices_may_lock_its_memory_or_says_that_it_may_not() {
    const NEEDED: u64 = (64 + 1024) << 20;
    let world = World::new();
    let devices = vec![HostDevice::Function("0000:01:00.0".into())];
    let vm = machine::Spec { assigned: Assigned { devices, ..Assigned::default() }, ..world.vm() };
    let most = rustix::process::getrlimit(rustix::process::Resource::Memlock).maximum;
    match machine::start(&vm).await {
        Ok(()) => {
            let limits = std::fs::read_to_string(format!("/proc/{}/limits", world.process())).expect("limits");
            let locked = limits.lines().find(|line| line.starts_with("Max locked memory")).expect("a limit");
            let soft = locked.split_whitespace().nth(3).expect("a limit");
            assert!(soft == "unlimited" || soft.parse::<u64>().is_ok_and(|bytes| bytes >= NEEDED), "{locked}");
        }
        Err(error) => {
            assert!(most.is_some_and(|most| most < NEEDED), "{error}");
            assert!(world.log().contains("put LimitMEMLOCK=infinity into the service's unit"), "{}", world.log());
        }
    }
    world.end().await;
}

#[tokio::test]
async fn the_memory_that_machines_share_cannot_be_written_to() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    world.in_vain(&["early write memory", "early remove memory", "write memory"]).await;
    world.end().await;
}

#[tokio::test]
async fn a_memory_that_qemu_opens_to_write_to_is_lent_to_be_read() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    world.plan(&["early alter memory", "alter memory"]);
    sandbox::start(&world.loaded(), || Ok(())).await.unwrap_or_else(|error| panic!("{error}\n{}", world.log()));
    let log = world.log();
    let mut said = log.lines();
    assert_eq!(said.next(), Some("opened memory"), "{log}");
    assert!(
        said.next().is_some_and(|line| line.starts_with("refused early alter memory: Bad file descriptor")),
        "{log}"
    );
    assert!(said.next().is_some_and(|line| line.starts_with("refused alter memory")), "{log}");
    assert_eq!(std::fs::read_to_string(world.root.path().join("template")).expect("a memory"), "a memory");
    world.end().await;
}

#[tokio::test]
async fn the_network_of_the_host_is_not_there() {
    let world = World::new();
    if !world.has(Part::Network).await {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let name = format!("berth-{}", world.id);
    let _abstract =
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).expect("a name")).expect("a listener");
    let port = listener.local_addr().expect("an address");
    let lines = [format!("early connect {port}"), format!("connect {port}"), format!("abstract {name}")];
    world.in_vain(&lines.each_ref().map(String::as_str)).await;
    listener.set_nonblocking(true).expect("a listener");
    assert!(listener.accept().is_err(), "somebody came");
    world.end().await;
}

#[tokio::test]
async fn no_process_of_the_host_can_be_signalled() {
    let world = World::new();
    if !world.has(Part::Processes).await {
        return;
    }
    let mut victim = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
    let lines = [format!("early signal {}", victim.id()), format!("signal {}", victim.id())];
    world.in_vain(&lines.each_ref().map(String::as_str)).await;
    assert_eq!(victim.try_wait().expect("a look"), None, "it was ended");
    drop(victim.stdin.take());
    assert!(victim.wait().expect("an end").success());
    world.end().await;
}

#[tokio::test]
async fn no_mount_and_no_device_can_be_made() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    world.in_vain(&["early mount .", "early device memory-of-the-host", "mount ."]).await;
    world.end().await;
}

#[tokio::test]
async fn calls_that_no_machine_needs_are_not_there() {
    let world = World::new();
    let calls = [
        libc::SYS_bpf,
        libc::SYS_userfaultfd,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_keyctl,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_pidfd_getfd,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_move_mount,
        libc::SYS_open_by_handle_at,
        libc::SYS_clone3,
        libc::SYS_shmget,
    ];
    let lines = calls.map(|call| [format!("early ask {call}"), format!("ask {call}")]).concat();
    world.in_vain(&lines.iter().map(String::as_str).collect::<Vec<_>>()).await;
    world.end().await;
}

#[tokio::test]
async fn what_is_noted_of_it_cannot_be_swapped() {
    let world = World::new();
    if !world.has(Part::Files).await {
        return;
    }
    let lines = ["early write process.json", "early remove process.json", "write process.json", "remove process.json"];
    world.in_vain(&lines).await;
    world.end().await;
}

#[tokio::test]
async fn as_a_user_of_its_own_it_can_swap_nothing_in_its_folder() {
    let world = World::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    world.in_vain(&["make made", "link console.log", "remove qemu.log", "write qemu.log", "read plan"]).await;
    world.end().await;
}

#[tokio::test]
async fn it_has_no_descriptor_that_it_was_not_given() {
    let world = World::new();
    world.play(&[]).await;
    let entries = std::fs::read_dir(format!("/proc/{}/fd", world.process())).expect("descriptors");
    let mut targets: Vec<String> = entries
        .flatten()
        .map(|entry| std::fs::read_link(entry.path()).expect("a descriptor").display().to_string())
        .filter(|target| !target.starts_with("socket:"))
        .collect();
    targets.sort();
    let log = world.dir.join("qemu.log").display().to_string();
    // The file that nothing is read from was opened in the host's tree, of which only its own part is left.
    assert!(targets[0].ends_with("/null"), "{targets:?}");
    assert_eq!(targets[1..], [log.clone(), log]);
    world.end().await;
}

/// The network device of a machine, and the kernel's help with it: the service opens both, in a network that the machine
/// does not have.
#[tokio::test]
async fn it_has_the_descriptors_that_it_was_given() {
    let world = World::new();
    let open = |name: &str| {
        let path = world.root.path().join(name);
        Arc::new(OwnedFd::from(std::fs::File::create(path).expect("a file")))
    };
    let (device, vhost) = (open("device"), open("vhost"));
    for (link, given) in [
        (Link::Tap(Tap { device: device.clone(), vhost: None }), &["device"][..]),
        (Link::Tap(Tap { device, vhost: Some(vhost) }), &["device", "vhost"]),
    ] {
        let vm = machine::Spec { link, ..world.vm() };
        machine::start(&vm).await.unwrap_or_else(|error| panic!("{error}\n{}", world.log()));
        let at = |number| {
            let path = format!("/proc/{}/fd/{number}", world.process());
            std::fs::read_link(path).ok()?.file_name().map(|name| name.display().to_string())
        };
        let files: Vec<_> = (3..=4).filter_map(at).filter(|name| !name.starts_with("socket:")).collect();
        assert_eq!(files, given);
        world.end().await;
    }
}

#[tokio::test]
async fn as_root_it_is_nobody_with_no_rights_in_the_end() {
    let world = World::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    world.play(&[]).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", world.process())).expect("a status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).expect("a field");
    for rights in ["CapEff:", "CapPrm:", "CapAmb:"] {
        assert_eq!(field(rights), "0000000000000000", "{rights}");
    }
    // What an executed program of root could have had: to become another user, to leave its root folder.
    assert_eq!(field("CapBnd:"), "00000000000400c2");
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Uid:"), ["2147418113"; 4].join("\t"));
    assert_eq!(field("NSpid:").split_whitespace().nth(1), Some("1"));
    world.end().await;
}
