//! QEMU's command line for a sandbox.
//!
//! A capture only loads into a machine with the same devices in the same order, so what differs between
//! a boot and a load is the kernel alone: a load brings it along in its memory.

use std::ffi::OsString;

use serde_json::json;

use super::files::{AGENT, MEMORY};
use super::layer;
use super::spec::{Begin, Layer, Spec};
use crate::host::Release;
use crate::machine::arguments::{Args, jail, merged};
use crate::machine::{Accel, COMMANDS, NETWORK, devices};

/// What the ring of the console keeps. QEMU wants a power of two.
pub(super) const CONSOLE_BYTES: u32 = 64 << 10;

/// Emulation keeps at most so many MiB of translated code; QEMU's own default is a GiB.
const TRANSLATED: &str = "tcg,tb-size=64";

/// Without these an emulated guest is up to three times as fast: it copies memory by words instead of
/// bytes (erms, fsrm), and neither switches access to user memory on and off (smap, smep, pku) nor walks
/// a fifth level of tables (la57).
const EMULATED: &str = "max,-erms,-fsrm,-smap,-smep,-pku,-la57";

/// The arguments of a sandbox. Files of its folder are named relative to it.
pub fn arguments(spec: &Spec, release: Release) -> Vec<OsString> {
    let (accel, cpu) = match spec.accel {
        Accel::Kvm if spec.assigned.hides_hypervisor => ("kvm", "host,migratable=on,kvm=off"),
        Accel::Kvm => ("kvm", "host,migratable=on"),
        Accel::Tcg => (TRANSLATED, EMULATED),
    };
    let mut args = Args::default();
    args.flags("-nodefaults -no-user-config -display none -no-reboot -M q35,memory-backend=m0,usb=off");
    args.pair("-accel", accel).pair("-cpu", cpu);
    args.pair("-smp", spec.vcpus.to_string()).pair("-m", spec.memory_mb.to_string());
    args.pair("-name", "guest=sandbox,process=berth-sandbox").pair("-uuid", spec.id.to_string());
    // The file is others' memory, too. What the guest writes stays in the process, so it can be opened to be read.
    let access = if spec.reads_memory { ",readonly=on,rom=off" } else { "" };
    let memory = format!("memory-backend-file,id=m0,size={}M,mem-path={MEMORY},share=off{access}", spec.memory_mb);
    args.pair("-object", memory);
    // A capture holds no section that describes the machine: it is made of the devices' states alone.
    args.pair("-global", "migration.send-configuration=off");
    jail(&mut args, spec.jail.user, release);
    args.pair("-chardev", format!("socket,id=commands,path={COMMANDS},server=on,wait=off"));
    args.flags("-mon chardev=commands,mode=control");
    args.pair("-chardev", format!("ringbuf,id=console,size={CONSOLE_BYTES}"));
    args.flags("-device isa-serial,chardev=console");
    disk(&mut args, &spec.disk);
    args.flags("-device virtio-serial-pci,id=serial");
    args.pair("-chardev", format!("socket,id=agent,path={AGENT},server=on,wait=off"));
    args.flags("-device virtserialport,bus=serial.0,chardev=agent,name=berth.agent");
    // The card does not tell whether its other end is there: that would be news to every copy.
    args.pair("-netdev", format!("stream,id=n0,server=on,addr.type=unix,addr.path={NETWORK}"));
    args.pair("-device", format!("virtio-net-pci,netdev=n0,mac={},romfile=,status=off", spec.mac));
    for (option, device) in devices::behind_ports(&spec.assigned) {
        args.pair(option, device);
    }
    match &spec.begin {
        Begin::Boot { kernel, initrd, cmdline } => {
            args.pair("-kernel", kernel).pair("-initrd", initrd).pair("-append", cmdline.as_str());
        }
        Begin::Load { .. } => {
            // By itself it would run what it loaded at once, before that is noted and its card has an end.
            args.flags("-S -incoming defer");
        }
    }
    args.0
}

/// The layers from the lowest up, since each names the one below; what their headers name is not asked for. The guest's
/// flushes reach the host's memory, so that they survive the death of QEMU; a checkpoint is what makes them survive
/// that of the host. QEMU's locks are off: a machine that wrote to a layer keeps its lock on it when it becomes others'
/// base.
fn disk(args: &mut Args, layers: &[Layer]) {
    let mut below = None;
    for (index, layer) in layers.iter().enumerate().rev() {
        let (node, path) = (layer::node(layer.id), layer.path.to_string_lossy());
        let access = if index == 0 { json!({"discard": "unmap"}) } else { json!({"read-only": true}) };
        let file = json!({"driver": "file", "filename": path, "node-name": format!("f{node}"), "locking": "off",
                          "cache": {"no-flush": true}});
        let disk = json!({"driver": "qcow2", "file": format!("f{node}"), "node-name": node, "backing": below});
        args.pair("-blockdev", merged(&[&file, &access])).pair("-blockdev", merged(&[&disk, &access]));
        below = Some(node);
    }
    if let Some(top) = below {
        args.pair("-device", format!("virtio-blk-pci,drive={top},id=disk"));
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::machine::{Assigned, HostDevice, Jail};
    use crate::seed::Mac;

    #[test]
    fn devices_stand_behind_everything_that_a_capture_knows() {
        let boot = Begin::Boot { kernel: "/k".into(), initrd: "/i".into(), cmdline: "quiet".into() };
        let spec = Spec {
            id: Uuid::nil(),
            dir: "/m".into(),
            vcpus: 1,
            memory_mb: 256,
            disk: Vec::new(),
            mac: Mac([0x52, 0x54, 0, 1, 2, 3]),
            begin: boot,
            accel: Accel::Kvm,
            assigned: Assigned::default(),
            jail: Jail { user: Some(7), required: false },
            reads_memory: true,
            qemu: "/q".into(),
        };
        let line = |spec: &Spec| arguments(spec, (8, 2)).join(std::ffi::OsStr::new(" ")).into_string().unwrap();
        let without = line(&spec);
        assert!(!without.contains("vfio") && !without.contains("root-port"), "{without}");
        let part = HostDevice::Mediated("/sys/bus/mdev/devices/1-2".into());
        let devices = vec![HostDevice::Function("0000:01:00.0".into()), part];
        let assigned = Assigned { devices, hides_hypervisor: true, ..Assigned::default() };
        let with = line(&Spec { assigned, ..spec });
        let ports = "romfile=,status=off -device pcie-root-port,id=gpu1,bus=pcie.0,chassis=101,slot=101 \
            -device vfio-pci,host=0000:01:00.0,bus=gpu1,addr=0.0 \
            -device pcie-root-port,id=gpu2,bus=pcie.0,chassis=102,slot=102 \
            -device vfio-pci,sysfsdev=/sys/bus/mdev/devices/1-2,bus=gpu2,addr=0.0 -kernel /k";
        assert!(with.contains(ports) && with.contains("migratable=on,kvm=off"), "{with}");
    }
}
