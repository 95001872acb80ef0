//! Virtual machines. All commands take a VM's name or id.

mod console;
mod create;
mod event;
mod find;
mod known_hosts;
mod price;
mod reinstall;
mod screen;
mod show;
mod ssh;
mod ssh_config;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use berth_client::{ChangeVm, List, ProjectClient, Vm, VmFilter, VmKeys};
use clap::{Args, Subcommand};

use super::firewall;
use crate::commands::ssh_key;
use crate::context::Context;
use crate::id::is_id;
use crate::page::PageArgs;
use crate::pairs::pairs;
use crate::several::{Outcome, find_all};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::watch::WatchArgs;
use crate::{output, progress, span, status};

pub use find::find;

/// Seconds to wait for a verb.
const LONGEST: u64 = 300;

#[derive(Subcommand)]
pub enum VmCommand {
    /// Create a VM
    Create(create::CreateArgs),
    /// List VMs
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one VM
    #[command(visible_alias = "show")]
    Get {
        /// Name or id
        vm: String,
    },
    /// Start a stopped, failed or suspended VM
    Start(VerbArgs),
    /// Stop a VM: power button, then power switch
    Stop(VerbArgs),
    /// Stop a running VM and start it again
    Restart(VerbArgs),
    /// Suspend running VMs: their memory goes to the disk, and they go on from it when resumed
    Suspend(VerbArgs),
    /// Resume suspended VMs where they were
    Resume(VerbArgs),
    /// Start VMs with a rescue system, their disks beside it; restart leaves it
    Rescue(VerbArgs),
    /// Delete VMs for good
    #[command(visible_alias = "rm")]
    Delete(VerbArgs),
    /// Give a VM that is off another size, with which it starts next
    Resize {
        /// Name or id
        vm: String,
        /// The size; `berth catalog` lists them
        size: String,
    },
    /// Make a VM's root disk anew from an image; all that is on it goes
    Reinstall(reinstall::ReinstallArgs),
    /// Change name, labels, ports, restart policy, time to live, keys or user data
    Update(UpdateArgs),
    /// Show or set the firewall rules of a VM
    Rules {
        /// Name or id
        vm: String,
        #[command(flatten)]
        rules: firewall::RulesArgs,
    },
    /// Log in to a VM, or run a command in it
    Ssh(ssh::SshArgs),
    /// Print settings with which ssh, scp and editors reach the project's VMs: ssh web.berth
    SshConfig(ssh_config::SshConfigArgs),
    /// Connect to a VM's serial console; Ctrl-] leaves
    Console(console::ConsoleArgs),
    /// Save a picture of a VM's screen, or open the screen to a VNC viewer on this computer
    #[command(
        after_help = "The platform's own images, micro and debian-12, show nothing there but their firmware: they speak on their serial \
                      console alone. Type: berth vm console"
    )]
    Screen(screen::ScreenArgs),
    /// Wait until a VM has a status
    Wait {
        /// Name or id
        vm: String,
        /// The status
        #[arg(long, visible_alias = "phase", default_value = "running", value_parser = status::of_vm(), ignore_case = true)]
        status: String,
        /// Until it runs and its guest has booted
        #[arg(long, conflicts_with = "status")]
        ready: bool,
        /// Longest wait, as 90s or 5m
        #[arg(long, visible_alias = "wait-timeout", value_name = "SPAN", default_value = "5m", value_parser = span::parse)]
        timeout: u64,
    },
    /// Show what happens in the project, as it happens
    Events(event::EventArgs),
    /// Show the operations on a VM
    Operations {
        /// Name or id
        vm: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show what a VM uses
    Metrics {
        /// Name or id
        vm: String,
        /// How far back, as 30m; at most 1h
        #[arg(long, default_value = "5m")]
        window: String,
        /// Length of a step, as 10s
        #[arg(long, default_value = "10s")]
        resolution: String,
    },
}

#[derive(Args)]
pub struct ListArgs {
    /// Only this status
    #[arg(long, visible_alias = "phase", value_parser = status::of_vm(), ignore_case = true)]
    status: Option<String>,
    /// Only this label: KEY or KEY=VALUE
    #[arg(long)]
    label: Option<String>,
    /// created_at, -created_at, name or -name
    #[arg(long, allow_hyphen_values = true)]
    sort: Option<String>,
    /// Deleted ones, too
    #[arg(long)]
    deleted: bool,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    watching: WatchArgs,
}

#[derive(Args)]
pub struct VerbArgs {
    /// Names or ids
    #[arg(required = true)]
    vms: Vec<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// Name or id
    vm: String,
    /// New name
    #[arg(long)]
    name: Option<String>,
    /// All its labels from now on: KEY=VALUE, repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// No labels from now on
    #[arg(long, conflicts_with = "labels")]
    no_labels: bool,
    /// All its open ports from now on: PORT or PORT/udp, repeated
    #[arg(long = "port", value_name = "PORT[/udp]")]
    ports: Vec<String>,
    /// Close all ports
    #[arg(long, conflicts_with = "ports")]
    no_ports: bool,
    /// never, on-failure or always
    #[arg(long)]
    restart_policy: Option<String>,
    /// Delete it so long from now, as 90s, 2h or 7d; at most 30d
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    ttl: Option<u64>,
    /// All its public keys, repeated: a file, or the name of a stored key (berth ssh-key list). A guest with QEMU's guest
    /// agent gets them at once, another at its next boot
    #[arg(long = "ssh-key", value_name = "NAME|FILE")]
    ssh_keys: Vec<PathBuf>,
    /// No key any more: at once, or from its next boot on
    #[arg(long, conflicts_with = "ssh_keys")]
    no_ssh_key: bool,
    /// File with user data for cloud-init, for a guest that has not booted yet
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
}

/// The option for each field of a change.
const CHANGES: Words = &[
    ("name", "--name"),
    ("labels", "--label"),
    ("exposed_ports", "--port"),
    ("restart_policy", "--restart-policy"),
    ("ttl_seconds", "--ttl"),
    ("user_data", "--user-data"),
    ("ssh_keys", "--ssh-key"),
    ("ssh_key_ids", "--ssh-key"),
];

/// The argument for each field of another size.
const RESIZED: Words = &[("vm_config_id", "SIZE")];

/// Runs the typed command.
pub async fn run(context: &Context, command: VmCommand) -> Result<ExitCode> {
    let project = context.project()?;
    match command {
        VmCommand::Create(args) => create::create(context, &project, args).await?,
        VmCommand::List(args) => list(context, &project, args).await?,
        VmCommand::Get { vm } => show::one(context, &find(&project, &vm).await?)?,
        VmCommand::Start(args) => verb(context, &project, args, "start", "running").await?,
        VmCommand::Stop(args) => verb(context, &project, args, "stop", "stopped").await?,
        VmCommand::Restart(args) => verb(context, &project, args, "restart", "running").await?,
        VmCommand::Suspend(args) => verb(context, &project, args, "suspend", "suspended").await?,
        VmCommand::Resume(args) => verb(context, &project, args, "resume", "running").await?,
        VmCommand::Rescue(args) => verb(context, &project, args, "rescue", "running").await?,
        VmCommand::Delete(args) => delete(context, &project, args).await?,
        VmCommand::Resize { vm, size } => {
            let vm = find(&project, &vm).await?;
            let resized = project.resize_vm(&vm.id, &size).await.map_err(|error| retold(error, RESIZED))?;
            show::one(context, &resized)?;
        }
        VmCommand::Reinstall(args) => reinstall::reinstall(context, &project, args).await?,
        VmCommand::Update(args) => update(context, &project, args).await?,
        VmCommand::Rules { vm, rules } => {
            let (vm, wanted) = (find(&project, &vm).await?, rules.wanted()?);
            let rules = match wanted {
                Some(rules) => project.set_vm_rules(&vm.id, &rules).await,
                None => project.vm_rules(&vm.id).await,
            };
            firewall::show(context, &rules.map_err(|error| retold(error, firewall::WORDS))?)?;
        }
        VmCommand::Ssh(args) => return ssh::ssh(&project, args).await,
        VmCommand::SshConfig(args) => ssh_config::ssh_config(context, &project, args).await?,
        VmCommand::Console(args) => console::console(&project, args).await?,
        VmCommand::Screen(args) => screen::screen(context, &project, args).await?,
        VmCommand::Wait { vm, status, ready, timeout } => {
            // A deleted VM has only its id, and waiting for its deletion must still work.
            let id = if is_id(&vm) { vm } else { find(&project, &vm).await?.id };
            let vm = if ready {
                progress::wait_guest(&project, &id, timeout, context.is_quiet()).await?
            } else {
                progress::wait(&project, &id, &status, timeout, context.is_quiet()).await?
            };
            show::one(context, &vm)?;
        }
        VmCommand::Events(args) => event::events(context, &project, args).await?,
        VmCommand::Operations { vm, page } => {
            let vm = find(&project, &vm).await?;
            show::operations(context, &project.vm_operations(&vm.id, page.into()).await?)?;
        }
        VmCommand::Metrics { vm, window, resolution } => {
            let vm = find(&project, &vm).await?;
            show::metrics(context, &project.vm_metrics(&vm.id, &window, &resolution).await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(context: &Context, project: &ProjectClient, args: ListArgs) -> Result<()> {
    let filter = VmFilter {
        page: Some(args.page.page),
        limit: Some(args.page.limit),
        status: args.status,
        label: args.label,
        sort: args.sort,
        include_deleted: args.deleted.then_some(true),
        name: None,
    };
    let ask = async || Ok(project.vms(filter.clone()).await?);
    args.watching.show(Some(project), ask, async |vms: &List<Vm>| show::list(context, vms)).await
}

async fn verb(context: &Context, project: &ProjectClient, args: VerbArgs, verb: &str, goal: &str) -> Result<()> {
    let vms = find_all(&args.vms, async |text: &str| find(project, text).await).await?;
    let (wait, longest) = (args.waiting.wanted(false), args.waiting.longest(LONGEST));
    let (mut outcome, mut asked) = (Outcome::of(vms.len(), context.look), Vec::new());
    for vm in vms {
        asked.extend(outcome.of_one(&vm.name, project.vm_verb(&vm.id, verb).await.map_err(Into::into)));
    }
    for vm in asked {
        let name = vm.name.clone();
        let done = if wait { progress::wait(project, &vm.id, goal, longest, context.is_quiet()).await } else { Ok(vm) };
        if let Some(vm) = outcome.of_one(&name, done) {
            output::print(context.look, &vm, &vm.name, &vm.id, |vm| println!("{} {}", vm.name, vm.status))?;
        }
    }
    outcome.end()
}

async fn delete(context: &Context, project: &ProjectClient, args: VerbArgs) -> Result<()> {
    let vms = find_all(&args.vms, async |text: &str| find(project, text).await).await?;
    let (wait, longest) = (args.waiting.wanted(false), args.waiting.longest(LONGEST));
    let (mut outcome, mut asked) = (Outcome::of(vms.len(), context.look), Vec::new());
    for vm in vms {
        let answer = project.delete_vm(&vm.id).await.map_err(Into::into);
        asked.extend(outcome.of_one(&vm.name, answer).map(|()| vm));
    }
    for vm in asked {
        let gone = if wait {
            progress::wait(project, &vm.id, "deleted", longest, context.is_quiet()).await.map(drop)
        } else {
            Ok(())
        };
        if outcome.of_one(&vm.name, gone).is_some() {
            let how = if wait { "deleted" } else { "is being deleted" };
            output::done(context.look, &vm.name, &vm.id, &format!("{} {how}", vm.name));
        }
    }
    outcome.end()
}

/// Whether the keys of a VM that runs are in its guest, and what to do where they are not.
fn keys_are(vm: &Vm) -> String {
    match vm.ssh_keys_state.as_str() {
        "applied" => "The keys are in it".into(),
        "pending" => "Its guest gets the keys once it has booted, if it runs QEMU's guest agent".into(),
        _ => format!(
            "No agent of its guest took the keys; an image of the platform's takes them when it boots: berth vm restart {}",
            vm.name
        ),
    }
}

async fn update(context: &Context, project: &ProjectClient, args: UpdateArgs) -> Result<()> {
    let vm = find(project, &args.vm).await?;
    // Looked for before anything is changed.
    let keys = if args.no_ssh_key || !args.ssh_keys.is_empty() {
        let (ssh_keys, ssh_key_ids) = ssh_key::chosen(context, project, &args.ssh_keys).await?;
        Some(VmKeys { ssh_keys, ssh_key_ids })
    } else {
        None
    };
    let (labels, ports) = (pairs(&args.labels, "label")?, create::ports(&args.ports)?);
    let change = ChangeVm {
        name: args.name,
        labels: (args.no_labels || !labels.is_empty()).then_some(labels),
        exposed_ports: (args.no_ports || !ports.is_empty()).then_some(ports),
        restart_policy: args.restart_policy,
        ttl_seconds: args.ttl,
        user_data: args.user_data.as_deref().map(create::read).transpose()?,
    };
    let mut changed = vm;
    if keys.is_none() || serde_json::to_value(&change)? != serde_json::json!({}) {
        changed = project.update_vm(&changed.id, &change).await.map_err(|error| retold(error, CHANGES))?;
    }
    if let Some(keys) = keys {
        changed = project.replace_vm_keys(&changed.id, &keys).await.map_err(|error| retold(error, CHANGES))?;
        if changed.status == "running" {
            changed = progress::wait_keys(project, &changed.id, context.is_quiet()).await?;
            output::say(context.look, &keys_are(&changed));
        }
    }
    show::one(context, &changed)
}
