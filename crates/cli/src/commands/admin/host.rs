//! Hosts: what administrators of the platform see and say of them, and which join and go.

use anyhow::Result;
use berth_client::{ChangeHost, Host, HostFilter, HostGpu, HostStore, HostToken, NewHost};
use clap::{Args, Subcommand};

use super::find::find_host;
use crate::context::Context;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pairs::pairs;
use crate::progress::{Progress, Stage, watch};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;

/// The option for each field of a change.
const WORDS: Words = &[("name", "--name"), ("labels", "LABEL")];
/// The option for each field of a new one.
const NEW: Words = &[("name", "NAME"), ("region_id", "--region"), ("labels", "--label")];

#[derive(Subcommand)]
pub enum HostCommand {
    /// List hosts
    List {
        /// Only this state: ready, cordoned, draining, lost or joining
        #[arg(long)]
        state: Option<String>,
        /// Only this label: KEY or KEY=VALUE
        #[arg(long)]
        label: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one host
    #[command(visible_alias = "get")]
    Show(HostArg),
    /// Take no new machines; those that are there go on, and start there again
    Cordon(HostArg),
    /// Take new machines again, and have VMs leave no more
    Uncordon(HostArg),
    /// Take no new machines, and have VMs that are off and sandboxes that are paused go to other hosts, with all they have
    Drain(DrainArgs),
    /// Call a host otherwise, or give it labels
    Label(LabelArgs),
    /// Have another machine join: print the command that is typed there, once and within 24 hours
    Add(AddArgs),
    /// Print another command for a host that has not joined, or that has to join again
    Token(HostArg),
    /// Remove a host: it is never asked again
    Remove {
        /// Name or id
        host: String,
        /// It will not come back, nor will the machines that it has
        #[arg(long)]
        lost: bool,
    },
}

#[derive(Args)]
pub struct AddArgs {
    /// What it is called
    name: String,
    /// The region that it belongs to
    #[arg(long, default_value = "local")]
    region: String,
    /// A label, as KEY=VALUE; may be given several times
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
}

#[derive(Args)]
pub struct DrainArgs {
    /// Name or id
    host: String,
    /// What cannot go as it runs, too: such a VM is shut down, and starts on another host; each sandbox is paused, and goes on there
    #[arg(long)]
    restart: bool,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Args)]
pub struct HostArg {
    /// Name or id
    host: String,
}

#[derive(Args)]
pub struct LabelArgs {
    /// Name or id
    host: String,
    /// All its labels from now on: KEY=VALUE
    #[arg(value_name = "LABEL", required_unless_present_any = ["name", "no_labels"])]
    labels: Vec<String>,
    /// No labels from now on
    #[arg(long, conflicts_with = "labels")]
    no_labels: bool,
    /// What it is called from now on
    #[arg(long)]
    name: Option<String>,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: HostCommand) -> Result<()> {
    let client = &context.client;
    match command {
        HostCommand::List { state, label, page } => {
            let filter = HostFilter { state, label, page: Some(page.page), limit: Some(page.limit), name: None };
            output::list(context.look, &client.hosts(&filter).await?, show_hosts)
        }
        HostCommand::Show(HostArg { host }) => {
            let id = find_host(context, &host).await?.id;
            output::record(context.look, &client.host(&id).await?, fields)
        }
        HostCommand::Cordon(HostArg { host }) => {
            let id = find_host(context, &host).await?.id;
            row(context, &client.cordon_host(&id).await?)
        }
        HostCommand::Uncordon(HostArg { host }) => {
            let id = find_host(context, &host).await?.id;
            row(context, &client.uncordon_host(&id).await?)
        }
        HostCommand::Drain(args) => drain(context, args).await,
        HostCommand::Label(args) => label(context, args).await,
        HostCommand::Add(AddArgs { name, region, labels }) => {
            let new = NewHost { name, region_id: region, labels: pairs(&labels, "label")? };
            let made = client.create_host(&new).await.map_err(|error| retold(error, NEW))?;
            show_command(context, &made)
        }
        HostCommand::Token(HostArg { host }) => {
            let id = find_host(context, &host).await?.id;
            show_command(context, &client.create_host_token(&id).await?)
        }
        HostCommand::Remove { host, lost } => {
            let host = find_host(context, &host).await?;
            client.delete_host(&host.id, lost).await?;
            let said = format!("The host {} is removed and asked no more.", host.name);
            output::done(context.look, &host.name, &host.id, &said);
            Ok(())
        }
    }
}

/// How long a drain is waited for, in seconds, unless it is said.
const LONGEST_DRAIN: u64 = 3600;

/// Drains a host; with `--wait` until it has no machine any more, nor a disk of one that left.
async fn drain(context: &Context, args: DrainArgs) -> Result<()> {
    let id = find_host(context, &args.host).await?.id;
    let mut host = context.client.drain_host(&id, args.restart).await?;
    if args.wait.wanted(false) {
        let seconds = args.wait.longest(LONGEST_DRAIN);
        let look = async || Ok(context.client.host(&id).await?);
        let progress = Progress::new(context.is_quiet());
        host = watch(progress, Some(seconds), host, |host| Ok(left(host, seconds)), look).await?;
    }
    row(context, &host)
}

/// What is left of a drain. A VM is on another host before its disks are, and needs this one until they have come. Layers and
/// memories of sandboxes, snapshots and templates are needed until another host is their home.
fn left(host: &Host, seconds: u64) -> Stage {
    let counted = |count: i64, one: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        many => Some(format!("{many} {one}s")),
    };
    let (name, holds) = (&host.name, &host.holds);
    let all = [(holds.machines, "machine"), (holds.leaving, "disk"), (holds.layers, "layer")];
    let all: Vec<_> = all.into_iter().filter_map(|(count, one)| counted(count, one)).collect();
    let left = all.join(" and ");
    if left.is_empty() {
        return Stage::Over;
    }
    Stage::Underway {
        shown: format!("{name}: {left} left"),
        late: format!(
            "{name} still has {left} after {seconds} s. VMs that cannot go as they run, and sandboxes that run, leave with --restart; suspended VMs, and what no other host \
             takes, stay. Disks of VMs that left follow, or say why they cannot, and so do layers of sandboxes, snapshots and \
             templates: the service's log says why they stay. Look at them: berth admin vms, berth admin sandboxes"
        ),
    }
}

async fn label(context: &Context, args: LabelArgs) -> Result<()> {
    let labels = pairs(&args.labels, "label")?;
    let host = find_host(context, &args.host).await?;
    let labels = (args.no_labels || !labels.is_empty()).then_some(labels);
    let change = ChangeHost { name: args.name, labels };
    let host = context.client.update_host(&host.id, &change).await.map_err(|error| retold(error, WORDS))?;
    output::record(context.look, &host, fields)
}

/// Prints what is typed on the machine that joins.
fn show_command(context: &Context, made: &HostToken) -> Result<()> {
    if context.look.is_json() {
        return output::json(made);
    }
    output::say(context.look, &format!("Type on the machine that becomes {}, within 24 hours:\n", made.host.name));
    println!("{}", made.command);
    Ok(())
}

fn row(context: &Context, host: &Host) -> Result<()> {
    output::rows(context.look, host, |host| show_hosts(std::slice::from_ref(host)))
}

/// What becomes of its machines; of one that is drained, whether VMs that cannot go as they run are restarted.
fn state(host: &Host) -> String {
    match host.drain.as_deref() {
        Some("all") if host.state == "draining" => "draining (with restarts)".into(),
        _ => host.state.clone(),
    }
}

fn labels(host: &Host) -> String {
    host.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// What machines hold of what a host has; only what it has where the service does not say.
fn part(held: Option<i64>, all: i64) -> String {
    held.map_or_else(|| all.to_string(), |held| format!("{held}/{all}"))
}

fn show_hosts(hosts: &[Host]) -> Table {
    let rows = hosts.iter().map(|host| {
        [
            host.name.clone(),
            state(host),
            host.holds.machines.to_string(),
            host.region_ids.join(" "),
            part(host.load.map(|load| load.vcpu), host.cpus),
            format!("{} MiB", part(host.load.map(|load| load.memory_mb), host.memory_mb)),
            host.gpus.len().to_string(),
            labels(host),
            host.service.clone().unwrap_or_default(),
            host.addresses.join(" "),
            host.version.clone().unwrap_or_default(),
            output::age(&host.last_seen_at),
            trouble(host),
            host.id.clone(),
        ]
    });
    let header = [
        "NAME", "STATE", "MACHINES", "REGIONS", "CPUS", "MEMORY", "+GPUS", "+LABELS", "+SERVICE", "+AT", "+VERSION",
        "SEEN", "TROUBLE", "ID",
    ];
    Table::new(header, rows, "No hosts.")
}

fn fields(host: &Host) -> Vec<(&'static str, String)> {
    let promised: Vec<_> = host.memory_overcommit.iter().map(|(kind, times)| format!("{kind} {times}")).collect();
    vec![
        ("name", host.name.clone()),
        ("id", host.id.clone()),
        ("state", state(host)),
        ("machines", host.holds.machines.to_string()),
        ("disks", host.holds.disks.to_string()),
        ("images", host.holds.images.to_string()),
        ("layers of sandboxes", host.holds.layers.to_string()),
        ("disks leaving", host.holds.leaving.to_string()),
        ("regions", host.region_ids.join(" ")),
        ("addresses", host.addresses.join(" ")),
        ("cpus", host.cpus.to_string()),
        ("memory", format!("{} MiB", host.memory_mb)),
        ("memory promised", promised.join(", ")),
        (
            "held by machines",
            host.load.map(|load| format!("{} vCPUs, {} MiB", load.vcpu, load.memory_mb)).unwrap_or_default(),
        ),
        ("gpus", host.gpus.iter().map(gpu).collect::<Vec<_>>().join(", ")),
        ("stores", host.stores.iter().map(store).collect::<Vec<_>>().join(", ")),
        ("labels", labels(host)),
        ("service", host.service.clone().unwrap_or_default()),
        ("version", host.version.clone().unwrap_or_default()),
        ("trouble", host.trouble.clone().unwrap_or_default()),
        ("certificate ends", host.certificate_expires_at.as_deref().map(output::time).unwrap_or_default()),
        ("last seen", output::time(&host.last_seen_at)),
        ("created", output::time(&host.created_at)),
    ]
}

/// What is wrong with a host, and which stores it does not reach.
fn trouble(host: &Host) -> String {
    let away = host.stores.iter().filter(|store| !store.reached).map(store);
    host.trouble.iter().cloned().chain(away).collect::<Vec<_>>().join("; ")
}

fn store(store: &HostStore) -> String {
    let HostStore { name, trouble, .. } = store;
    trouble.as_ref().map_or_else(|| name.clone(), |why| format!("{name} (not reached: {why})"))
}

fn gpu(gpu: &HostGpu) -> String {
    let HostGpu { address, model, vm_id, sandbox_id, unavailable } = gpu;
    match (vm_id.as_deref().or(sandbox_id.as_deref()), unavailable) {
        (Some(owner), _) => format!("{model} at {address} (had by {owner})"),
        (None, Some(why)) => format!("{model} at {address} ({why})"),
        (None, None) => format!("{model} at {address}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stores_that_a_host_does_not_reach_are_a_trouble() {
        let host = json!({
            "id": "one", "name": "beta", "region_ids": [], "addresses": [], "cpus": 1, "memory_mb": 1,
            "memory_overcommit": {}, "labels": {}, "state": "ready", "drain": null,
            "stores": [
                {"name": "pool-a", "reached": true, "trouble": null},
                {"name": "pool-b", "reached": false, "trouble": "no monitor answers"},
            ],
            "version": null, "trouble": "its disk is full", "certificate_expires_at": null, "last_seen_at": "", "created_at": "",
        });
        let host: Host = serde_json::from_value(host).unwrap();
        assert_eq!(trouble(&host), "its disk is full; pool-b (not reached: no monitor answers)");
        let shown = fields(&host).into_iter().find(|(name, _)| *name == "stores").unwrap().1;
        assert_eq!(shown, "pool-a, pool-b (not reached: no monitor answers)");
        let older = Host { stores: Vec::new(), trouble: None, ..host };
        assert_eq!(trouble(&older), "");
    }

    #[test]
    fn a_host_is_drained_once_it_has_no_machine_no_disk_of_one_that_left_and_no_layer() {
        let about = |machines: i64, leaving: i64, layers: i64| {
            let host = json!({
                "id": "one", "name": "beta", "region_ids": [], "addresses": [], "cpus": 1, "memory_mb": 1,
                "memory_overcommit": {}, "gpus": [], "labels": {}, "state": "draining", "drain": "all",
                "holds": {"machines": machines, "disks": 5, "images": 0, "leaving": leaving, "layers": layers}, "joined": true,
                "version": null, "trouble": null, "certificate_expires_at": null, "last_seen_at": "", "created_at": "",
            });
            match left(&serde_json::from_value(host).unwrap(), 60) {
                Stage::Underway { shown, late } => Some((shown, late)),
                Stage::Over => None,
            }
        };
        for (machines, leaving, layers, part) in [
            (1, 0, 0, "1 machine"),
            (0, 1, 0, "1 disk"),
            (2, 3, 0, "2 machines and 3 disks"),
            (1, 2, 0, "1 machine and 2 disks"),
            (0, 0, 4, "4 layers"),
        ] {
            let (shown, late) = about(machines, leaving, layers).unwrap();
            assert_eq!(shown, format!("beta: {part} left"));
            assert!(late.starts_with(&format!("beta still has {part} after 60 s.")), "{late}");
        }
        assert_eq!(about(0, 0, 0), None);
    }
}
