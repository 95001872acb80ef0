//! Virtual machines. A VM is named by its name or its id everywhere.

mod console;
mod create;
mod event;
mod show;
mod ssh;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use berth_client::{ChangeVm, Page, ProjectClient, Vm, VmFilter};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::failure::Failure;
use crate::pick::is_id;
use crate::{output, progress};

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
    /// Start a stopped or failed VM
    Start(VerbArgs),
    /// Stop a VM: power button, then power switch
    Stop(VerbArgs),
    /// Stop a running VM and start it again
    Restart(VerbArgs),
    /// Delete VMs for good
    #[command(visible_alias = "rm")]
    Delete(VerbArgs),
    /// Change name, labels, ports or restart policy
    Update(UpdateArgs),
    /// Log in to a VM, or run a command in it
    Ssh(ssh::SshArgs),
    /// Connect to a VM's serial console; Ctrl-] leaves
    Console(console::ConsoleArgs),
    /// Wait until a VM has a status
    Wait {
        /// Name or id
        vm: String,
        /// The status
        #[arg(long, default_value = "running")]
        status: String,
        /// Seconds to wait at most
        #[arg(long, default_value_t = 300)]
        timeout: u64,
    },
    /// Show what happens in the project, as it happens
    Events(event::EventArgs),
    /// Show what was asked of a VM
    Operations {
        /// Name or id
        vm: String,
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
    #[arg(long)]
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
    /// Page, from 1
    #[arg(long, default_value_t = 1)]
    page: u32,
    /// VMs on a page, 1 to 100
    #[arg(long, default_value_t = 100)]
    limit: u32,
}

#[derive(Args)]
pub struct VerbArgs {
    /// Names or ids
    #[arg(required = true)]
    vms: Vec<String>,
    /// Wait until it is done
    #[arg(long, short)]
    wait: bool,
    /// Seconds to wait at most
    #[arg(long, default_value_t = 300)]
    timeout: u64,
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
    /// All its open ports from now on: PORT or PORT/udp, repeated
    #[arg(long = "port", value_name = "PORT[/udp]")]
    ports: Vec<String>,
    /// Close all ports
    #[arg(long, conflicts_with = "ports")]
    no_ports: bool,
    /// never, on-failure or always
    #[arg(long)]
    restart_policy: Option<String>,
}

/// Does what was typed.
pub async fn run(context: &Context, command: VmCommand) -> Result<ExitCode> {
    let project = context.project()?;
    match command {
        VmCommand::Create(args) => create::create(context, &project, args).await?,
        VmCommand::List(args) => list(context, &project, args).await?,
        VmCommand::Get { vm } => show::one(context, &find(&project, &vm).await?)?,
        VmCommand::Start(args) => verb(context, &project, args, "start", "running").await?,
        VmCommand::Stop(args) => verb(context, &project, args, "stop", "stopped").await?,
        VmCommand::Restart(args) => verb(context, &project, args, "restart", "running").await?,
        VmCommand::Delete(args) => delete(context, &project, args).await?,
        VmCommand::Update(args) => update(context, &project, args).await?,
        VmCommand::Ssh(args) => return ssh::ssh(&project, args).await,
        VmCommand::Console(args) => console::console(&project, args).await?,
        VmCommand::Wait { vm, status, timeout } => {
            let vm = find(&project, &vm).await?;
            show::one(context, &progress::wait(&project, &vm.id, &status, timeout, context.json).await?)?;
        }
        VmCommand::Events(args) => event::events(context, &project, args).await?,
        VmCommand::Operations { vm } => {
            let vm = find(&project, &vm).await?;
            show::operations(context, &project.vm_operations(&vm.id, Page::default()).await?)?;
        }
        VmCommand::Metrics { vm, window, resolution } => {
            let vm = find(&project, &vm).await?;
            show::metrics(context, &project.vm_metrics(&vm.id, &window, &resolution).await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The VM of a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<Vm> {
    if is_id(text) {
        return Ok(project.vm(text).await?);
    }
    let filter = VmFilter { name: Some(text.to_owned()), limit: Some(2), ..VmFilter::default() };
    let mut found = project.vms(filter).await?.data;
    match (found.pop(), found.len()) {
        (Some(vm), 0) => Ok(vm),
        (None, _) => Err(Failure::not_found(format!("There is no VM called '{text}'. List them: berth vm list"))),
        (Some(_), _) => Err(Failure::usage(format!("Several VMs are called '{text}'; use an id: berth vm list"))),
    }
}

async fn list(context: &Context, project: &ProjectClient, args: ListArgs) -> Result<()> {
    let filter = VmFilter {
        page: Some(args.page),
        limit: Some(args.limit),
        status: args.status,
        label: args.label,
        sort: args.sort,
        include_deleted: args.deleted.then_some(true),
        name: None,
    };
    show::list(context, &project.vms(filter).await?)
}

async fn verb(context: &Context, project: &ProjectClient, args: VerbArgs, verb: &str, goal: &str) -> Result<()> {
    let mut asked = Vec::new();
    for name in &args.vms {
        let vm = find(project, name).await?;
        asked.push(project.vm_verb(&vm.id, verb).await?);
    }
    for vm in asked {
        let vm = if args.wait { progress::wait(project, &vm.id, goal, args.timeout, context.json).await? } else { vm };
        if context.json {
            output::json(&vm)?;
        } else {
            println!("{} {}", vm.name, vm.status);
        }
    }
    Ok(())
}

async fn delete(context: &Context, project: &ProjectClient, args: VerbArgs) -> Result<()> {
    let mut asked = Vec::new();
    for name in &args.vms {
        let vm = find(project, name).await?;
        project.delete_vm(&vm.id).await?;
        asked.push(vm);
    }
    for vm in asked {
        if args.wait {
            progress::wait(project, &vm.id, "deleted", args.timeout, context.json).await?;
        }
        if !context.json {
            println!("{} {}", vm.name, if args.wait { "deleted" } else { "is being deleted" });
        }
    }
    Ok(())
}

async fn update(context: &Context, project: &ProjectClient, args: UpdateArgs) -> Result<()> {
    let vm = find(project, &args.vm).await?;
    let ports = create::ports(&args.ports)?;
    let change = ChangeVm {
        name: args.name,
        labels: if args.labels.is_empty() { None } else { Some(labels(&args.labels)?) },
        exposed_ports: (args.no_ports || !ports.is_empty()).then_some(ports),
        restart_policy: args.restart_policy,
    };
    show::one(context, &project.update_vm(&vm.id, &change).await?)
}

/// Labels as typed.
fn labels(texts: &[String]) -> Result<BTreeMap<String, String>> {
    let pair = |text: &String| text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    texts
        .iter()
        .map(|t| pair(t).ok_or_else(|| Failure::usage(format!("'{t}' is no label; it looks like env=test"))))
        .collect()
}
