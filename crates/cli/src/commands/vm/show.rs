//! How VMs look.

use anyhow::Result;
use berth_client::{AttachedDisk, List, Operation, Vm};
use serde_json::Value;

use crate::context::Context;
use crate::output;

pub fn list(context: &Context, vms: &List<Vm>) -> Result<()> {
    if context.json {
        return output::json(vms);
    }
    let rows = vms.data.iter().map(|vm| {
        let size = vm.vm_config_id.clone();
        [
            vm.name.clone(),
            vm.status.clone(),
            size,
            vm.image_id.clone(),
            ssh(vm),
            output::age(&vm.created_at),
            vm.id.clone(),
        ]
    });
    let header = ["NAME", "STATUS", "SIZE", "IMAGE", "SSH", "AGE", "ID"];
    output::table(header, rows, "No VMs. Create one: berth vm create NAME");
    if vms.pagination.total_pages > 1 {
        let p = vms.pagination;
        eprintln!("Page {} of {}, {} VMs; more with --page", p.current_page, p.total_pages, p.total_items);
    }
    Ok(())
}

pub fn one(context: &Context, vm: &Vm) -> Result<()> {
    if context.json {
        return output::json(vm);
    }
    let ports = vm.exposed_ports.iter().map(|p| format!("{}/{}", p.port, p.protocol)).collect::<Vec<_>>();
    let labels = vm.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
    output::fields(&[
        ("name", vm.name.clone()),
        ("id", vm.id.clone()),
        ("status", vm.status.clone()),
        ("message", vm.message.clone().unwrap_or_default()),
        ("guest ready", if vm.guest_ready { "yes".into() } else { "not yet".into() }),
        ("ssh", ssh(vm)),
        ("ports", ports.join(" ")),
        ("size", vm.vm_config_id.clone()),
        ("image", vm.image_id.clone()),
        ("region", vm.region_id.clone()),
        ("plan", vm.plan_id.clone()),
        ("root disk", vm.root_disk.as_ref().map(disk).unwrap_or_default()),
        ("data disks", vm.data_disks.iter().map(disk).collect::<Vec<_>>().join(", ")),
        ("root disk goes", if vm.delete_root_disk { "with the VM".into() } else { String::new() }),
        ("restart policy", vm.restart_policy.clone()),
        ("labels", labels.join(" ")),
        ("created", vm.created_at.clone()),
        ("changed", vm.updated_at.clone()),
    ]);
    Ok(())
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

fn disk(disk: &AttachedDisk) -> String {
    format!("{} ({} GiB {}, {})", disk.name, disk.size_gb, disk.kind, disk.id)
}

pub fn operations(context: &Context, operations: &List<Operation>) -> Result<()> {
    if context.json {
        return output::json(operations);
    }
    let rows = operations
        .data
        .iter()
        .map(|o| [o.created_at.clone(), o.verb.clone(), o.status.clone(), output::or_dash(o.message.as_deref())]);
    output::table(["ASKED", "WHAT", "STATUS", "MESSAGE"], rows, "Nothing was asked of it yet.");
    Ok(())
}

pub fn metrics(context: &Context, metrics: &Value) -> Result<()> {
    if context.json {
        return output::json(metrics);
    }
    let series = |name: &str| metrics["series"][name].as_array().cloned().unwrap_or_default();
    let rows = series("cpu_percent").into_iter().zip(series("memory_bytes")).map(|(cpu, memory)| {
        let percent = cpu[1].as_f64().map_or_else(|| "-".into(), |v| format!("{v:.1} %"));
        let mib = memory[1].as_u64().map_or_else(|| "-".into(), |v| format!("{} MiB", v >> 20));
        [cpu[0].as_str().unwrap_or_default().to_owned(), percent, mib]
    });
    output::table(["TIME", "CPU", "MEMORY"], rows, "No figures yet.");
    Ok(())
}
