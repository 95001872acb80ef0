//! Data disks and root disk volumes. A disk has a name and an id; commands take both.

mod backup;
mod backup_schedule;
pub mod export;
mod find;
mod form;
mod import;
mod snapshot;
mod target;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use berth_client::{DataDisk, DiskSnapshot, List, NewDataDisk, Page, ProjectClient, RootDisk, VmFilter};
use clap::Subcommand;

use self::find::DISK;
pub use self::find::{find_data, find_root};
use self::form::{Kind, SMALLEST, WORDS};
pub use self::snapshot::find as find_snapshot;
use super::vm::find as find_vm;
use crate::context::Context;
use crate::made;
use crate::output::{self, Table};
use crate::progress::{Progress, Stage, watch};
use crate::several::{self, Doomed, find_all};
use crate::size;
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::watch::ListArgs;

/// Seconds to wait for a disk.
const LONGEST: u64 = 120;

/// What is said where the service says nothing.
const UNKNOWN: &str = "no reason was given";

/// Names of VMs by their ids.
type Names = BTreeMap<String, String>;

/// The argument for each field of a growth.
const RESIZED: Words = &[("size_gb", "GIB")];
/// The argument for each field of an attachment.
const ATTACHED: Words = &[("disk_id", "DISK"), ("vm_id", "VM")];
/// The column with the step under way or the failure; lists show it only in the wide form.
const MESSAGE: &str = "+MESSAGE";

#[derive(Subcommand)]
pub enum DiskCommand {
    /// List data disks
    #[command(visible_alias = "ls")]
    List {
        /// Root disk volumes instead
        #[arg(long)]
        root: bool,
        #[command(flatten)]
        args: ListArgs,
    },
    /// Show one data disk
    #[command(visible_alias = "show")]
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
        /// Size in GiB, or as 1T: 10 to 2048; by default 10, or as much as the snapshot has
        #[arg(long, alias = "disk", value_name = "GIB", value_parser = size::gib)]
        size: Option<u64>,
        /// Its form in the guest: a file system mounted at /mnt/NAME (the default), or raw blocks; that of the snapshot
        #[arg(long, value_enum)]
        kind: Option<Kind>,
        /// Snapshot of a data disk that it begins as, by name or id; else it is empty
        #[arg(long)]
        snapshot: Option<String>,
        /// It lies on a host, though new disks of its region lie in a store: for a VM whose disks lie on its host
        #[arg(long)]
        on_host: bool,
        /// Region
        #[arg(long, default_value = "local")]
        region: String,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Make a disk larger, while a VM uses it or not
    Resize {
        /// Name or id
        disk: String,
        /// Its new size in GiB, or as 1T: larger than it is, at most 2048
        #[arg(value_name = "GIB", value_parser = size::gib)]
        size: u64,
        /// A root disk volume
        #[arg(long)]
        root: bool,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Attach a data disk to a VM, which may run
    Attach {
        /// Disk, by name or id
        disk: String,
        /// VM, by name or id
        vm: String,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Detach a data disk from its VM, which may run: unmount it there first
    Detach {
        /// Name or id
        disk: String,
        #[command(flatten)]
        waiting: WaitArgs,
    },
    /// Snapshots of disks
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Backups of disks, kept outside of the host
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Save a disk that no running VM has, or a snapshot, as a stand-alone qcow2 file; what broke off goes on
    Export(export::ExportArgs),
    /// Make a data disk of a file on this machine, qcow2 or raw, and wait until it is ready
    Import(import::ImportArgs),
    /// Delete disks that no VM has
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        disks: Vec<String>,
        /// Root disk volumes
        #[arg(long)]
        root: bool,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

/// Runs the typed command.
pub async fn run(context: &Context, command: DiskCommand) -> Result<()> {
    let project = context.project()?;
    match command {
        DiskCommand::List { root: false, args } => list(context, &project, args).await,
        DiskCommand::List { root: true, args } => list_roots(context, &project, args).await,
        DiskCommand::Get { disk, root: false } => one(context, &project, find_data(&project, &disk).await?).await,
        DiskCommand::Get { disk, root: true } => one_root(context, &project, find_root(&project, &disk).await?).await,
        DiskCommand::Create { name, size, kind, snapshot, on_host, region, waiting } => {
            let snapshot = match snapshot {
                Some(snapshot) => Some(find_snapshot(&project, &snapshot).await?),
                None => None,
            };
            let request = NewDataDisk { on_host, ..new_disk((name, region), (size, kind), snapshot)? };
            let disk = project.create_disk(&request).await.map_err(|error| retold(error, WORDS))?;
            tell_shared(context, &project, &disk.name).await;
            let (longest, look) = (waiting.longest(LONGEST), async |id: &str| project.disk(id).await);
            let disk = if waiting.wanted(false) {
                made::wait(disk, Some(longest), context.is_quiet(), look).await?
            } else {
                disk
            };
            one(context, &project, disk).await
        }
        DiskCommand::Resize { disk, size, root, waiting } => {
            let size_gb = i64::try_from(size)?;
            if root {
                resize_root(context, &project, &disk, size_gb, waiting).await
            } else {
                resize(context, &project, &disk, size_gb, waiting).await
            }
        }
        DiskCommand::Attach { disk, vm, waiting } => {
            let (disk, vm) = (find_data(&project, &disk).await?, find_vm(&project, &vm).await?);
            let attached = project.attach_disk(&disk.id, &vm.id).await.map_err(|error| retold(error, ATTACHED))?;
            let attached = settled(context, &project, attached, waiting).await?;
            if waiting.wanted(false) && !attached.is_attached {
                bail!("{} was not attached: {}", attached.name, attached.message.as_deref().unwrap_or(UNKNOWN));
            }
            one(context, &project, attached).await
        }
        DiskCommand::Detach { disk, waiting } => {
            let disk = find_data(&project, &disk).await?;
            let detached = settled(context, &project, project.detach_disk(&disk.id).await?, waiting).await?;
            if waiting.wanted(false) && detached.is_attached {
                bail!("{} was not detached: {}", detached.name, detached.message.as_deref().unwrap_or(UNKNOWN));
            }
            one(context, &project, detached).await
        }
        DiskCommand::Backup(command) => backup::run(context, &project, command).await,
        DiskCommand::Snapshot(command) => snapshot::run(context, &project, command).await,
        DiskCommand::Export(args) => export::run(context, &project, args).await,
        DiskCommand::Import(args) => {
            let disk = import::run(context, &project, args).await?;
            tell_shared(context, &project, &disk.name).await;
            one(context, &project, disk).await
        }
        DiskCommand::Delete { disks, root: false, waiting } => delete(context, &project, &disks, waiting).await,
        DiskCommand::Delete { disks, root: true, waiting } => delete_roots(context, &project, &disks, waiting).await,
    }
}

async fn list(context: &Context, project: &ProjectClient, args: ListArgs) -> Result<()> {
    let table = async |disks: &List<DataDisk>| {
        let vms = vms(context, project, disks.data.iter().any(|disk| disk.vm_id.is_some())).await?;
        output::list(context.look, disks, |disks| show(disks, &vms, MESSAGE))
    };
    args.show_with(Some(project), async |page| project.disks(page).await, table).await
}

async fn list_roots(context: &Context, project: &ProjectClient, args: ListArgs) -> Result<()> {
    let table = async |disks: &List<RootDisk>| {
        let vms = vms(context, project, disks.data.iter().any(|disk| disk.vm_id.is_some())).await?;
        output::list(context.look, disks, |disks| show_roots(disks, &vms, MESSAGE))
    };
    args.show_with(Some(project), async |page| project.root_disks(page).await, table).await
}

/// A disk as it was typed; what was not is as the snapshot has it.
fn new_disk(
    (name, region_id): (String, String),
    (size, kind): (Option<u64>, Option<Kind>),
    snapshot: Option<DiskSnapshot>,
) -> Result<NewDataDisk> {
    let of_snapshot = snapshot.as_ref();
    let size_gb = match size {
        Some(size) => i64::try_from(size)?,
        None => of_snapshot.map_or(SMALLEST, |snapshot| snapshot.size_gb),
    };
    let of_kind = |kind: Kind| kind.word().to_owned();
    let unsaid = || of_snapshot.map_or_else(|| of_kind(Kind::Filesystem), |snapshot| snapshot.disk_type.clone());
    let kind = kind.map_or_else(unsaid, of_kind);
    Ok(NewDataDisk {
        name,
        kind,
        size_gb,
        region_id,
        snapshot_id: snapshot.map(|snapshot| snapshot.id),
        on_host: false,
    })
}

async fn resize(context: &Context, project: &ProjectClient, text: &str, size_gb: i64, waiting: WaitArgs) -> Result<()> {
    let disk = find_data(project, text).await?;
    let disk = project.resize_disk(&disk.id, size_gb).await.map_err(|error| retold(error, RESIZED))?;
    let disk = settled(context, project, disk, waiting).await?;
    if waiting.wanted(false) {
        became(&disk.name, (disk.size_gb, size_gb), disk.message.as_deref())?;
    }
    one(context, project, disk).await
}

/// Waits until nothing is under way for a disk, if that is wanted.
async fn settled(context: &Context, project: &ProjectClient, disk: DataDisk, waiting: WaitArgs) -> Result<DataDisk> {
    if !waiting.wanted(false) {
        return Ok(disk);
    }
    let id = disk.id.clone();
    let stage = |disk: &DataDisk| Ok(changing(&disk.name, disk.change.as_deref(), waiting));
    let look = async || Ok(project.disk(&id).await?);
    watch(Progress::new(context.is_quiet()), Some(waiting.longest(LONGEST)), disk, stage, look).await
}

async fn resize_root(
    context: &Context,
    project: &ProjectClient,
    text: &str,
    size_gb: i64,
    waiting: WaitArgs,
) -> Result<()> {
    let disk = find_root(project, text).await?;
    let mut disk = project.resize_root_disk(&disk.id, size_gb).await.map_err(|error| retold(error, RESIZED))?;
    if waiting.wanted(false) {
        let id = disk.id.clone();
        let stage = |disk: &RootDisk| Ok(changing(&disk.name, disk.change.as_deref(), waiting));
        let look = async || Ok(project.root_disk(&id).await?);
        disk = watch(Progress::new(context.is_quiet()), Some(waiting.longest(LONGEST)), disk, stage, look).await?;
        became(&disk.name, (disk.size_gb, size_gb), disk.message.as_deref())?;
    }
    one_root(context, project, disk).await
}

/// The stage of a disk for which something is under way.
fn changing(name: &str, change: Option<&str>, waiting: WaitArgs) -> Stage {
    let seconds = waiting.longest(LONGEST);
    change.map_or(Stage::Over, |change| Stage::Underway {
        shown: format!("{name}: {change}"),
        late: format!("{name} is still {change} after {seconds} s"),
    })
}

/// Whether a disk became as large as it was asked to.
fn became(name: &str, (size_gb, wanted_gb): (i64, i64), message: Option<&str>) -> Result<()> {
    if size_gb < wanted_gb {
        bail!("{name} stays at {size_gb} GiB: {}", message.unwrap_or(UNKNOWN));
    }
    Ok(())
}

async fn delete(context: &Context, project: &ProjectClient, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let disks = find_all(texts, async |text: &str| find_data(project, text).await).await?;
    let doomed = disks.into_iter().map(|DataDisk { name, id, .. }| Doomed { name, id });
    let ask = async |id: &str| project.delete_disk(id).await;
    let look = async |id: &str| project.disk(id).await.map(|disk| disk.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

async fn delete_roots(context: &Context, project: &ProjectClient, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let disks = find_all(texts, async |text: &str| find_root(project, text).await).await?;
    let doomed = disks.into_iter().map(|RootDisk { name, id, .. }| Doomed { name, id });
    let ask = async |id: &str| project.delete_root_disk(id).await;
    let look = async |id: &str| project.root_disk(id).await.map(|disk| disk.status);
    several::delete(context, doomed.collect(), (waiting, LONGEST), ask, look).await
}

/// Says that a new disk shares its name with others.
async fn tell_shared(context: &Context, project: &ProjectClient, name: &str) {
    let count = async || {
        let all = Page::all(async |page| project.disks(page).await).await?;
        Ok(all.iter().map(|disk| i64::from(disk.name == name)).sum())
    };
    DISK.tell_shared(context, name, count).await;
}

/// The names of VMs, for people, if a disk is attached to one.
async fn vms(context: &Context, project: &ProjectClient, wanted: bool) -> Result<Names> {
    if !wanted || !context.look.is_for_people() {
        return Ok(Names::new());
    }
    let page = |at: Page| VmFilter { page: Some(at.page), limit: Some(at.limit), ..VmFilter::default() };
    let all = Page::all(async |at| project.vms(page(at)).await).await?;
    Ok(all.into_iter().map(|vm| (vm.id, vm.name)).collect())
}

async fn one(context: &Context, project: &ProjectClient, disk: DataDisk) -> Result<()> {
    let vms = vms(context, project, disk.vm_id.is_some()).await?;
    let message = column(disk.message.as_deref());
    output::rows(context.look, &disk, |disk| show(std::slice::from_ref(disk), &vms, message))
}

async fn one_root(context: &Context, project: &ProjectClient, disk: RootDisk) -> Result<()> {
    let vms = vms(context, project, disk.vm_id.is_some()).await?;
    let message = column(disk.message.as_deref());
    output::rows(context.look, &disk, |disk| show_roots(std::slice::from_ref(disk), &vms, message))
}

/// The column for one disk's message: shown if it has one.
fn column(message: Option<&str>) -> &'static str {
    if message.is_some() { MESSAGE.trim_start_matches('+') } else { MESSAGE }
}

/// The name of a disk's VM.
fn vm(id: Option<&str>, vms: &Names) -> String {
    output::or_dash(id.map(|id| vms.get(id).map_or(id, String::as_str)))
}

fn show(disks: &[DataDisk], vms: &Names, message: &'static str) -> Table {
    let rows = disks.iter().map(|d| {
        let vm = vm(d.vm_id.as_deref(), vms);
        [
            d.name.clone(),
            d.change.clone().unwrap_or_else(|| d.status.clone()),
            d.kind.clone(),
            format!("{} GiB", d.size_gb),
            vm,
            output::age(&d.created_at),
            d.id.clone(),
            output::or_dash(d.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "KIND", "SIZE", "VM", "AGE", "ID", message];
    Table::new(header, rows, "No data disks. Make one: berth disk create NAME")
}

fn show_roots(disks: &[RootDisk], vms: &Names, message: &'static str) -> Table {
    let rows = disks.iter().map(|d| {
        let vm = vm(d.vm_id.as_deref(), vms);
        [
            d.name.clone(),
            d.status.clone(),
            d.image_id.clone(),
            format!("{} GiB", d.size_gb),
            vm,
            output::age(&d.created_at),
            d.id.clone(),
            output::or_dash(d.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "IMAGE", "SIZE", "VM", "AGE", "ID", message];
    Table::new(header, rows, "No root disk volumes.")
}
