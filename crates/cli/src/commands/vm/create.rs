//! `berth vm create`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{
    CreateRootDisk, CreateVm, DataDisks, DiskId, DiskSnapshot, NewVmDisk, Port, ProjectClient, RootDiskChoice, Vm,
};
use clap::Args;

use super::find::tell_shared;
use super::{price, show};
use crate::commands::{disk, image, network, ssh_key};
use crate::context::Context;
use crate::failure::Failure;
use crate::pairs::pairs;
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::{own_key, progress, size, span};

/// How large a root disk is where nothing is said of it, in GiB.
const SMALLEST: i64 = 20;
/// Seconds to wait for a new VM: an image may be cloned first.
const LONGEST: u64 = 600;

/// The option for each field.
pub const WORDS: Words = &[
    ("name", "NAME"),
    ("root_disk.create_disk_request.name", "NAME"),
    ("root_disk.create_disk_request.size_gb", "--disk"),
    ("root_disk.create_disk_request.image_id", "--image"),
    ("snapshot_id", "--snapshot"),
    ("root_disk.attach_disk_request", "--root-disk"),
    ("vm_config_id", "--size"),
    ("gpu_config_count", "--gpus"),
    ("data_disks.create_disks", "--data"),
    ("data_disks.attached_disks", "--attach"),
    ("network_ids", "--network"),
    ("ssh_keys", "--ssh-key"),
    ("ssh_key_ids", "--ssh-key"),
    ("exposed_ports", "--port"),
    ("user_data", "--user-data"),
    ("labels", "--label"),
    ("restart_policy", "--restart-policy"),
    ("region_id", "--region"),
    ("plan_id", "--plan"),
    ("ttl_seconds", "--ttl"),
    ("count", "--count"),
];

#[derive(Args)]
pub struct CreateArgs {
    /// Name: small letters, digits and hyphens, at most 20
    name: String,
    /// Image to boot: berth image list
    #[arg(long, short, default_value = "debian-12", conflicts_with_all = ["root_disk", "snapshot"])]
    image: String,
    /// Snapshot of a root disk to begin with, by name or id: berth disk snapshot list
    #[arg(long, conflicts_with = "root_disk")]
    snapshot: Option<String>,
    /// Size: berth catalog
    #[arg(long, short, default_value = "small")]
    size: String,
    /// How many GPUs, of a size that has some: berth catalog
    #[arg(long)]
    gpus: Option<i64>,
    /// Root disk in GiB, or as 1T: 20 to 2048; by default 20, or as much as the snapshot has
    #[arg(long, value_name = "GIB", value_parser = size::gib, conflicts_with = "root_disk")]
    disk: Option<u64>,
    /// Boot from this root disk, by name or id
    #[arg(long, value_name = "DISK")]
    root_disk: Option<String>,
    /// Keep the root disk when the VM is deleted
    #[arg(long)]
    keep_root_disk: bool,
    /// Make a data disk: NAME:GIB (a file system at /mnt/NAME) or NAME:GIB:block, repeated
    #[arg(long = "data", value_name = "NAME:GIB[:block]")]
    data: Vec<String>,
    /// Attach a data disk, by name or id, repeated
    #[arg(long = "attach", value_name = "DISK")]
    attach: Vec<String>,
    /// Network of the project that it belongs to, by name or id, repeated: berth network list
    #[arg(long = "network", value_name = "NETWORK")]
    networks: Vec<String>,
    /// Public key for the login user, repeated: a file, or the name of a stored key (berth ssh-key list); by default your
    /// file, or one that berth makes for you
    #[arg(long = "ssh-key", value_name = "NAME|FILE")]
    ssh_keys: Vec<PathBuf>,
    /// No key: nobody can log in over SSH
    #[arg(long, conflicts_with = "ssh_keys")]
    no_ssh_key: bool,
    /// Port to open: PORT or PORT/udp, repeated
    #[arg(long = "port", value_name = "PORT[/udp]")]
    ports: Vec<String>,
    /// File with user data for cloud-init
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// Label: KEY=VALUE, repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Whether to start the machine again when it dies: never, on-failure or always
    #[arg(long)]
    restart_policy: Option<String>,
    /// Region
    #[arg(long, default_value = "local")]
    region: String,
    /// Plan
    #[arg(long, default_value = "on-demand")]
    plan: String,
    /// Delete it after this time, as 90s, 2h or 7d; at most 30d
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    ttl: Option<u64>,
    /// So many VMs, 1 to 20, all or none; several are called NAME-1, NAME-2, …
    #[arg(long, short = 'n', conflicts_with_all = ["root_disk", "attach"])]
    count: Option<u32>,
    /// Print what it costs, and make nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

pub async fn create(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<()> {
    let (waiting, count) = (args.waiting, args.count);
    let dry_run = args.dry_run;
    let mut request = request(context, project, args).await?;
    if dry_run {
        return price::of(context, &request, count.unwrap_or(1)).await?.print(context.look);
    }
    if context.look.is_for_people()
        && let Ok(price) = price::of(context, &request, count.unwrap_or(1)).await
    {
        price.tell();
    }
    let mut made = ask(project, &request, count).await;
    // One of the project's own is known by its name, too, which the platform knows nothing of.
    if is_unknown_image(&made) && name_own_image(project, &mut request).await? {
        made = ask(project, &request, count).await;
    }
    let mut vms = made.map_err(|error| retold(error, WORDS))?;
    for vm in &mut vms {
        tell_shared(context, project, &vm.name).await;
        if waiting.wanted(false) {
            *vm = progress::wait(project, &vm.id, "running", waiting.longest(LONGEST), context.is_quiet()).await?;
        }
    }
    match vms.as_slice() {
        [vm] if count.is_none() => show::one(context, vm)?,
        vms => show::several(context, vms)?,
    }
    let has_key = !(request.ssh_keys.is_empty() && request.ssh_key_ids.is_empty());
    if let Some(vm) = vms.first().filter(|_| has_key && context.look.is_for_people()) {
        eprintln!("\nLog in: berth vm ssh {}", vm.name);
    }
    Ok(())
}

async fn ask(project: &ProjectClient, request: &CreateVm, count: Option<u32>) -> berth_client::Result<Vec<Vm>> {
    match count {
        Some(count) => project.create_vms(request, count).await,
        None => project.create_vm(request).await.map(|vm| vec![vm]),
    }
}

/// Whether the platform knows no image of that id.
pub fn is_unknown_image<T>(answer: &berth_client::Result<T>) -> bool {
    answer.as_ref().err().and_then(berth_client::Error::code) == Some("image_not_found")
}

/// Puts the id of one of the project's own images in the place of its name; whether there is one.
async fn name_own_image(project: &ProjectClient, request: &mut CreateVm) -> Result<bool> {
    let root = request.root_disk.create_disk_request.as_mut();
    let Some(image) = root.and_then(|root| root.image_id.as_mut()) else { return Ok(false) };
    let Some(own) = image::project_image::id_of(project, image).await? else { return Ok(false) };
    *image = own;
    Ok(true)
}

async fn request(context: &Context, project: &ProjectClient, args: CreateArgs) -> Result<CreateVm> {
    let user_data = args.user_data.as_deref().map(read).transpose()?;
    let snapshot = match &args.snapshot {
        Some(snapshot) => Some(disk::find_snapshot(project, snapshot).await?),
        None => None,
    };
    let root_disk = match &args.root_disk {
        Some(disk) => {
            let disk_id = disk::find_root(project, disk).await?.id;
            RootDiskChoice { attach_disk_request: Some(DiskId { disk_id }), create_disk_request: None }
        }
        None => RootDiskChoice {
            attach_disk_request: None,
            create_disk_request: Some(CreateRootDisk {
                name: args.name.clone(),
                size_gb: disk_gb(args.disk, snapshot.as_ref())?,
                image_id: snapshot.is_none().then_some(args.image),
            }),
        },
    };
    let mut attached = Vec::new();
    for disk in &args.attach {
        attached.push(DiskId { disk_id: disk::find_data(project, disk).await?.id });
    }
    let network_ids = network::ids(project, &args.networks).await?;
    // Who only asks for the price gets no key made.
    let (ssh_keys, ssh_key_ids) = if args.no_ssh_key || args.dry_run && args.ssh_keys.is_empty() {
        (Vec::new(), Vec::new())
    } else if args.ssh_keys.is_empty() {
        (vec![own_key::read(&own_key::public()?)?], Vec::new())
    } else {
        ssh_key::chosen(context, project, &args.ssh_keys).await?
    };
    let created = args.data.iter().map(|text| data_disk(text)).collect::<Result<Vec<_>>>()?;
    let some = !attached.is_empty() || !created.is_empty();
    Ok(CreateVm {
        ssh_keys,
        ssh_key_ids,
        name: args.name,
        region_id: args.region,
        vm_config_id: args.size,
        gpu_config_count: args.gpus,
        plan_id: args.plan,
        delete_root_disk: root_disk.create_disk_request.is_some() && !args.keep_root_disk,
        root_disk,
        snapshot_id: snapshot.map(|snapshot| snapshot.id),
        data_disks: some.then_some(DataDisks { attached_disks: attached, create_disks: created }),
        network_ids,
        exposed_ports: ports(&args.ports)?,
        user_data,
        labels: pairs(&args.labels, "label")?,
        restart_policy: args.restart_policy,
        ttl_seconds: args.ttl,
        count: None,
    })
}

/// How large a new root disk is to be, in GiB.
fn disk_gb(typed: Option<u64>, snapshot: Option<&DiskSnapshot>) -> Result<i64> {
    match typed {
        Some(size) => Ok(i64::try_from(size)?),
        None => Ok(snapshot.map_or(SMALLEST, |snapshot| snapshot.size_gb)),
    }
}

fn data_disk(text: &str) -> Result<NewVmDisk> {
    let wrong = || Failure::usage(format!("'{text}' is no data disk; it looks like data:10 or raw:10:block"));
    let mut parts = text.split(':');
    let (name, size) = parts.next().zip(parts.next()).ok_or_else(wrong)?;
    let kind = parts.next().unwrap_or("filesystem");
    let size_gb = size::gib(size).ok().and_then(|size| i64::try_from(size).ok()).ok_or_else(wrong)?;
    Ok(NewVmDisk { name: name.into(), kind: kind.into(), size_gb })
}

/// The typed ports.
pub fn ports(texts: &[String]) -> Result<Vec<Port>> {
    let port = |text: &String| {
        let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let number = number.parse().ok().filter(|n| *n > 0);
        number.map(|port| Port { port, protocol: protocol.to_owned() })
    };
    texts
        .iter()
        .map(|t| port(t).ok_or_else(|| Failure::usage(format!("'{t}' is no port; it looks like 80 or 53/udp"))))
        .collect()
}

/// The text of a file.
pub fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_disks_as_typed() {
        let ports = ports(&["80".into(), "53/udp".into()]).unwrap();
        assert_eq!((ports[0].port, ports[0].protocol.as_str(), ports[1].protocol.as_str()), (80, "tcp", "udp"));
        for bad in ["", "0", "65536", "x", "80-90"] {
            assert!(super::ports(&[bad.into()]).is_err(), "{bad}");
        }
        let disk = data_disk("data:10").unwrap();
        assert_eq!((disk.name.as_str(), disk.kind.as_str(), disk.size_gb), ("data", "filesystem", 10));
        assert_eq!(data_disk("raw:20:block").unwrap().kind, "block");
        assert_eq!(data_disk("large:1T").unwrap().size_gb, 1024);
        assert!(data_disk("data").is_err());
    }
}
