//! Requests to create and change VMs and disks, parsed once: after this nobody validates again.

use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

use super::disk::{DiskKind, DiskType, size};
use super::model::{ExposedPort, Protocol, RestartPolicy};
use crate::error::Result;
use crate::fields::{Fields, Parsed, boolean, id, integer, sized, text};
use crate::ids::{DiskId, DiskSnapshotId, NetworkId, SshKeyId, VmId};
use crate::label::labels;
use crate::names::Name;
use crate::network;
use crate::ssh_key::public_key;

/// Most data disks attached, and most created, with one VM.
pub const MAX_DISKS: usize = 4;
/// Most data disks of a VM.
pub const MAX_DATA_DISKS: usize = 2 * MAX_DISKS;
/// Most SSH keys of a VM.
pub const MAX_KEYS: usize = 10;
/// Most exposed ports of a VM.
pub const MAX_PORTS: usize = 10;
/// Most bytes of what names a region, an image or a plan.
pub(super) const REFERENCE: usize = 255;
/// Largest `user_data`, in bytes.
pub const MAX_USER_DATA: usize = 64 * 1024;
/// What user data may begin with: the heads that cloud-init knows (its page "User-data formats").
const USER_DATA: [&str; 8] = [
    "#!",
    "#cloud-config",
    "#cloud-boothook",
    "#include",
    "#part-handler",
    "#upstart-job",
    "## template:",
    "Content-Type:",
];
/// Within so many bytes a message of several parts says what it is.
const MIME_HEADERS: usize = 4096;
const UNKNOWN_USER_DATA: &str =
    "must begin with '#!' (a script), '#cloud-config' or another head that cloud-init knows";
/// Bounds of `ttl_seconds`: 5 s to 30 days.
pub const TTL: (i64, i64) = (5, 30 * 86_400);
/// Bounds of `count`: VMs of one request.
pub const COUNT: (i64, i64) = (1, 20);

/// A valid request for a VM. References (region, image, disks) are checked against the rows later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVm {
    /// Its name; duplicates are allowed.
    pub name: Name,
    /// Region to deploy to.
    pub region_id: String,
    /// Size of the machine.
    pub vm_config_id: String,
    /// GPUs; 0 is the same as absent.
    pub gpu_config_count: i64,
    /// Pricing plan.
    pub plan_id: String,
    /// Where its root disk comes from.
    pub root_disk: RootDisk,
    /// Existing data disks to attach.
    pub attached_disks: Vec<DiskId>,
    /// Data disks to make.
    pub create_disks: Vec<NewDisk>,
    /// Networks of its project that it belongs to.
    pub network_ids: Vec<NetworkId>,
    /// Public keys of the login user.
    pub ssh_keys: Vec<String>,
    /// Stored keys of the caller or the project, for the login user, too.
    pub ssh_key_ids: Vec<SshKeyId>,
    /// Inbound ports besides 22.
    pub exposed_ports: Vec<ExposedPort>,
    /// Whether deletion removes a root disk that was created with the VM.
    pub delete_root_disk: bool,
    /// (ext) What cloud-init gets.
    pub user_data: Option<String>,
    /// (ext) Free labels.
    pub labels: BTreeMap<String, String>,
    /// (ext) What happens when the machine dies.
    pub restart_policy: RestartPolicy,
    /// (ext) Seconds from its creation until it is deleted.
    pub ttl_seconds: Option<i64>,
    /// (ext) How many are made, where the request says so.
    pub count: Option<i64>,
}

impl CreateVm {
    /// The names of the VMs: the one that was given, with a number behind it where several are made.
    pub fn names(&self) -> Parsed<Vec<Name>> {
        let count = self.count.unwrap_or(1);
        (1..=count).map(|number| numbered(&self.name, number, count)).collect()
    }
}

/// The name of one of several.
fn numbered(name: &Name, number: i64, of: i64) -> Parsed<Name> {
    if of == 1 {
        return Ok(name.clone());
    }
    let longest = Name::MAX - 1 - of.to_string().len();
    Name::parse(&format!("{}-{number}", name.as_str()))
        .map_err(|_| format!("must have at most {longest} characters, because a number is put behind it"))
}

/// Where a root disk comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootDisk {
    /// An existing volume.
    Attach(DiskId),
    /// A new one.
    Create {
        /// Name of the volume.
        name: Name,
        /// Size in GiB.
        size_gb: i64,
        /// What it is a clone of.
        of: RootSource,
    },
}

/// What a root disk is a clone of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSource {
    /// An image.
    Image(String),
    /// (ext) A snapshot of another root disk.
    Snapshot(DiskSnapshotId),
}

/// A data disk to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// Its name; the mount point of a file system is `/mnt/<name>`.
    pub name: Name,
    /// Raw or with a file system.
    pub kind: DiskType,
    /// Size in GiB.
    pub size_gb: i64,
    /// (ext) The snapshot of another data disk that it begins as; else it is empty.
    pub snapshot_id: Option<DiskSnapshotId>,
}

impl TryFrom<&Value> for CreateVm {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let request = read_create(&mut f);
        f.finish(request)
    }
}

fn read_create(f: &mut Fields<'_>) -> Option<CreateVm> {
    let name = f.required("name", name);
    let region_id = f.required("region_id", reference);
    let vm_config_id = f.required("vm_config_id", reference);
    let gpu_config_count = f.optional("gpu_config_count", integer(0, 1024));
    let plan_id = f.required("plan_id", reference);
    let root_disk = read_root_disk(f);
    let (attached_disks, create_disks) = read_data_disks(f);
    let network_ids = network::read_ids(f).unwrap_or_default();
    let (ssh_keys, ssh_key_ids) = read_keys(f);
    let exposed_ports = read_ports(f).unwrap_or_default();
    let delete_root_disk = f.optional("delete_root_disk", boolean).unwrap_or(false);
    let user_data = f.optional("user_data", user_data);
    let labels = f.optional("labels", labels).unwrap_or_default();
    let restart_policy = f.optional("restart_policy", restart_policy);
    let ttl_seconds = f.optional("ttl_seconds", integer(TTL.0, TTL.1));
    let has_existing = matches!(root_disk, Some(RootDisk::Attach(_))) || !attached_disks.is_empty();
    let count = read_count(f, has_existing);
    if let (Some(name), Some(count)) = (&name, count)
        && let Err(rule) = numbered(name, count, count)
    {
        f.fail("name", rule);
    }
    Some(CreateVm {
        name: name?,
        region_id: region_id?,
        vm_config_id: vm_config_id?,
        gpu_config_count: gpu_config_count.unwrap_or(0),
        plan_id: plan_id?,
        root_disk: root_disk?,
        attached_disks,
        create_disks,
        network_ids,
        ssh_keys,
        ssh_key_ids,
        exposed_ports,
        delete_root_disk,
        user_data,
        labels,
        restart_policy: restart_policy.unwrap_or(RestartPolicy::Never),
        ttl_seconds,
        count,
    })
}

/// How many VMs are made; only one where a disk that exists is to be attached.
fn read_count(f: &mut Fields<'_>, has_existing_disk: bool) -> Option<i64> {
    let count = f.optional("count", integer(COUNT.0, COUNT.1))?;
    if count > 1 && has_existing_disk {
        f.fail("count", "must be 1 where an existing disk is attached: a disk belongs to one VM");
    }
    Some(count)
}

fn read_root_disk(f: &mut Fields<'_>) -> Option<RootDisk> {
    let has_snapshot = f.has("snapshot_id");
    let snapshot = f.optional("snapshot_id", id);
    if !f.has("root_disk") {
        f.fail("root_disk", "is required");
        return None;
    }
    let root_disk = f.object("root_disk", |f| match (f.has("attach_disk_request"), f.has("create_disk_request")) {
        (true, false) => f.object("attach_disk_request", |f| f.required("disk_id", id)).map(RootDisk::Attach),
        (false, true) => f.object("create_disk_request", |f| {
            let name = f.required("name", name);
            let size_gb = f.required("size_gb", integer(size::ROOT.0, size::ROOT.1));
            let of = read_root_source(f, has_snapshot, snapshot);
            Some(RootDisk::Create { name: name?, size_gb: size_gb?, of: of? })
        }),
        _ => {
            f.fail("attach_disk_request", "give exactly one of attach_disk_request and create_disk_request");
            None
        }
    });
    if has_snapshot && matches!(root_disk, Some(RootDisk::Attach(_))) {
        f.fail("snapshot_id", "must be absent where the VM has a root disk that exists");
    }
    root_disk
}

/// What a new root disk is a clone of: an image, or the snapshot where the whole request names one.
fn read_root_source(f: &mut Fields<'_>, has_snapshot: bool, snapshot: Option<DiskSnapshotId>) -> Option<RootSource> {
    if !has_snapshot {
        return f.required("image_id", reference).map(RootSource::Image);
    }
    if f.has("image_id") {
        f.fail("image_id", "must be absent where snapshot_id says what the VM begins with");
    }
    snapshot.map(RootSource::Snapshot)
}

fn read_data_disks(f: &mut Fields<'_>) -> (Vec<DiskId>, Vec<NewDisk>) {
    f.object("data_disks", |f| {
        let attached = f.objects("attached_disks", MAX_DISKS, |f| f.required("disk_id", id)).unwrap_or_default();
        unique(f, "attached_disks", &attached);
        let created = f.objects("create_disks", MAX_DISKS, read_new_disk).unwrap_or_default();
        Some((attached, created))
    })
    .unwrap_or_default()
}

/// Keys as such, and stored ones; together at most [`MAX_KEYS`].
fn read_keys(f: &mut Fields<'_>) -> (Vec<String>, Vec<SshKeyId>) {
    let keys = f.list("ssh_keys", MAX_KEYS, public_key).unwrap_or_default();
    unique(f, "ssh_keys", &keys);
    let ids = f.list("ssh_key_ids", MAX_KEYS, id).unwrap_or_default();
    unique(f, "ssh_key_ids", &ids);
    if keys.len() + ids.len() > MAX_KEYS {
        f.fail("ssh_key_ids", format!("must have at most {MAX_KEYS} items together with ssh_keys"));
    }
    (keys, ids)
}

fn read_new_disk(f: &mut Fields<'_>) -> Option<NewDisk> {
    let name = f.required("name", name);
    let kind = f.required("type", |v| DiskType::parse(text(v)?));
    let size_gb = f.required("size_gb", integer(size::DATA.0, size::DATA.1));
    let snapshot_id = f.optional("snapshot_id", id);
    Some(NewDisk { name: name?, kind: kind?, size_gb: size_gb?, snapshot_id })
}

fn read_ports(f: &mut Fields<'_>) -> Option<Vec<ExposedPort>> {
    let ports = f.objects("exposed_ports", MAX_PORTS, |f| {
        let port = f.required("port", |v| match integer(1, 65535)(v)? {
            22 => Err("22 is reserved for SSH".into()),
            port => u16::try_from(port).map_err(|_| "must be a port".into()),
        });
        let protocol = f.required("protocol", |v| Protocol::parse(text(v)?));
        Some(ExposedPort { port: port?, protocol: protocol? })
    })?;
    unique(f, "exposed_ports", &ports);
    Some(ports)
}

/// A request to make a data disk on its own (extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateDisk {
    /// What to make.
    pub disk: NewDisk,
    /// Where.
    pub region_id: String,
    /// Whether it lies on a host, though new disks of its region lie in a store.
    pub on_host: bool,
}

impl TryFrom<&Value> for CreateDisk {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let disk = read_new_disk(&mut f);
        let region_id = f.required("region_id", reference);
        let on_host = f.optional("on_host", boolean).unwrap_or(false);
        let request = disk.zip(region_id).map(|(disk, region_id)| Self { disk, region_id, on_host });
        f.finish(request)
    }
}

/// A request to attach a data disk to a VM (extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachDisk {
    /// The VM.
    pub vm_id: VmId,
}

impl TryFrom<&Value> for AttachDisk {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let vm_id = f.required("vm_id", id);
        f.finish(vm_id.map(|vm_id| Self { vm_id }))
    }
}

/// A request to have a disk grow (extension).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeDisk {
    /// Its size from then on, in GiB.
    pub size_gb: i64,
}

impl ResizeDisk {
    /// Reads one for a disk of a kind, which bounds its size.
    pub fn read(body: &Value, kind: DiskKind) -> Result<Self> {
        let mut f = Fields::of(body);
        let (least, most) = size::of(kind);
        let size_gb = f.required("size_gb", integer(least, most));
        f.finish(size_gb.map(|size_gb| Self { size_gb }))
    }
}

/// A request to give a VM another size (extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeVm {
    /// Its size from then on.
    pub vm_config_id: String,
}

impl TryFrom<&Value> for ResizeVm {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let vm_config_id = f.required("vm_config_id", reference);
        f.finish(vm_config_id.map(|vm_config_id| Self { vm_config_id }))
    }
}

/// A request to make the root disk of a VM anew (extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReinstallVm {
    /// The image that it is cloned from then.
    pub image_id: String,
}

impl TryFrom<&Value> for ReinstallVm {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let image_id = f.required("image_id", reference);
        f.finish(image_id.map(|image_id| Self { image_id }))
    }
}

/// A change of a VM (extension); absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateVm {
    /// New name.
    pub name: Option<Name>,
    /// New labels, replacing all.
    pub labels: Option<BTreeMap<String, String>>,
    /// New ports, replacing all.
    pub exposed_ports: Option<Vec<ExposedPort>>,
    /// New policy.
    pub restart_policy: Option<RestartPolicy>,
    /// Seconds from now until it is deleted.
    pub ttl_seconds: Option<i64>,
    /// What cloud-init gets from the next boot on.
    pub user_data: Option<String>,
}

impl TryFrom<&Value> for UpdateVm {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self {
            name: f.optional("name", name),
            labels: f.optional("labels", labels),
            exposed_ports: read_ports(&mut f),
            restart_policy: f.optional("restart_policy", restart_policy),
            ttl_seconds: f.optional("ttl_seconds", integer(TTL.0, TTL.1)),
            user_data: f.optional("user_data", user_data),
        };
        f.finish(Some(change))
    }
}

/// The keys that a VM has from now on (extension).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceKeys {
    /// Public keys of the login user.
    pub ssh_keys: Vec<String>,
    /// Stored keys of the caller or the project.
    pub ssh_key_ids: Vec<SshKeyId>,
}

impl TryFrom<&Value> for ReplaceKeys {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let (ssh_keys, ssh_key_ids) = read_keys(&mut f);
        if !f.has("ssh_keys") && !f.has("ssh_key_ids") {
            f.fail("ssh_keys", "is required; an empty list takes all keys away");
        }
        f.finish(Some(Self { ssh_keys, ssh_key_ids }))
    }
}

/// Rule: a VM or disk name.
pub fn name(value: &Value) -> Parsed<Name> {
    Name::parse(text(value)?)
}

fn reference(value: &Value) -> Parsed<String> {
    sized(1, REFERENCE)(value)
}

fn restart_policy(value: &Value) -> Parsed<RestartPolicy> {
    RestartPolicy::parse(text(value)?)
}

fn user_data(value: &Value) -> Parsed<String> {
    let data = text(value)?;
    if data.len() > MAX_USER_DATA {
        return Err(format!("must have at most {MAX_USER_DATA} bytes"));
    }
    // What cloud-init does not know it drops, with a line in a log that nobody reads.
    let known =
        data.is_empty() || is_message(data) || USER_DATA.iter().any(|head| starts_with(data.trim_start(), head));
    if known { Ok(data.to_owned()) } else { Err(UNKNOWN_USER_DATA.into()) }
}

/// Whether a text starts so, in small or capital letters.
fn starts_with(text: &str, head: &str) -> bool {
    text.get(..head.len()).is_some_and(|start| start.eq_ignore_ascii_case(head))
}

/// Whether it is a message with headers, which may stand in any order.
fn is_message(data: &str) -> bool {
    let head = &data.as_bytes()[..data.len().min(MIME_HEADERS)];
    String::from_utf8_lossy(head).to_ascii_lowercase().contains("mime-version:")
}

fn unique<T: Eq + std::hash::Hash>(f: &mut Fields<'_>, name: &str, items: &[T]) {
    let mut seen = HashSet::new();
    if !items.iter().all(|item| seen.insert(item)) {
        f.fail(name, "must not name the same thing twice");
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
