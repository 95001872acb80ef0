//! Prints sandboxes and their snapshots.

use std::collections::BTreeMap;

use anyhow::Result;
use berth_client::{List, NetworkPolicy, Page, ProjectClient, Sandbox, Snapshot};
use serde_json::Value;

use super::durable;
use crate::commands::network::memberships;
use crate::context::Context;
use crate::id::short;
use crate::output::{self, Table};
use crate::progress::called;

/// A list, with the names of templates by their ids.
pub fn list(context: &Context, sandboxes: &List<Sandbox>, templates: &Names) -> Result<()> {
    output::list(context.look, sandboxes, |sandboxes| table(sandboxes, templates))
}

/// Names by ids.
pub type Names = BTreeMap<String, String>;

/// The names of templates, for people.
pub async fn templates(context: &Context, project: &ProjectClient) -> Result<Names> {
    if context.is_quiet() {
        return Ok(Names::new());
    }
    let templates = project.templates(Page::default()).await?;
    Ok(templates.data.into_iter().map(|template| (template.id, template.name)).collect())
}

/// Several, one on each line.
pub fn table(sandboxes: &[Sandbox], templates: &Names) -> Table {
    let rows = sandboxes.iter().map(|sandbox| {
        [
            output::or_dash(sandbox.name.as_deref()),
            sandbox.phase.clone(),
            origin(sandbox, templates),
            output::age(&sandbox.created_at),
            sandbox.id.clone(),
        ]
    });
    Table::new(["NAME", "PHASE", "OF", "AGE", "ID"], rows, "No sandboxes. Create one: berth sandbox create")
}

fn origin(sandbox: &Sandbox, templates: &Names) -> String {
    match (&sandbox.snapshot_id, &sandbox.template_id) {
        (Some(snapshot), _) => format!("snapshot {}", short(snapshot)),
        (None, Some(template)) => templates.get(template).unwrap_or(template).clone(),
        (None, None) => "-".into(),
    }
}

/// One sandbox, with its template's name for people.
pub async fn one(context: &Context, project: &ProjectClient, sandbox: &Sandbox) -> Result<()> {
    let template = match &sandbox.template_id {
        Some(id) if context.look.is_for_people() => project.template(id).await.ok(),
        _ => None,
    };
    let id = || sandbox.template_id.clone().unwrap_or_default();
    let template = template.map_or_else(id, |template| template.name);
    output::record(context.look, sandbox, |sandbox| {
        let metadata = sandbox.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
        vec![
            ("name", sandbox.name.clone().unwrap_or_default()),
            ("id", sandbox.id.clone()),
            ("phase", sandbox.phase.clone()),
            ("message", sandbox.message.clone().unwrap_or_default()),
            ("template", template),
            ("snapshot", sandbox.snapshot_id.clone().unwrap_or_default()),
            ("host", word(sandbox, "host_id")),
            ("address", sandbox.connect_url.clone()),
            ("cpus", number(sandbox, "vcpu", "")),
            ("memory", number(sandbox, "memory_mb", " MiB")),
            ("disk", number(sandbox, "disk_gb", " GiB")),
            ("gpus", gpus(sandbox)),
            ("metadata", metadata.join(" ")),
            ("networks", memberships(&sandbox.networks)),
            ("egress", egress(sandbox)),
            ("second copy", durable::told(&sandbox.more)),
            ("timeout", number(sandbox, "timeout_seconds", " s")),
            ("idle timeout", number(sandbox, "idle_timeout_seconds", " s")),
            ("on timeout", word(sandbox, "on_timeout")),
            ("auto resume", told(sandbox, "auto_resume")),
            ("ends", sandbox.expires_at.as_deref().map(output::time).unwrap_or_default()),
            ("was ready", sandbox.running_seconds.as_ref().map(|s| format!("{s} s")).unwrap_or_default()),
            ("created", output::time(&sandbox.created_at)),
            ("changed", output::time(&sandbox.updated_at)),
        ]
    })
}

fn number(sandbox: &Sandbox, field: &str, unit: &str) -> String {
    sandbox.more.get(field).filter(|value| value.is_number()).map(|n| format!("{n}{unit}")).unwrap_or_default()
}

fn gpus(sandbox: &Sandbox) -> String {
    let count = sandbox.more.get("gpu_config_count").and_then(Value::as_i64).filter(|count| *count > 0);
    count.map(|count| format!("{count} {}", word(sandbox, "gpu_model"))).unwrap_or_default()
}

fn word(sandbox: &Sandbox, field: &str) -> String {
    sandbox.more.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A flag in words; nothing where the service does not know it.
fn told(sandbox: &Sandbox, field: &str) -> String {
    let flag = sandbox.more.get(field).and_then(Value::as_bool);
    flag.map(|flag| if flag { "yes" } else { "no" }.to_owned()).unwrap_or_default()
}

fn egress(sandbox: &Sandbox) -> String {
    let network = sandbox.more.get("network").cloned().unwrap_or_default();
    let Ok(network) = serde_json::from_value::<NetworkPolicy>(network) else { return String::new() };
    let but = |word: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!(", {word} {}", names.join(" ")),
    };
    network.egress.unwrap_or_default() + &but("allow", &network.allow) + &but("deny", &network.deny)
}

pub fn snapshots(snapshots: &[Snapshot]) -> Table {
    let rows = snapshots.iter().map(|snapshot| {
        [
            output::or_dash(snapshot.name.as_deref()),
            snapshot.status.clone(),
            snapshot.captures.join("+"),
            output::or_dash(Some(durable::told(&snapshot.more)).filter(|told| !told.is_empty()).as_deref()),
            output::age(&snapshot.created_at),
            snapshot.id.clone(),
            output::or_dash(snapshot.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "HOLDS", "SECOND COPY", "AGE", "ID", "MESSAGE"];
    Table::new(header, rows, "No snapshots. Take one: berth sandbox snapshot create SANDBOX").cut()
}

pub fn metrics(context: &Context, metrics: &Value) -> Result<()> {
    output::rows(context.look, metrics, figures)
}

fn figures(metrics: &Value) -> Table {
    let series = |name: &str| metrics["series"][name].as_array().cloned().unwrap_or_default();
    let names = ["memory_bytes", "disk_bytes", "network_rx_bytes", "network_tx_bytes", "processes"];
    let [memory, disk, received, sent, processes] = names.map(series);
    let at = |series: &[Value], index: usize, shift: u32| {
        let value = series.get(index).and_then(|point| point[1].as_f64());
        value.map_or_else(|| "-".into(), |value| format!("{:.1}", value / f64::from(1_u32 << shift)))
    };
    let used = series("cpu_percent").into_iter().enumerate().filter(|(_, point)| !point[1].is_null());
    let rows = used.map(|(index, point)| {
        [
            output::time(point[0].as_str().unwrap_or_default()),
            point[1].as_f64().map_or_else(|| "-".into(), |value| format!("{value:.1}")),
            at(&memory, index, 20),
            at(&disk, index, 20),
            at(&received, index, 10),
            at(&sent, index, 10),
            processes.get(index).and_then(|p| p[1].as_f64()).map_or_else(|| "-".into(), |n| format!("{n:.0}")),
        ]
    });
    let header = ["TIME", "CPU %", "MEMORY MiB", "DISK MiB", "IN KiB", "OUT KiB", "PROCESSES"];
    Table::new(header, rows, "No figures yet.")
}

/// Suggests what to type next.
pub fn next(sandbox: &Sandbox) {
    let name = called(sandbox);
    eprintln!("\nRun something:  berth sandbox exec {name} -- python3 -c 'print(6 * 7)'");
    eprintln!("Look around:    berth sandbox shell {name}");
    eprintln!("Delete it:      berth sandbox delete {name}");
}
