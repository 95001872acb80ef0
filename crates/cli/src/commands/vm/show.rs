//! Prints VMs.

use anyhow::Result;
use berth_client::{AttachedDisk, List, OpenPort, Operation, Vm};
use serde_json::Value;

use crate::commands::network::memberships;
use crate::context::Context;
use crate::output::{self, Table};

pub fn list(context: &Context, vms: &List<Vm>) -> Result<()> {
    output::list(context.look, vms, table)
}

/// VMs that were made with one command.
pub fn several(context: &Context, vms: &[Vm]) -> Result<()> {
    output::rows(context.look, &vms, |vms| table(vms))
}

fn table(vms: &[Vm]) -> Table {
    let rows = vms.iter().map(|vm| {
        let size = vm.vm_config_id.clone();
        [
            vm.name.clone(),
            vm.status.clone(),
            size,
            vm.image_id.clone(),
            ssh(vm),
            vm.expires_at.as_deref().map_or_else(|| "-".into(), output::left),
            output::age(&vm.created_at),
            vm.id.clone(),
        ]
    });
    // Of interest where one of them has an end.
    let ttl = if vms.iter().any(|vm| vm.expires_at.is_some()) { "TTL" } else { "+TTL" };
    let header = ["NAME", "STATUS", "SIZE", "+IMAGE", "SSH", ttl, "AGE", "ID"];
    Table::new(header, rows, "No VMs. Create one: berth vm create NAME")
}

pub fn one(context: &Context, vm: &Vm) -> Result<()> {
    output::record(context.look, vm, fields)
}

fn fields(vm: &Vm) -> Vec<(&'static str, String)> {
    let ports = vm.exposed_ports.iter().map(port).collect::<Vec<_>>();
    let labels = vm.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
    vec![
        ("name", vm.name.clone()),
        ("id", vm.id.clone()),
        ("status", vm.status.clone()),
        ("message", vm.message.clone().unwrap_or_default()),
        ("rescue", if vm.rescue { "yes; restart leaves it".into() } else { String::new() }),
        ("guest ready", guest(vm).into()),
        ("ssh", ssh(vm)),
        ("ports", ports.join(", ")),
        ("networks", memberships(&vm.networks)),
        ("size", vm.vm_config_id.clone()),
        ("gpus", if vm.gpu_config_count > 0 { vm.gpu_config_count.to_string() } else { String::new() }),
        ("image", vm.image_id.clone()),
        ("region", vm.region_id.clone()),
        ("host", vm.host_id.clone().unwrap_or_default()),
        ("plan", vm.plan_id.clone()),
        ("root disk", vm.root_disk.as_ref().map(disk).unwrap_or_default()),
        ("data disks", vm.data_disks.iter().map(disk).collect::<Vec<_>>().join(", ")),
        ("root disk goes", if vm.delete_root_disk { "with the VM".into() } else { String::new() }),
        ("restart policy", vm.restart_policy.clone()),
        ("expires", vm.expires_at.as_deref().map(output::time).unwrap_or_default()),
        ("labels", labels.join(" ")),
        ("created", output::time(&vm.created_at)),
        ("changed", output::time(&vm.updated_at)),
    ]
}

fn ssh(vm: &Vm) -> String {
    vm.ssh.as_ref().map_or_else(
        || "-".into(),
        |s| match s.port {
            22 => format!("{}@{}", s.user, s.host),
            port => format!("{}@{}:{port}", s.user, s.host),
        },
    )
}

/// Whether the guest has booted, for a VM that runs or is about to.
fn guest(vm: &Vm) -> &'static str {
    match vm.status.as_str() {
        _ if vm.guest_ready => "yes",
        "stopped" | "stopping" | "suspended" | "suspending" | "failed" | "deleting" | "deleted" => "",
        _ => "not yet",
    }
}

/// A port with the address for reaching it, in a form to type elsewhere.
fn port(port: &OpenPort) -> String {
    let inside = format!("{}/{}", port.port, port.protocol);
    match (&port.host, port.public_port) {
        (Some(host), Some(public)) if host.contains(':') => format!("{inside} at [{host}]:{public}"),
        (Some(host), Some(public)) => format!("{inside} at {host}:{public}"),
        _ => inside,
    }
}

fn disk(disk: &AttachedDisk) -> String {
    let place = disk.mount_path.as_ref().map(|path| format!(" at {path}")).unwrap_or_default();
    format!("{} ({} GiB {}{place}, {})", disk.name, disk.size_gb, disk.kind, disk.id)
}

pub fn operations(context: &Context, operations: &List<Operation>) -> Result<()> {
    output::list(context.look, operations, |operations| {
        let rows = operations.iter().map(|o| {
            let message = output::or_dash(o.message.as_deref());
            [output::age(&o.created_at), o.verb.clone(), o.status.clone(), message, o.id.clone()]
        });
        Table::new(["AGE", "WHAT", "STATUS", "MESSAGE", "+ID"], rows, "Nothing was asked of it yet.").cut()
    })
}

pub fn metrics(context: &Context, metrics: &Value) -> Result<()> {
    output::rows(context.look, metrics, figures)
}

fn figures(metrics: &Value) -> Table {
    let series = |name: &str| metrics["series"][name].as_array().cloned().unwrap_or_default();
    let rows = series("cpu_percent").into_iter().zip(series("memory_bytes")).map(|(cpu, memory)| {
        let percent = cpu[1].as_f64().map_or_else(|| "-".into(), |v| format!("{v:.1} %"));
        let mib = memory[1].as_u64().map_or_else(|| "-".into(), |v| format!("{} MiB", v >> 20));
        [output::time(cpu[0].as_str().unwrap_or_default()), percent, mib]
    });
    Table::new(["TIME", "CPU", "MEMORY"], rows, "No figures yet.")
}
