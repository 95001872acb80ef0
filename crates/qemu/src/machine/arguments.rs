//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::drive::{self, SERVED};
use super::files::{COMMANDS, CONSOLE, CONSOLE_LOG, EVENTS, MAPPED, READY_LOG};
use super::spec::{Accel, Boot, Drive, Mapped, Spec};
use super::{card, devices, guest};
use crate::host::Release;
use crate::launch::FIRST;

/// Where distributions keep the UEFI firmware.
const UEFI: [&str; 3] = ["/usr/share/ovmf/OVMF.fd", "/usr/share/OVMF/OVMF.fd", "/usr/share/qemu/OVMF.fd"];

/// Every feature but those that an emulated processor is slower with: copying by bytes, which a kernel takes
/// for fast (erms, fsrm), and a fifth level of tables (la57).
const EMULATED: &str = "max,-erms,-fsrm,-la57";

/// What the kernel of an emulated machine is told beside its image's words: a page of 2 MiB, which a program touches a part of,
/// takes an emulated processor longer to clear than it saves, and the host its memory.
const EMULATED_KERNEL: &str = "transparent_hugepage=madvise";

/// The node of the root disk, and that of the image that it is a clone of.
const ROOT: &str = "d0";
const BASE: &str = "base";
/// The node of the image that the root disk of a system is a clone of that is rescued.
const RESCUED_BASE: &str = "rescued-base";
/// What QEMU calls a machine's memory (QEMU, hw/i386/pc.c: `default_ram_id`).
const RAM: &str = "pc.ram";
/// What a place for a data disk is called before its number: a port that a guest sees something come to and leave.
pub(super) const PLACE: &str = "place";

/// What QEMU calls a data disk's node, by what the guest knows the disk by; that of its file has [`FILE`] behind it. Together
/// they have 30 characters, of 31 that are allowed.
pub(super) fn node_of(serial: &str) -> String {
    format!("disk-{serial}")
}

/// What QEMU calls a data disk's device.
pub(super) fn device_of(serial: &str) -> String {
    format!("data-{serial}")
}

/// What stands behind the name of a node in that of its file.
pub(super) const FILE: &str = "-file";

/// The arguments of a machine. Files of its folder are named relative to it.
pub fn arguments(spec: &Spec, release: Release) -> Vec<OsString> {
    let (accel, cpu) = match spec.accel {
        // As libvirt hides it (`<kvm><hidden state="on"/>`).
        Accel::Kvm if spec.assigned.hides_hypervisor => ("kvm".to_owned(), "host,kvm=off"),
        Accel::Kvm => ("kvm".to_owned(), "host"),
        Accel::Tcg => (format!("tcg,tb-size={}", spec.translated_mb), EMULATED),
    };
    let mut args = Args::default();
    args.flags("-nodefaults -no-user-config -display none");
    memory(&mut args, spec, release);
    args.pair("-accel", accel).pair("-cpu", cpu);
    args.pair("-smp", spec.vcpus.to_string()).pair("-m", spec.memory_mb.to_string());
    args.pair("-name", format!("guest={},process=berth-vm", escape(&spec.name)));
    args.pair("-uuid", spec.id.to_string());
    // A guest that powers off or panics leaves its process, so that it can be told from one that died.
    args.flags("-action shutdown=pause,panic=pause");
    for (id, name) in [("commands", COMMANDS), ("events", EVENTS)] {
        args.pair("-chardev", format!("socket,id={id},path={name},server=on,wait=off"));
        args.pair("-mon", format!("chardev={id},mode=control"));
    }
    args.pair(
        "-chardev",
        format!("socket,id=console,path={CONSOLE},server=on,wait=off,logfile={CONSOLE_LOG},logappend=on"),
    );
    args.pair("-chardev", format!("file,id=ready,path={READY_LOG},append=on"));
    args.flags("-device isa-serial,chardev=console -device isa-serial,chardev=ready");
    boot(&mut args, &spec.boot, spec.accel);
    own(&mut args, spec, ROOT, &spec.root);
    device(&mut args, ROOT, &spec.root, "");
    let seed = Drive { path: spec.seed.clone(), format: "raw", bases: Vec::new(), serial: "seed".into() };
    drive(&mut args, "d1", &seed, true);
    device(&mut args, "d1", &seed, "");
    args.pair("-netdev", spec.link.option());
    let card = format!("virtio-net-pci,netdev=n0,mac={},host_mtu={},romfile=", spec.mac, spec.mtu);
    args.pair("-device", card);
    args.flags("-device virtio-rng-pci");
    data_disks(&mut args, spec);
    for (flag, option) in devices::options(spec) {
        args.pair(flag, option);
    }
    for (flag, option) in guest::options(spec).into_iter().chain(card::options(spec)) {
        args.pair(flag, option);
    }
    if spec.memory.is_some() || matches!(spec.mapped, Some(Mapped::Captured(_))) {
        // Whatever comes, it stands still until it is told to go on.
        args.flags("-S -incoming defer");
    }
    jail(&mut args, spec.jail.user, release);
    args.0
}

/// The first release that is told its root folder by `-run-with`; 9.0 knows it by no other name (QEMU,
/// docs/about/removed-features.rst).
const RUNS_WITH_ROOT: Release = (8, 1);
/// The first release that is told its user so; 10.0 knows it by no other name.
const RUNS_WITH_USER: Release = (9, 1);

/// QEMU opens what it needs, then gives up its user and its root folder. It has to be let do so by its filter;
/// once it is nobody, the kernel refuses what the filter would.
pub(crate) fn jail(args: &mut Args, user: Option<u32>, release: Release) {
    let privileges = if user.is_some() { "allow" } else { "deny" };
    let filter = format!("on,obsolete=deny,elevateprivileges={privileges},spawn=deny,resourcecontrol=deny");
    args.pair("-sandbox", filter);
    if let Some(user) = user {
        match release {
            release if release >= RUNS_WITH_USER => args.pair("-run-with", format!("chroot=.,user={user}:{user}")),
            release if release >= RUNS_WITH_ROOT => {
                args.pair("-run-with", "chroot=.").pair("-runas", format!("{user}:{user}"))
            }
            _ => args.pair("-chroot", ".").pair("-runas", format!("{user}:{user}")),
        };
    }
}

/// The first release that maps a file privately that it may only read.
const READS: Release = (8, 2);

/// Whether this QEMU opens a memory that is others', too, to read alone.
pub(super) fn reads(release: Release) -> bool {
    release >= READS
}

/// The kind of machine, and its memory. A file has the name that a machine's memory has anyway, so that what is saved of
/// the one loads into the other.
fn memory(args: &mut Args, spec: &Spec, release: Release) {
    let Some(mapped) = &spec.mapped else {
        args.flags("-M q35");
        return;
    };
    let access = match mapped {
        Mapped::Written => "share=on",
        Mapped::Captured(_) if reads(release) => "share=off,readonly=on,rom=off",
        Mapped::Captured(_) => "share=off",
    };
    let file = format!("memory-backend-file,id={RAM},size={}M,mem-path={MAPPED},{access}", spec.memory_mb);
    args.pair("-object", file).pair("-M", format!("q35,memory-backend={RAM}"));
}

fn boot(args: &mut Args, boot: &Boot, accel: Accel) {
    match boot {
        Boot::Kernel { kernel, initrd, cmdline } => {
            let told = match accel {
                Accel::Kvm => cmdline.clone(),
                Accel::Tcg => format!("{cmdline} {EMULATED_KERNEL}"),
            };
            args.pair("-kernel", kernel).pair("-initrd", initrd).pair("-append", told);
        }
        Boot::Bios => {}
        Boot::Uefi => {
            let firmware = UEFI.into_iter().find(|path| Path::new(path).is_file()).unwrap_or(UEFI[0]);
            args.pair("-bios", firmware);
        }
    }
}

/// Places for data disks, and those that it has from its start on. They come last, so that no other device has another
/// address for them.
fn data_disks(args: &mut Args, spec: &Spec) {
    for place in 0..spec.places.max(spec.drives.len()) {
        let number = place + 1;
        args.pair("-device", format!("pcie-root-port,id={PLACE}{place},chassis={number},slot={number}"));
    }
    if matches!(spec.mapped, Some(Mapped::Captured(_))) {
        // They come to it as to a machine that runs.
        return;
    }
    for (next, data) in spec.drives.iter().enumerate() {
        let place = spec.memory.as_ref().map_or(Some(&next), |memory| memory.places.get(&data.serial)).unwrap_or(&next);
        let node = node_of(&data.serial);
        own(args, spec, &node, data);
        device(args, &node, data, &format!(",bus={PLACE}{place},id={}", device_of(&data.serial)));
    }
}

fn device(args: &mut Args, node: &str, drive: &Drive, more: &str) {
    args.pair("-device", format!("virtio-blk-pci,drive={node},serial={}{more}", escape(&drive.serial)));
}

/// A disk of a machine's own.
fn own(args: &mut Args, spec: &Spec, top: &str, disk: &Drive) {
    let Some(before) = drive::served(spec).position(|served| served.serial == disk.serial) else {
        return drive(args, top, disk, false);
    };
    let number = (FIRST..).nth(spec.link.given().len() + before).unwrap_or(FIRST);
    for node in served(top, &number.to_string()) {
        args.pair("-blockdev", node.to_string());
    }
}

/// The nodes of a disk that is served over a socket which QEMU has by a name or a number.
pub(super) fn served(top: &str, socket: &str) -> [Value; 2] {
    let (server, below) = (json!({"type": "fd", "str": socket}), format!("{top}{FILE}"));
    [
        json!({"driver": SERVED, "server": server, "node-name": below, "discard": "unmap"}),
        json!({"driver": "raw", "file": below, "node-name": top, "discard": "unmap"}),
    ]
}

/// A disk, and what it lies on where it does. What a disk's header says of other files is not asked for.
fn drive(args: &mut Args, top: &str, drive: &Drive, read_only: bool) {
    let mut below = if drive.format == "qcow2" { json!({"backing": null}) } else { json!({}) };
    for (depth, base) in drive.bases.iter().enumerate().rev() {
        let name = base_of(top, depth);
        node(args, &name, base, "qcow2", true, &below);
        below = json!({"backing": name});
    }
    node(args, top, &drive.path, drive.format, read_only, &below);
}

/// The node of what a disk lies on, so many files below the nearest. Of a machine's disks at most one beside the root disk
/// lies on others: the root disk of a system that is rescued.
pub(super) fn base_of(top: &str, depth: usize) -> String {
    let name = if top == ROOT { BASE } else { RESCUED_BASE };
    if depth == 0 { name.to_owned() } else { format!("{name}{depth}") }
}

fn node(args: &mut Args, name: &str, path: &Path, format: &str, read_only: bool, more: &Value) {
    let access = if read_only { json!({"read-only": true}) } else { json!({"discard": "unmap"}) };
    let file = json!({"driver": "file", "filename": path.to_string_lossy(), "node-name": format!("{name}{FILE}")});
    let disk = json!({"driver": format, "node-name": name, "file": format!("{name}{FILE}")});
    args.pair("-blockdev", merged(&[&file, &access])).pair("-blockdev", merged(&[&disk, &access, more]));
}

/// One object of several.
pub(crate) fn merged(parts: &[&Value]) -> String {
    let all = parts.iter().filter_map(|part| part.as_object()).flatten();
    Value::Object(all.map(|(key, value)| (key.clone(), value.clone())).collect()).to_string()
}

/// A value within an option: its commas doubled.
pub(crate) fn escape(text: &str) -> String {
    text.replace(',', ",,")
}

/// A command line under construction.
#[derive(Default)]
pub(crate) struct Args(pub(crate) Vec<OsString>);

impl Args {
    pub(crate) fn flags(&mut self, text: &str) -> &mut Self {
        self.0.extend(text.split(' ').map(OsString::from));
        self
    }

    pub(crate) fn pair(&mut self, flag: &str, value: impl Into<Text>) -> &mut Self {
        self.0.push(flag.into());
        self.0.push(value.into().0);
        self
    }
}

/// What follows a flag.
pub(crate) struct Text(OsString);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&PathBuf> for Text {
    fn from(path: &PathBuf) -> Self {
        Self(path.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::Link;
    use super::super::spec::{Assigned, Captured, Fits, HostDevice, Jail};
    use super::*;
    use crate::seed::Mac;
    use uuid::Uuid;

    fn spec() -> Spec {
        let disk = |path: &str, serial: &str| Drive {
            path: path.into(),
            format: "qcow2",
            bases: if serial == "root" { vec!["/base.qcow2".into()] } else { Vec::new() },
            serial: serial.into(),
        };
        Spec {
            id: Uuid::nil(),
            name: "web".into(),
            dir: "/m".into(),
            vcpus: 2,
            memory_mb: 512,
            boot: Boot::Kernel { kernel: "/k".into(), initrd: "/i".into(), cmdline: "a=b,c root=/dev/vda".into() },
            root: disk("/a,b/root.qcow2", "root"),
            seed: "/m/seed.iso".into(),
            drives: vec![disk("/d", "0123456789abcdef0123")],
            places: 2,
            served: Vec::new(),
            assigned: Assigned::default(),
            mac: Mac([0x52, 0x54, 0, 1, 2, 3]),
            link: Link::Socket,
            mtu: 1500,
            accel: Accel::Tcg,
            translated_mb: 96,
            jail: Jail { user: Some(7), required: false },
            memory: None,
            mapped: None,
            qemu: "/q".into(),
        }
    }

    fn line(spec: &Spec) -> String {
        arguments(spec, (7, 2)).join(std::ffi::OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn devices_stand_behind_ports_and_bring_what_they_need() {
        let device = |address: &str| HostDevice::Function(address.into());
        let devices = ["0000:01:00.0", "0000:01:00.1", "0000:02:00.0"].map(device).into();
        let with = Spec { assigned: Assigned { devices, ..Assigned::default() }, accel: Accel::Kvm, ..spec() };
        let text = line(&with);
        let ports = "-device pcie-root-port,id=gpu1,bus=pcie.0,chassis=101,slot=101 \
            -device vfio-pci,host=0000:01:00.0,bus=gpu1,addr=0.0,multifunction=on \
            -device vfio-pci,host=0000:01:00.1,bus=gpu1,addr=0.1 \
            -device pcie-root-port,id=gpu2,bus=pcie.0,chassis=102,slot=102 \
            -device vfio-pci,host=0000:02:00.0,bus=gpu2,addr=0.0 -chardev socket,id=guest,";
        assert!(text.contains(ports), "{text}");
        assert!(text.contains("-cpu host -smp") && !text.contains("-fw_cfg") && !text.contains("x-no-mmap"), "{text}");
        let needy = Assigned { hides_hypervisor: true, window_mb: Some(262_144), ..with.assigned.clone() };
        let text = line(&Spec { assigned: needy.clone(), ..with.clone() });
        assert!(text.contains("-cpu host,kvm=off -smp"), "{text}");
        assert!(!text.contains("-fw_cfg"), "its BIOS finds room itself");
        let text = line(&Spec { assigned: needy, boot: Boot::Uefi, ..with.clone() });
        assert!(text.contains("-fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=262144"), "{text}");
        assert_eq!(devices::locked_bytes(&with.assigned, 512), Some((512 + 1024) << 20));
        assert_eq!(devices::locked_bytes(&spec().assigned, 512), None);
        assert!(!line(&spec()).contains("vfio"));
    }

    #[test]
    fn a_served_disk_is_a_socket_that_qemu_begins_with() {
        let served =
            |serial: &str| Drive { path: "/s".into(), format: SERVED, bases: Vec::new(), serial: serial.into() };
        let text = line(&Spec { root: served("root"), drives: vec![served("a"), served("b")], ..spec() });
        for (node, number) in [("d0", 3), ("disk-a", 4), ("disk-b", 5)] {
            let below = format!(r#""node-name":"{node}-file","server":{{"str":"{number}","type":"fd"}}"#);
            assert!(text.contains(&below), "{text}");
            assert!(text.contains(&format!(r#""file":"{node}-file","node-name":"{node}""#)), "{text}");
        }
        assert!(!text.contains("\"/s\""), "{text}");
    }

    #[test]
    fn parts_of_devices_stand_alone() {
        let parts = ["0000:41:00.4", "0000:41:00.5"].map(|address| HostDevice::Virtual(address.into()));
        let mediated = ["/sys/bus/mdev/devices/1-2", "/sys/a,b"].map(|folder| HostDevice::Mediated(folder.into()));
        let devices = parts.into_iter().chain(mediated).collect();
        let text = line(&Spec { assigned: Assigned { devices, ..Assigned::default() }, ..spec() });
        let expected =
            ["host=0000:41:00.4", "host=0000:41:00.5", "sysfsdev=/sys/bus/mdev/devices/1-2", "sysfsdev=/sys/a,,b"];
        for (index, which) in (1..).zip(expected) {
            let port = format!(
                "-device pcie-root-port,id=gpu{index},bus=pcie.0,chassis=10{index},slot=10{index} \
                 -device vfio-pci,{which},bus=gpu{index},addr=0.0 -"
            );
            assert!(text.contains(&port), "{port}: {text}");
        }
    }

    #[test]
    fn screen_and_agent_stand_behind_everything_and_a_memory_without_them_has_none() {
        let screen =
            "-device VGA,id=screen,bus=pcie.0,addr=0x1e,vgamem_mb=8 -vnc unix:screen.sock,share=ignore,connections=8";
        let text = line(&spec());
        assert!(text.contains(&format!("{screen} -sandbox")), "{text}");
        let older: Fits =
            serde_json::from_str(r#"{"processor": "tcg", "qemu": [7, 2], "places": {}, "disks": {}}"#).unwrap();
        let text = line(&Spec { memory: Some(older.clone()), ..spec() });
        assert!(!text.contains("VGA") && !text.contains("-vnc"), "{text}");
        assert!(!text.contains("guest.sock") && !text.contains("serial-pci"), "{text}");
        let text = line(&Spec { memory: Some(Fits { has_screen: true, ..older.clone() }), ..spec() });
        assert!(text.contains(screen) && !text.contains("serial-pci"), "{text}");
        let agent = "-chardev socket,id=guest,path=guest.sock,server=on,wait=off \
            -device virtio-serial-pci,id=guest,bus=pcie.0,addr=0x1d,max_ports=2 \
            -device virtserialport,bus=guest.0,chardev=guest,name=org.qemu.guest_agent.0 -";
        let text = line(&Spec { memory: Some(Fits { has_guest_port: true, ..older }), ..spec() });
        assert!(text.contains(agent) && !text.contains("VGA"), "{text}");
    }

    #[test]
    fn a_second_clone_has_a_base_of_its_own() {
        let mut with = spec();
        with.drives[0].bases = vec!["/other.qcow2".into()];
        let text = line(&with);
        for part in [
            r#"{"driver":"file","filename":"/other.qcow2","node-name":"rescued-base-file","read-only":true}"#,
            r#"{"backing":"rescued-base","discard":"unmap","driver":"qcow2","file":"disk-0123456789abcdef0123-file""#,
            r#"{"backing":"base","discard":"unmap","driver":"qcow2","file":"d0-file","node-name":"d0"}"#,
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }

    #[test]
    fn commas_and_order() {
        let text = line(&spec());
        for part in [
            "-accel tcg,tb-size=96 -cpu max,-erms,-fsrm,-la57 -smp 2 -m 512",
            "-append a=b,c root=/dev/vda transparent_hugepage=madvise -",
            r#"{"driver":"file","filename":"/base.qcow2","node-name":"base-file","read-only":true}"#,
            r#"{"backing":null,"driver":"qcow2","file":"base-file","node-name":"base","read-only":true}"#,
            r#"{"discard":"unmap","driver":"file","filename":"/a,b/root.qcow2","node-name":"d0-file"}"#,
            r#"{"backing":"base","discard":"unmap","driver":"qcow2","file":"d0-file","node-name":"d0"}"#,
            r#"{"driver":"raw","file":"d1-file","node-name":"d1","read-only":true}"#,
            r#""file":"disk-0123456789abcdef0123-file","node-name":"disk-0123456789abcdef0123"}"#,
            "virtio-blk-pci,drive=disk-0123456789abcdef0123,serial=0123456789abcdef0123,bus=place0,id=data-0123456789abcdef0123",
            "virtio-blk-pci,drive=d0,serial=root -blockdev",
            "pcie-root-port,id=place0,chassis=1,slot=1 -device pcie-root-port,id=place1,chassis=2,slot=2",
            "stream,id=n0,server=on,addr.type=unix,addr.path=net.sock",
            "virtio-net-pci,netdev=n0,mac=52:54:00:01:02:03,host_mtu=1500,romfile=",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.contains("elevateprivileges=allow") && text.ends_with("-chroot . -runas 7:7"), "{text}");
        let mut args = Args::default();
        jail(&mut args, None, (10, 0));
        let text = args.0.join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        assert!(text.contains("elevateprivileges=deny") && !text.contains("-run"), "{text}");
    }

    #[test]
    fn a_memory_that_is_a_file_has_the_name_of_any_other() {
        let captured = Captured { memory: "/m".into(), state: "/s".into(), root_bytes: 0 };
        for (mapped, release, access) in [
            (Mapped::Written, (7, 2), "share=on"),
            (Mapped::Captured(captured.clone()), (7, 2), "share=off"),
            (Mapped::Captured(captured), (8, 2), "share=off,readonly=on,rom=off"),
        ] {
            let loads = matches!(mapped, Mapped::Captured(_));
            let with = Spec { mapped: Some(mapped), ..spec() };
            let text = arguments(&with, release).join(std::ffi::OsStr::new(" ")).into_string().unwrap();
            let memory = "-object memory-backend-file,id=pc.ram,size=512M,mem-path=memory,";
            assert!(text.contains(&format!("{memory}{access} -M q35,memory-backend=pc.ram -accel")), "{text}");
            assert_eq!(text.contains("-incoming defer"), loads, "{text}");
            assert_eq!(text.contains("drive=disk-"), !loads, "{text}");
            assert!(text.contains("id=place1,chassis=2,slot=2"), "{text}");
        }
        assert!(line(&spec()).contains("-M q35 -accel"));
    }

    #[test]
    fn each_release_is_told_its_user_and_root_as_it_knows_them() {
        let told = |release| {
            let mut args = Args::default();
            jail(&mut args, Some(7), release);
            args.0[2..].join(std::ffi::OsStr::new(" ")).into_string().unwrap()
        };
        for release in [(0, 0), (7, 2), (8, 0)] {
            assert_eq!(told(release), "-chroot . -runas 7:7");
        }
        assert_eq!([told((8, 1)), told((9, 0))], ["-run-with chroot=. -runas 7:7"; 2]);
        assert_eq!([told((9, 1)), told((10, 0))], ["-run-with chroot=.,user=7:7"; 2]);
    }
}
