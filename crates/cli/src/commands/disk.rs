//! Data disks and root disk volumes. A disk is named by its name or its id.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use berth_client::{DataDisk, NewDataDisk, Page, ProjectClient, RootDisk};
use clap::{Subcommand, ValueEnum};

use super::vm::find as find_vm;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::pick::{is_id, only};

/// How long `--wait` waits for a disk.
const LONGEST: Duration = Duration::from_mins(2);

#[derive(Clone, Copy, ValueEnum)]
pub enum Kind {
    /// A file system, mounted at /mnt/NAME
    Filesystem,
    /// Raw
    Block,
}

#[derive(Subcommand)]
pub enum DiskCommand {
    /// List data disks
    #[command(visible_alias = "ls")]
    List {
        /// Root disk volumes instead
        #[arg(long)]
        root: bool,
    },
    /// Show one data disk
    Get {
        /// Name or id
        disk: String,
        /// A root disk volume
        #[arg(long)]
        root: bool,
    },
    /// Make a data disk
    Create {
        /// Name: small letters, digits and hyphens, at most 20
        name: String,
        /// Size in GiB, 10 to 2048
        #[arg(long, default_value_t = 10)]
        size: i64,
        /// What it is in the guest
        #[arg(long, value_enum, default_value_t = Kind::Filesystem)]
        kind: Kind,
        /// Region
        #[arg(long, default_value = "local")]
        region: String,
        /// Wait until it is ready
        #[arg(long, short)]
        wait: bool,
    },
    /// Attach a data disk to a VM that is off
    Attach {
        /// Disk, by name or id
        disk: String,
        /// VM, by name or id
        vm: String,
    },
    /// Detach a data disk from a VM that is off
    Detach {
        /// Name or id
        disk: String,
    },
    /// Delete a disk that no VM has
    #[command(visible_alias = "rm")]
    Delete {
        /// Name or id
        disk: String,
        /// A root disk volume
        #[arg(long)]
        root: bool,
    },
}

/// Does what was typed.
pub async fn run(context: &Context, command: DiskCommand) -> Result<()> {
    let project = context.project()?;
    match command {
        DiskCommand::List { root: false } => {
            let disks = project.disks(Page::default()).await?;
            output::print(context.json, &disks, |disks| show(&disks.data))
        }
        DiskCommand::List { root: true } => {
            let disks = project.root_disks(Page::default()).await?;
            output::print(context.json, &disks, |disks| show_roots(&disks.data))
        }
        DiskCommand::Get { disk, root: false } => one(context, find_data(&project, &disk).await?),
        DiskCommand::Get { disk, root: true } => {
            let disk = find_root(&project, &disk).await?;
            output::print(context.json, &disk, |disk| show_roots(std::slice::from_ref(disk)))
        }
        DiskCommand::Create { name, size, kind, region, wait } => {
            let kind = match kind {
                Kind::Filesystem => "filesystem".to_owned(),
                Kind::Block => "block".to_owned(),
            };
            let disk = project.create_disk(&NewDataDisk { name, kind, size_gb: size, region_id: region }).await?;
            one(context, if wait { ready(&project, disk).await? } else { disk })
        }
        DiskCommand::Attach { disk, vm } => {
            let (disk, vm) = (find_data(&project, &disk).await?, find_vm(&project, &vm).await?);
            one(context, project.attach_disk(&disk.id, &vm.id).await?)
        }
        DiskCommand::Detach { disk } => {
            let disk = find_data(&project, &disk).await?;
            one(context, project.detach_disk(&disk.id).await?)
        }
        DiskCommand::Delete { disk, root } => delete(context, &project, &disk, root).await,
    }
}

async fn delete(context: &Context, project: &ProjectClient, text: &str, root: bool) -> Result<()> {
    let name = if root {
        let disk = find_root(project, text).await?;
        project.delete_root_disk(&disk.id).await?;
        disk.name
    } else {
        let disk = find_data(project, text).await?;
        project.delete_disk(&disk.id).await?;
        disk.name
    };
    if !context.json {
        println!("{name} is being deleted");
    }
    Ok(())
}

async fn ready(project: &ProjectClient, mut disk: DataDisk) -> Result<DataDisk> {
    let started = Instant::now();
    while disk.status != "ready" {
        if disk.status == "failed" {
            bail!("{} failed: {}", disk.name, disk.message.unwrap_or_default());
        }
        if started.elapsed() > LONGEST {
            return Err(Failure::late(format!("{} is still {}", disk.name, disk.status)));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        disk = project.disk(&disk.id).await?;
    }
    Ok(disk)
}

/// The data disk of a name or an id.
pub async fn find_data(project: &ProjectClient, text: &str) -> Result<DataDisk> {
    if is_id(text) {
        return Ok(project.disk(text).await?);
    }
    let mut found = Page::all(async |page| project.disks(page).await).await?;
    found.retain(|disk| disk.name == text);
    only(found, "disk", text, "berth disk list")
}

/// The root disk volume of a name or an id.
pub async fn find_root(project: &ProjectClient, text: &str) -> Result<RootDisk> {
    if is_id(text) {
        return Ok(project.root_disk(text).await?);
    }
    let mut found = Page::all(async |page| project.root_disks(page).await).await?;
    found.retain(|disk| disk.name == text);
    only(found, "disk", text, "berth disk list --root")
}

fn one(context: &Context, disk: DataDisk) -> Result<()> {
    output::print(context.json, &disk, |disk| show(std::slice::from_ref(disk)))
}

fn show(disks: &[DataDisk]) {
    let rows = disks.iter().map(|d| {
        let vm = output::or_dash(d.vm_id.as_deref());
        [
            d.name.clone(),
            d.status.clone(),
            d.kind.clone(),
            format!("{} GiB", d.size_gb),
            vm,
            output::age(&d.created_at),
            d.id.clone(),
        ]
    });
    let header = ["NAME", "STATUS", "KIND", "SIZE", "VM", "AGE", "ID"];
    output::table(header, rows, "No data disks. Make one: berth disk create NAME");
}

fn show_roots(disks: &[RootDisk]) {
    let rows = disks.iter().map(|d| {
        let vm = output::or_dash(d.vm_id.as_deref());
        [
            d.name.clone(),
            d.status.clone(),
            d.image_id.clone(),
            format!("{} GiB", d.size_gb),
            vm,
            output::age(&d.created_at),
            d.id.clone(),
        ]
    });
    output::table(["NAME", "STATUS", "IMAGE", "SIZE", "VM", "AGE", "ID"], rows, "No root disk volumes.");
}
