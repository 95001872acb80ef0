//! Scenarios of VMs.

use std::net::Ipv4Addr;

use berth_domain::host::Ask;
use berth_domain::host::ask::{
    disk, disk_snapshot, export, host, image, migration, shared_disk, shared_snapshot, stream, vm,
};
use berth_domain::ids::{DiskId, DiskSnapshotId, ImageId, MachineId};
use berth_domain::vm::inbound::Reached;
use berth_domain::vm::plan::Machine;
use berth_domain::vm::pool::Pool;
use berth_domain::vm::{ExposedPort, InboundPort, Protocol};
use berth_host::EngineError;
use berth_host::vm::{
    Aim, BroughtDisk, DataDisk, DiskSnapshotSpec, DiskSource, DiskSpec, ExportSource, GuestKeys, ImageImport,
    ImageOfSnapshot, MachineSpec, Open, Part, VmNetwork,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::migrations::migrations;
use crate::shared_disks::{shared_disks, shared_snapshots};
use crate::travels::travels;
use crate::way::{Asked, Way, id, verbs};

const VM: MachineId = MachineId(id(1));
const AIM: Aim = Aim::of(VM, 3);

pub fn spec() -> MachineSpec {
    MachineSpec {
        id: VM,
        generation: 3,
        name: "one".into(),
        vcpu: 2,
        memory_mb: 512,
        image_id: "micro".into(),
        root_disk: DiskId(id(2)),
        data_disks: vec![DataDisk { id: DiskId(id(3)), mount: Some("/mnt/data".into()) }],
        disk_places: 8,
        ssh_keys: vec!["ssh-ed25519 AAAA one".into()],
        user_data: Some("#!/bin/sh\necho \"ü\"\n".into()),
        address: Ipv4Addr::new(127, 64, 0, 2),
        slot: 3,
        is_bridged: true,
        ports: vec![inbound(22, 2222), inbound(80, 80), inbound(8080, 8080)],
        networks: vec![crate::networks::membership(2)],
        rules: crate::networks::rules(),
        goes_on: true,
        gpus: vec!["0000:01:00.0".parse().expect("an address")],
        rescue: Some("micro".into()),
        store: None,
    }
}

const fn port(port: u16) -> ExposedPort {
    ExposedPort { port, protocol: Protocol::Tcp }
}

fn inbound(to: u16, at: u16) -> InboundPort {
    InboundPort { to: port(to), at: ([127, 64, 0, 2], at).into() }
}

/// What is answered, in order.
async fn life(way: &Way) -> Vec<String> {
    let (mut said, vm) = (Vec::new(), &way.vm);
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    let disk = DiskSpec { id: DiskId(id(2)), source: DiskSource::Image("micro".into()), size_gb: 20 };
    way.vms.take_port(8080);
    let pool = Reached::Pool(Pool::read(["192.0.2.16/30", "2001:db8::/126"]).expect("addresses"));
    assert_eq!(vm.network(), VmNetwork { reached: pool, is_bridged: true }, "it says how VMs are reached");
    note!(vm.ready(), vm.capacity().await, vm.ssh_port(), vm.host_boot());
    way.vms.set_gpus(&["0000:01:00.0", "0000:01:00.1"]);
    note!(vm.gpus().await);
    note!(vm.ports_free(inbound(22, 2222).at, 1).await, vm.make_disk(&disk).await, vm.make_disk(&disk).await);
    note!(vm.grow_disk(disk.id, 30, None).await, vm.grow_disk(disk.id, 25, None).await);
    assert_eq!(way.vms.disk_gb(&disk.id.to_string()), Some(30));
    note!(vm.observe(VM).await, vm.guest_ready(VM).await);
    let started = vm.start(&spec()).await.expect("a start").expect("a machine");
    assert_eq!(started.taken_ports, [port(8080)]);
    assert_eq!(way.vms.spec(&VM.to_string()), Some(spec()), "it is started as it was asked for");
    note!(started, vm.observe(VM).await, vm.guest_ready(VM).await, vm.has_network(VM).await);
    let fewer = MachineSpec { ports: vec![inbound(22, 2222), inbound(81, 81)], ..spec() };
    note!(vm.set_ports(&fewer, Open::All(spec().ports)).await);
    assert_eq!(way.vms.open_ports(&VM.to_string()), [81, 2222]);
    let former = spec().ssh_keys;
    let keys = GuestKeys { user: "root".into(), keys: vec!["ssh-ed25519 B".into()], former };
    note!(vm.set_keys(AIM, &keys).await);
    way.vms.set_has_agent(true);
    note!(vm.set_keys(AIM, &keys).await);
    assert_eq!(way.vms.spec(&VM.to_string()).expect("a machine").ssh_keys, ["ssh-ed25519 B"]);
    assert_eq!(vm.set_keys(Aim::of(VM, 2), &keys).await, Err(EngineError::Outdated(3)));
    note!(vm.console_log(VM, 5).await, vm.usage(VM).await, vm.scan().await.map(|found| (found.machines, found.disks)));
    let early = Aim::of(VM, 2);
    for older in [
        vm.power_off(early).await,
        vm.discard(early).await,
        vm.resume(early).await,
        vm.suspend(&MachineSpec { generation: 2, ..spec() }).await,
        vm.forget_memory(early).await,
    ] {
        assert_eq!(older, Err(EngineError::Outdated(3)));
    }
    note!(vm.grow_disk(disk.id, 40, Some(AIM)).await);
    let older = vm.grow_disk(disk.id, 50, Some(Aim::of(VM, 2))).await;
    assert_eq!((older, way.vms.disk_gb(&disk.id.to_string())), (Err(EngineError::Outdated(3)), Some(40)));
    let another = DiskSpec { id: DiskId(id(4)), source: DiskSource::Empty, size_gb: 10 };
    let has = || way.vms.spec(&VM.to_string()).expect("a machine").data_disks.len();
    note!(vm.make_disk(&another).await, vm.attach_disk(AIM, another.id).await, vm.attach_disk(AIM, another.id).await);
    assert_eq!(has(), 2);
    way.vms.set_holds_on(true);
    note!(vm.detach_disk(AIM, another.id).await);
    way.vms.set_holds_on(false);
    note!(vm.detach_disk(AIM, another.id).await, vm.detach_disk(AIM, another.id).await);
    assert_eq!(has(), 1);
    let older = Aim::of(VM, 2);
    assert_eq!(vm.attach_disk(older, another.id).await, Err(EngineError::Outdated(3)));
    assert_eq!(vm.detach_disk(older, another.id).await, Err(EngineError::Outdated(3)));
    note!(vm.attach_disk(AIM, DiskId(id(5))).await, vm.remove_disk(another.id).await);
    let older = MachineSpec { generation: 2, ..spec() };
    assert_eq!(vm.start(&older).await.err(), Some(EngineError::Outdated(3)));
    assert_eq!(vm.set_ports(&older, Open::All(Vec::new())).await.err(), Some(EngineError::Outdated(3)));
    assert_eq!(vm.press_power(Aim::of(VM, 2)).await, Err(EngineError::Outdated(3)));
    vm.press_power(AIM).await.expect("a press");
    assert_eq!(vm.observe(VM).await.expect("a look"), Machine::PoweredOff);
    note!(vm.resume(AIM).await, vm.observe(VM).await, vm.suspend(&spec()).await, vm.observe(VM).await);
    assert!(way.vms.has_memory(&VM.to_string()));
    // A disk is made anew once its machine has ended, and before the next start alone.
    let other = DiskSpec { source: DiskSource::Image("large".into()), ..disk.clone() };
    let busy = vm.remake_disk(AIM, &other).await;
    assert!(matches!(busy, Err(EngineError::Transient(_))), "{busy:?}");
    assert_eq!(vm.remake_disk(Aim::of(VM, 2), &other).await, Err(EngineError::Outdated(3)));
    note!(vm.forget_memory(AIM).await, vm.suspend(&spec()).await, vm.power_off(AIM).await, vm.suspend(&spec()).await);
    note!(vm.remake_disk(AIM, &other).await);
    assert!(!way.vms.has_memory(&VM.to_string()), "it knew the disk that was there before");
    assert_eq!(way.vms.clones(&disk.id.to_string()), ["micro", "large"]);
    note!(vm.forget_memory(AIM).await, vm.suspend(&spec()).await);
    assert_eq!(vm.start(&spec()).await.err(), Some(EngineError::Outdated(3)), "it was ended since");
    note!(vm.discard(AIM).await);
    let aside = way.aside("disks").await;
    note!(vm.set_aside_disk(disk.id, &aside).await, vm.remove_disk(disk.id).await);
    assert!(aside.join(disk.id.to_string()).exists(), "it was set aside");
    note!(vm.scan().await.map(|found| (found.machines, found.disks)));
    said
}

/// What is answered about snapshots of disks, in order.
async fn snapshots(way: &Way) -> Vec<String> {
    let (mut said, vm) = (Vec::new(), &way.vm);
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    let machine = MachineSpec { id: MachineId(id(8)), ..spec() };
    let (aim, older) = (machine.aim(), Aim::of(machine.id, 2));
    let disk = DiskSpec { id: DiskId(id(2)), source: DiskSource::Empty, size_gb: 20 };
    vm.make_disk(&disk).await.expect("a disk");
    vm.start(&machine).await.expect("a start");
    let [one, two] = [6, 7].map(|n| DiskSnapshotSpec { id: DiskSnapshotId(id(n)), disk: disk.id });
    way.vms.set_copying(1);
    note!(vm.snapshot_disk(&one, Some(aim)).await, vm.snapshot_disk(&one, Some(aim)).await);
    note!(vm.snapshot_disk(&two, Some(aim)).await, vm.snapshot_disk(&two, None).await);
    assert_eq!(way.vms.snapshots(), (2, 0));
    assert_eq!(vm.snapshot_disk(&one, Some(older)).await, Err(EngineError::Outdated(3)));
    assert_eq!(vm.remove_snapshot(one.id, Some(older)).await, Err(EngineError::Outdated(3)));
    let mut found = vm.scan().await.expect("a search").snapshots;
    found.sort_unstable();
    assert_eq!(found, [one.id, two.id]);
    let from = DiskSpec { id: DiskId(id(9)), source: DiskSource::Snapshot { id: one.id, is_root: false }, size_gb: 20 };
    note!(
        vm.make_disk(&from).await,
        vm.remove_snapshot(one.id, Some(aim)).await,
        vm.remove_snapshot(one.id, None).await
    );
    note!(vm.make_disk(&DiskSpec { id: DiskId(id(10)), ..from }).await);
    let aside = way.aside("snapshots").await;
    note!(vm.set_aside_snapshot(two.id, &aside).await, vm.set_aside_snapshot(one.id, &aside).await);
    assert!(aside.join(two.id.to_string()).exists() && !aside.join(one.id.to_string()).exists());
    note!(vm.snapshot_disk(&DiskSnapshotSpec { disk: DiskId(id(11)), ..one }, None).await);
    said
}

/// What is answered about images, in order.
async fn images(way: &Way) -> Vec<String> {
    let vm = &way.vm;
    let import = ImageImport {
        id: "mine".into(),
        name: "Mine".into(),
        login_user: "me".into(),
        sha256: None,
        uefi: true,
        conversion: 1,
    };
    let file = vm.staging().await.expect("a folder").join("a file of some name");
    // Longer than what is under way at a time.
    std::fs::write(&file, vec![7; 300_000]).expect("a file");
    let taken = vm.import_image(&file, &import).await.expect("an import");
    assert_eq!((taken.virtual_size, taken.login_user.as_str()), (300_000, "me"));
    assert!(file.exists(), "whose file it is removes it");
    if way.is_far {
        assert_eq!(way.vms.staged(), Vec::<String>::new(), "the host keeps nothing of what was brought");
    }
    let mut all = vm.images().await.expect("images");
    all.sort_by(|one, other| one.id.cmp(&other.id));
    let found = [vm.image("mine").await, vm.image("no").await];
    let said = format!("{taken:?} {all:?} {found:?} {:?} {:?}", vm.remove_image("mine").await, vm.image("mine").await);
    vec![said]
}

/// What is answered about disks as files and about images of them, in order.
async fn exports(way: &Way) -> Vec<String> {
    let (mut said, vm) = (Vec::new(), &way.vm);
    let machine = MachineSpec { id: MachineId(id(20)), ..spec() };
    let disk = DiskSpec { id: DiskId(id(21)), source: DiskSource::Empty, size_gb: 20 };
    vm.make_disk(&disk).await.expect("a disk");
    let held = ExportSource::Disk { id: disk.id, of: Some(machine.id) };
    let about = vm.export(&held).await.expect("a file");
    assert_eq!(about.bytes, 300_000);
    for part in [about.whole(), Part { from: 299_990, bytes: 10 }, Part { from: 5, bytes: 0 }] {
        let (mut content, mut bytes) = (vm.exported(&held, &about.sha256, part).await.expect("bytes"), Vec::new());
        content.read_to_end(&mut bytes).await.expect("all of them");
        assert_eq!(bytes.len() as u64, part.bytes, "as many as were asked for");
        said.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    let beyond = vm.exported(&held, &about.sha256, Part { from: 299_990, bytes: 11 }).await;
    let other = vm.exported(&held, "0", about.whole()).await;
    said.push(format!("{:?} {:?}", beyond.err(), other.err()));
    vm.start(&machine).await.expect("a start");
    said.push(format!("{:?} {:?}", vm.export(&held).await, vm.exported(&held, "0", about.whole()).await.err()));
    let snapshot = DiskSnapshotSpec { id: DiskSnapshotId(id(22)), disk: disk.id };
    let image = ImageOfSnapshot { id: ImageId(id(23)), name: "mine".into(), snapshot: snapshot.id };
    said.push(format!("{:?} {:?}", vm.export(&ExportSource::Snapshot(snapshot.id)).await, vm.make_image(&image).await));
    vm.snapshot_disk(&snapshot, None).await.expect("a snapshot");
    said.push(format!("{:?} {:?}", vm.export(&ExportSource::Snapshot(snapshot.id)).await, vm.make_image(&image).await));
    let mine = ExportSource::Image(image.id);
    said.push(format!("{:?} {:?}", vm.export(&mine).await, vm.scan().await.expect("a search").images));
    assert!(vm.images().await.expect("images").iter().all(|one| one.name != "mine"), "it is none of the platform's");
    let aside = way.aside("images").await;
    said.push(format!("{:?} {:?}", vm.set_aside_image(image.id, &aside).await, vm.export(&mine).await));
    assert!(aside.join(image.id.to_string()).exists(), "it was set aside");
    said.push(format!("{:?}", vm.set_aside_image(image.id, &aside).await));
    vm.discard(machine.aim()).await.expect("an end");
    said
}

/// What is answered about disks that are made of files, in order.
async fn brought(way: &Way) -> Vec<String> {
    let vm = &way.vm;
    let file = vm.staging().await.expect("a folder").join("a disk of some name");
    // Longer than what is under way at a time.
    std::fs::write(&file, vec![9; 300_000]).expect("a file");
    let disk = BroughtDisk { id: DiskId(id(24)), size_gb: 20, image: Some("micro".into()), conversion: Some(1) };
    let mut said = vec![format!("{:?} {:?}", vm.bring_disk(&file, &disk).await, vm.bring_disk(&file, &disk).await)];
    let made = way.vms.brought(&disk.id.to_string());
    assert_eq!(made, Some((vec![9; 300_000], disk.image.clone())));
    assert!(file.exists(), "whose file it is removes it");
    std::fs::remove_file(&file).expect("a file");
    if way.is_far {
        assert_eq!(way.vms.staged(), Vec::<String>::new(), "the host keeps nothing of what was brought");
    }
    way.vms.refuse("bring_disk", EngineError::Permanent("it is no disk".into()));
    std::fs::write(&file, "no disk").expect("a file");
    said.push(format!("{:?}", vm.bring_disk(&file, &disk).await));
    std::fs::remove_file(&file).expect("a file");
    if way.is_far {
        assert_eq!(way.vms.staged(), Vec::<String>::new(), "nor of what is none");
    }
    way.vms.allow("bring_disk");
    said.push(format!("{:?}", vm.remove_disk(disk.id).await));
    said
}

/// What is answered where something cannot be done: errors keep their kinds.
async fn refusals(way: &Way) -> Vec<String> {
    let mut said = Vec::new();
    let text = || "no room for \"it\"".to_owned();
    for error in [EngineError::Transient(text()), EngineError::Permanent(text()), EngineError::NoCapacity(text())] {
        way.vms.refuse("start", error.clone());
        let refused = way.vm.start(&spec()).await.expect_err("a refusal");
        assert_eq!(refused, error);
        said.push(format!("{refused:?}"));
    }
    way.vms.allow("start");
    said
}

async fn console(way: &Way) -> Vec<String> {
    let mut console = way.vm.console(VM).await.expect("a console");
    let typed = b"typed and said back ".repeat(1000);
    let (mut reading, mut writing) = tokio::io::split(&mut console);
    let mut heard = vec![0; typed.len()];
    let (written, read) = tokio::join!(writing.write_all(&typed), reading.read_exact(&mut heard));
    written.expect("bytes are taken");
    read.expect("bytes come");
    assert!(heard == typed, "it says back what is typed");
    Vec::new()
}

/// What is answered about a screen.
async fn screen(way: &Way) -> Vec<String> {
    let picture = way.vm.picture(VM).await.expect("a picture");
    assert!(picture.starts_with(b"\x89PNG") && picture.len() == 300_000, "all of it comes");
    let mut screen = way.vm.screen(VM).await.expect("a screen");
    screen.write_all(b"RFB 003.008\n").await.expect("bytes are taken");
    let mut heard = [0; 12];
    screen.read_exact(&mut heard).await.expect("bytes come");
    let none = EngineError::Permanent("there is none; restart it first".into());
    let mut said = vec![format!("{heard:?}")];
    for verb in ["screen", "picture"] {
        way.vms.refuse(verb, none.clone());
    }
    said.push(format!("{:?} {:?}", way.vm.screen(VM).await.err(), way.vm.picture(VM).await));
    for verb in ["screen", "picture"] {
        way.vms.allow(verb);
    }
    said
}

#[tokio::test]
async fn vms_are_run_the_same_in_process_and_by_bytes() {
    let asked = Asked::default();
    let (near, far) = (Way::near(), Way::far(&asked).await);
    assert_eq!(life(&near).await, life(&far).await);
    assert_eq!(shared_disks(&near).await, shared_disks(&far).await);
    assert_eq!(shared_snapshots(&near).await, shared_snapshots(&far).await);
    assert_eq!(snapshots(&near).await, snapshots(&far).await);
    assert_eq!(images(&near).await, images(&far).await);
    assert_eq!(exports(&near).await, exports(&far).await);
    assert_eq!(travels(&near).await, travels(&far).await);
    assert_eq!(brought(&near).await, brought(&far).await);
    assert_eq!(migrations(&near).await, migrations(&far).await);
    assert_eq!(refusals(&near).await, refusals(&far).await);
    assert_eq!(console(&near).await, console(&far).await);
    assert_eq!(screen(&near).await, screen(&far).await);
    let verbs = verbs(&asked);
    let own = [
        "stream.console",
        "stream.screen",
        "stream.picture",
        "stream.stage",
        "stream.exported",
        "stream.image_file",
        "stream.take",
        "stream.send",
        "stream.fill",
        "host.describe",
        "host.vm_capacity",
        "host.gpus",
        "host.ports_free",
    ];
    let own = own.into_iter().chain(["host.scan_vms"]);
    let all = vm::Ask::VERBS
        .iter()
        .chain(migration::Ask::VERBS)
        .chain(disk::Ask::VERBS)
        .chain(shared_disk::Ask::VERBS)
        .chain(shared_snapshot::Ask::VERBS)
        .chain(disk_snapshot::Ask::VERBS)
        .chain(image::Ask::VERBS)
        .chain(export::Ask::VERBS)
        .copied()
        .chain(own);
    let missing: Vec<_> = all.filter(|verb| !verbs.contains(verb)).collect();
    assert!(missing.is_empty(), "no scenario drives {missing:?}");
    // Whoever adds a noun or a verb of the host or of streams says here, in `sandboxes` or in `networks` which scenario
    // drives it.
    let elsewhere = crate::sandboxes::NOUNS.iter().chain(&crate::networks::NOUNS).flat_map(|verbs| verbs.iter());
    let known: std::collections::BTreeSet<_> = elsewhere.copied().chain(verbs).collect();
    let all = Ask::VERBS.iter().flat_map(|verbs| verbs.iter()).copied();
    let missing: Vec<_> = all.filter(|verb| !known.contains(verb)).collect();
    assert!(
        missing.is_empty(),
        "no scenario drives {missing:?} of {} and {}",
        host::Ask::VERBS.len(),
        stream::Ask::VERBS.len()
    );
}
