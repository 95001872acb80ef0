//! QEMU's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::files::{COMMANDS, CONSOLE, CONSOLE_LOG, EVENTS, PID, READY_LOG};
use super::spec::{Accel, Boot, Drive, Forward, Protocol, Spec};

/// Where distributions keep the UEFI firmware.
const UEFI: [&str; 3] = ["/usr/share/ovmf/OVMF.fd", "/usr/share/OVMF/OVMF.fd", "/usr/share/qemu/OVMF.fd"];

/// Every feature but those that an emulated processor is slower with: copying by bytes, which a kernel takes
/// for fast (erms, fsrm), and a fifth level of tables (la57).
const EMULATED: &str = "max,-erms,-fsrm,-la57";

/// The arguments of a machine. Files of its folder are named relative to it.
pub fn arguments(spec: &Spec) -> Vec<OsString> {
    let (accel, cpu) = match spec.accel {
        Accel::Kvm => ("kvm", "host"),
        Accel::Tcg => ("tcg", EMULATED),
    };
    let mut args = Args::default();
    args.flags("-nodefaults -no-user-config -display none -M q35");
    args.pair("-accel", accel).pair("-cpu", cpu);
    args.pair("-smp", spec.vcpus.to_string()).pair("-m", spec.memory_mb.to_string());
    args.pair("-name", format!("guest={},process=berth-vm", escape(&spec.name)));
    args.pair("-uuid", spec.id.to_string()).pair("-pidfile", PID);
    args.flags("-sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
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
    boot(&mut args, &spec.boot);
    drive(&mut args, 0, &spec.root, "discard=unmap");
    let seed = Drive { path: spec.seed.clone(), format: "raw", serial: "seed".into() };
    drive(&mut args, 1, &seed, "readonly=on");
    for (index, data) in spec.drives.iter().enumerate() {
        drive(&mut args, index + 2, data, "discard=unmap");
    }
    args.pair("-netdev", netdev(&spec.forwards));
    args.pair("-device", format!("virtio-net-pci,netdev=n0,mac={},romfile=", spec.mac));
    args.flags("-device virtio-rng-pci");
    args.0
}

fn boot(args: &mut Args, boot: &Boot) {
    match boot {
        Boot::Kernel { kernel, initrd, cmdline } => {
            args.pair("-kernel", kernel).pair("-initrd", initrd).pair("-append", cmdline.as_str());
        }
        Boot::Bios => {}
        Boot::Uefi => {
            let firmware = UEFI.into_iter().find(|path| Path::new(path).is_file()).unwrap_or(UEFI[0]);
            args.pair("-bios", firmware);
        }
    }
}

fn drive(args: &mut Args, index: usize, drive: &Drive, options: &str) {
    let path = escape(&drive.path.to_string_lossy());
    args.pair("-drive", format!("if=none,id=d{index},file={path},format={},{options}", drive.format));
    args.pair("-device", format!("virtio-blk-pci,drive=d{index},serial={}", escape(&drive.serial)));
}

fn netdev(forwards: &[Forward]) -> String {
    forwards.iter().fold("user,id=n0,ipv6=off".to_owned(), |text, forward| format!("{text},hostfwd={}", rule(forward)))
}

/// A forward as QEMU writes it.
pub(super) fn rule(forward: &Forward) -> String {
    let protocol = match forward.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    format!("{protocol}:{}:{}-:{}", forward.address, forward.host_port, forward.guest_port)
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

    pub(crate) fn pair(&mut self, flag: &str, value: impl Into<Value>) -> &mut Self {
        self.0.push(flag.into());
        self.0.push(value.into().0);
        self
    }
}

/// What follows a flag.
pub(crate) struct Value(OsString);

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&PathBuf> for Value {
    fn from(path: &PathBuf) -> Self {
        Self(path.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Mac;
    use std::net::Ipv4Addr;
    use uuid::Uuid;

    #[test]
    fn commas_and_order() {
        let disk = |path: &str, serial: &str| Drive { path: path.into(), format: "qcow2", serial: serial.into() };
        let address = Ipv4Addr::new(127, 64, 0, 1);
        let forward = |protocol, port| Forward { protocol, address, host_port: port, guest_port: port };
        let spec = Spec {
            id: Uuid::nil(),
            name: "web".into(),
            dir: "/m".into(),
            vcpus: 2,
            memory_mb: 512,
            boot: Boot::Kernel { kernel: "/k".into(), initrd: "/i".into(), cmdline: "a=b,c root=/dev/vda".into() },
            root: disk("/a,b/root.qcow2", "root"),
            seed: "/m/seed.iso".into(),
            drives: vec![disk("/d", "0123456789abcdef0123")],
            mac: Mac([0x52, 0x54, 0, 1, 2, 3]),
            forwards: vec![forward(Protocol::Tcp, 22), forward(Protocol::Udp, 53)],
            accel: Accel::Tcg,
            qemu: "/q".into(),
        };
        let text = arguments(&spec).join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        for part in [
            "-accel tcg -cpu max,-erms,-fsrm,-la57 -smp 2 -m 512",
            "-append a=b,c root=/dev/vda",
            "if=none,id=d0,file=/a,,b/root.qcow2,format=qcow2,discard=unmap",
            "if=none,id=d1,file=/m/seed.iso,format=raw,readonly=on",
            "virtio-blk-pci,drive=d2,serial=0123456789abcdef0123",
            "user,id=n0,ipv6=off,hostfwd=tcp:127.64.0.1:22-:22,hostfwd=udp:127.64.0.1:53-:53",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
