//! QEMU's command line for a sandbox.
//!
//! A capture only loads into a machine with the same devices in the same order, so what differs between
//! a boot and a load is the kernel alone: a load brings it along in its memory.

use std::ffi::OsString;

use super::files::{AGENT, MEMORY, NETWORK};
use super::layer;
use super::spec::{Begin, Layer, Spec};
use crate::machine::arguments::{Args, escape};
use crate::machine::{Accel, COMMANDS, PID};

/// What the ring of the console keeps. QEMU wants a power of two.
pub(super) const CONSOLE_BYTES: u32 = 64 << 10;

/// Emulation keeps at most so many MiB of translated code; QEMU's own default is a GiB.
const TRANSLATED: &str = "tcg,tb-size=64";

/// Without these an emulated guest is up to three times as fast: it copies memory by words instead of
/// bytes (erms, fsrm), and neither switches access to user memory on and off (smap, smep, pku) nor walks
/// a fifth level of tables (la57).
const EMULATED: &str = "max,-erms,-fsrm,-smap,-smep,-pku,-la57";

/// The arguments of a sandbox. Files of its folder are named relative to it.
pub fn arguments(spec: &Spec) -> Vec<OsString> {
    let (accel, cpu) = match spec.accel {
        Accel::Kvm => ("kvm", "host,migratable=on"),
        Accel::Tcg => (TRANSLATED, EMULATED),
    };
    let mut args = Args::default();
    args.flags("-nodefaults -no-user-config -display none -no-reboot -M q35,memory-backend=m0,usb=off");
    args.pair("-accel", accel).pair("-cpu", cpu);
    args.pair("-smp", spec.vcpus.to_string()).pair("-m", spec.memory_mb.to_string());
    args.pair("-name", "guest=sandbox,process=berth-sandbox").pair("-uuid", spec.id.to_string()).pair("-pidfile", PID);
    let memory = format!("memory-backend-file,id=m0,size={}M,mem-path={MEMORY},share=off", spec.memory_mb);
    args.pair("-object", memory);
    // A capture holds no section that describes the machine: it is made of the devices' states alone.
    args.pair("-global", "migration.send-configuration=off");
    jail(&mut args, spec.jail);
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
    match &spec.begin {
        Begin::Boot { kernel, initrd, cmdline } => {
            args.pair("-kernel", kernel).pair("-initrd", initrd).pair("-append", cmdline.as_str());
        }
        Begin::Load { .. } => {
            args.flags("-incoming defer");
        }
    }
    args.0
}

/// QEMU opens what it needs, then gives up its user and its root folder. It has to be let do so by its filter;
/// once it is nobody, the kernel refuses what the filter would.
fn jail(args: &mut Args, user: Option<u32>) {
    let privileges = if user.is_some() { "allow" } else { "deny" };
    let filter = format!("on,obsolete=deny,elevateprivileges={privileges},spawn=deny,resourcecontrol=deny");
    args.pair("-sandbox", filter);
    if let Some(user) = user {
        args.pair("-chroot", ".").pair("-runas", format!("{user}:{user}"));
    }
}

/// The layers from the lowest up, since each names the one below. The guest's flushes reach the host's
/// memory, so that they survive the death of QEMU; a cut is what makes them survive that of the host. QEMU's locks
/// are off: a machine that wrote to a layer keeps its lock on it when it becomes others' base.
fn disk(args: &mut Args, layers: &[Layer]) {
    let mut below = None;
    for (index, layer) in layers.iter().enumerate().rev() {
        let (node, path) = (layer::node(layer.id), escape(&layer.path.to_string_lossy()));
        let access = if index == 0 { "discard=unmap" } else { "read-only=on" };
        args.pair(
            "-blockdev",
            format!("driver=file,filename={path},node-name=f{node},cache.no-flush=on,locking=off,{access}"),
        );
        let backing = below.map_or_else(String::new, |below| format!(",backing={below}"));
        args.pair("-blockdev", format!("driver=qcow2,file=f{node},node-name={node},{access}{backing}"));
        below = Some(node);
    }
    if let Some(top) = below {
        args.pair("-device", format!("virtio-blk-pci,drive={top},id=disk"));
    }
}
