//! Requests about sandboxes, parsed once: after this nobody validates again.

use std::collections::BTreeMap;

use serde_json::Value;

use super::dockerfile::plan::Origin as Source;
use super::dockerfile::{Action, Dockerfile, Step};
use super::model::{OnTimeout, SourceKind};
use super::network_policy::{NetworkPolicy, NetworkPolicyChange};
use crate::error::Result;
use crate::fields::{Fields, Parsed, boolean, id, integer, sized, text};
use crate::ids::{NetworkId, SnapshotId, UploadId};
use crate::names::{HostName, ReferenceName};
use crate::network::read_ids;

/// Bounds of `timeout_seconds` and `idle_timeout_seconds`: 5 s to 30 days.
pub const TIMEOUT: (i64, i64) = (5, 30 * 86_400);
/// Bounds of `vcpu`.
pub const VCPU: (i64, i64) = (1, 8);
/// Bounds of `memory_mb`.
pub const MEMORY_MB: (i64, i64) = (128, 16_384);
/// Bounds of `disk_gb`.
pub const DISK_GB: (i64, i64) = (1, 100);
/// Bounds of `gpu_config_count`; what is on offer has its own.
pub const GPUS: (i64, i64) = (0, 1024);
/// Longest `gpu_model`, in characters.
pub const MAX_MODEL: usize = 255;
/// Most sandboxes of a fork.
pub const MAX_FORK: i64 = 100;
/// Most pairs of metadata.
pub const MAX_METADATA: usize = 64;
/// Longest key of metadata.
pub const MAX_KEY: usize = 64;
/// Longest value of metadata, in characters.
pub const MAX_VALUE: usize = 1024;
/// Largest metadata and largest environment, in bytes: names, values, and two for each pair. Both are read with every
/// list of sandboxes.
pub const MAX_PAIRS: usize = 32 * 1024;
/// What an image is called that was sent as an archive, before the upload's id.
pub const UPLOAD: &str = "upload:";
/// Longest start or ready command, in characters.
pub const MAX_COMMAND: usize = 4096;

/// Free pairs that sandboxes are found by.
pub type Metadata = BTreeMap<String, String>;
/// Environment of every command.
pub type Env = BTreeMap<String, String>;

/// What a sandbox is to be made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A template, by id or name.
    Template(String),
    /// A snapshot.
    Snapshot(SnapshotId),
}

/// A valid request for a sandbox. References are checked against the rows later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSandbox {
    /// What it is made of.
    pub origin: Origin,
    /// Its name; duplicates are allowed.
    pub name: Option<HostName>,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its environment, over that of its origin.
    pub env: Env,
    /// Seconds it lives while not paused.
    pub timeout_seconds: Option<i64>,
    /// Seconds it may be idle.
    pub idle_timeout_seconds: Option<i64>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether requests to it resume it while it is paused.
    pub auto_resume: bool,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// Networks of its project that it belongs to; where absent, those of what it is made of.
    pub networks: Option<Vec<NetworkId>>,
    /// How many GPUs it has.
    pub gpu_config_count: i64,
    /// Which, by the id or the name of a model; needed only where several are on offer.
    pub gpu_model: Option<String>,
}

impl TryFrom<&Value> for CreateSandbox {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let origin = read_origin(&mut f);
        let gpu_config_count = f.optional("gpu_config_count", integer(GPUS.0, GPUS.1)).unwrap_or(0);
        let gpu_model = f.optional("gpu_model", sized(1, MAX_MODEL));
        if gpu_model.is_some() && gpu_config_count == 0 {
            f.fail("gpu_model", "says which GPUs, so give gpu_config_count, too");
        }
        let request = Self {
            origin,
            name: f.optional("name", host_name),
            metadata: f.optional("metadata", metadata).unwrap_or_default(),
            env: f.optional("env", env).unwrap_or_default(),
            timeout_seconds: f.optional("timeout_seconds", integer(TIMEOUT.0, TIMEOUT.1)),
            idle_timeout_seconds: f.optional("idle_timeout_seconds", integer(TIMEOUT.0, TIMEOUT.1)),
            on_timeout: f.optional("on_timeout", on_timeout).unwrap_or(OnTimeout::Pause),
            auto_resume: f.optional("auto_resume", boolean).unwrap_or(false),
            network: f.object("network", NetworkPolicy::read).unwrap_or_default(),
            networks: read_ids(&mut f),
            gpu_config_count,
            gpu_model,
        };
        f.finish(Some(request))
    }
}

/// The template that sandboxes are made of where nobody says otherwise.
pub const BASE: &str = "base";

fn read_origin(f: &mut Fields<'_>) -> Origin {
    let template = f.optional("template_id", sized(1, 255));
    let snapshot = f.optional("snapshot_id", id);
    if f.has("template_id") && f.has("snapshot_id") {
        f.fail("snapshot_id", "give at most one of template_id and snapshot_id");
    }
    match (snapshot, template) {
        (Some(id), _) => Origin::Snapshot(id),
        (None, Some(name)) => Origin::Template(name),
        (None, None) => Origin::Template(BASE.to_owned()),
    }
}

/// A change of a sandbox; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateSandbox {
    /// Seconds it lives from now, while not paused.
    pub timeout_seconds: Option<i64>,
    /// Seconds it may be idle.
    pub idle_timeout_seconds: Option<i64>,
    /// What happens then.
    pub on_timeout: Option<OnTimeout>,
    /// Whether requests to it resume it while it is paused.
    pub auto_resume: Option<bool>,
    /// New metadata, replacing all.
    pub metadata: Option<Metadata>,
    /// What changes in the rules of its network.
    pub network: NetworkPolicyChange,
}

impl TryFrom<&Value> for UpdateSandbox {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self {
            timeout_seconds: f.optional("timeout_seconds", integer(TIMEOUT.0, TIMEOUT.1)),
            idle_timeout_seconds: f.optional("idle_timeout_seconds", integer(TIMEOUT.0, TIMEOUT.1)),
            on_timeout: f.optional("on_timeout", on_timeout),
            auto_resume: f.optional("auto_resume", boolean),
            metadata: f.optional("metadata", metadata),
            network: f.object("network", NetworkPolicyChange::read).unwrap_or_default(),
        };
        f.finish(Some(change))
    }
}

/// A request to fork.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// How many are made.
    pub count: i64,
    /// Their name; several get `-1`, `-2`, … behind it.
    pub name: Option<HostName>,
    /// Whether they go on where the memory was.
    pub include_memory: bool,
    /// A snapshot to take instead of the live state.
    pub snapshot_id: Option<SnapshotId>,
}

impl TryFrom<&Value> for Fork {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let count = f.optional("count", integer(1, MAX_FORK)).unwrap_or(1);
        let request = Self {
            count,
            name: f.optional("name", |v| {
                let name = host_name(v)?;
                numbered(&name, count, count)?;
                Ok(name)
            }),
            include_memory: f.optional("include_memory", boolean).unwrap_or(false),
            snapshot_id: f.optional("snapshot_id", id),
        };
        f.finish(Some(request))
    }
}

/// The name of one of several.
pub fn numbered(name: &HostName, number: i64, of: i64) -> Parsed<HostName> {
    if of == 1 {
        return Ok(name.clone());
    }
    let longest = HostName::MAX - 1 - of.to_string().len();
    HostName::parse(&format!("{}-{number}", name.as_str()))
        .map_err(|_| format!("must have at most {longest} characters, because a number is put behind it"))
}

/// A request to pause a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Whether the memory is kept; where nobody says so, it is if it can be.
    pub include_memory: Option<bool>,
    /// Whether it is to outlive its host while it is paused; where nobody says so, one that is paused already stays as it is.
    pub durable: Option<bool>,
}

impl TryFrom<&Value> for Pause {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let request =
            Self { include_memory: f.optional("include_memory", boolean), durable: f.optional("durable", boolean) };
        f.finish(Some(request))
    }
}

/// Reads the snapshot that a restore goes back to.
pub fn restore(body: &Value) -> Result<SnapshotId> {
    let mut f = Fields::of(body);
    let id = f.required("snapshot_id", id);
    f.finish(id)
}

/// A request for a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its name: free text.
    pub name: Option<String>,
    /// Whether the memory is kept, too.
    pub include_memory: bool,
    /// Whether it is to outlive its host.
    pub durable: bool,
}

impl TryFrom<&Value> for NewSnapshot {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let request = Self {
            name: f.optional("name", title),
            include_memory: f.optional("include_memory", boolean).unwrap_or(false),
            durable: f.optional("durable", boolean).unwrap_or(false),
        };
        f.finish(Some(request))
    }
}

/// A request for a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTemplate {
    /// Its name, unique in the project.
    pub name: ReferenceName,
    /// What kind of thing it is made of.
    pub kind: SourceKind,
    /// The thing: a reference, a text, or a snapshot's id.
    pub source: String,
    /// Virtual CPUs; a snapshot's where absent.
    pub vcpu: Option<i64>,
    /// Memory in MiB; a snapshot's where absent.
    pub memory_mb: Option<i64>,
    /// Disk in GiB; what is made from a snapshot has the snapshot's.
    pub disk_gb: Option<i64>,
    /// Environment of its sandboxes.
    pub env: Env,
    /// What its sandboxes find running.
    pub start_command: Option<String>,
    /// What succeeds when that is ready.
    pub ready_command: Option<String>,
    /// The files that a Dockerfile copies from.
    pub context: Option<UploadId>,
    /// Whether a template that has this name is deleted in its favour.
    pub replace: bool,
}

impl TryFrom<&Value> for CreateTemplate {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let request = read_template(&mut f);
        f.finish(request)
    }
}

fn read_template(f: &mut Fields<'_>) -> Option<CreateTemplate> {
    let name = f.required("name", |v| ReferenceName::parse(text(v)?));
    let image = f.optional("image", image).map(|text| (SourceKind::Image, text));
    let context = f.optional("context_id", id);
    if f.has("context_id") && !f.has("dockerfile") {
        f.fail("context_id", "goes with a dockerfile only");
    }
    let files = f.has("context_id");
    let dockerfile = f.optional("dockerfile", |v| dockerfile(v, files)).map(|text| (SourceKind::Dockerfile, text));
    let snapshot = f.optional("from_snapshot", id::<SnapshotId>).map(|id| (SourceKind::FromSnapshot, id.to_string()));
    let given = ["image", "dockerfile", "from_snapshot"].into_iter().filter(|field| f.has(field)).count();
    if given != 1 {
        f.fail("image", "give exactly one of image, dockerfile and from_snapshot");
    }
    let mut sizes = [None; 3];
    let bounds = [("vcpu", VCPU), ("memory_mb", MEMORY_MB), ("disk_gb", DISK_GB)];
    for (slot, (field, (least, most))) in sizes.iter_mut().zip(bounds) {
        let rule = integer(least, most);
        *slot = if f.has("from_snapshot") { f.optional(field, rule) } else { f.required(field, rule) };
    }
    let env = f.optional("env", env).unwrap_or_default();
    let start_command = f.optional("start_command", sized(1, MAX_COMMAND));
    let ready_command = f.optional("ready_command", sized(1, MAX_COMMAND));
    let replace = f.optional("replace", boolean).unwrap_or(false);
    let (kind, source) = image.or(dockerfile).or(snapshot)?;
    let [vcpu, memory_mb, disk_gb] = sizes;
    Some(CreateTemplate {
        name: name?,
        kind,
        source,
        vcpu,
        memory_mb,
        disk_gb,
        env,
        start_command,
        ready_command,
        context,
        replace,
    })
}

fn host_name(value: &Value) -> Parsed<HostName> {
    HostName::parse(text(value)?)
}

fn on_timeout(value: &Value) -> Parsed<OnTimeout> {
    OnTimeout::parse(text(value)?)
}

/// Rule: free text for people, on one line.
fn title(value: &Value) -> Parsed<String> {
    let title = sized(1, 64)(value)?;
    if title.chars().any(char::is_control) { Err("must not have control characters".into()) } else { Ok(title) }
}

/// Rule: what may stand behind a `FROM` as it is.
fn image(value: &Value) -> Parsed<String> {
    let image = sized(1, 512)(value)?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-:/@+".contains(&b);
    if image.bytes().all(plain) && !image.starts_with('-') {
        return Ok(image);
    }
    Err("names an image like 'base', 'debian:12', 'ghcr.io/owner/name@sha256:…' or 'upload:ID'".into())
}

/// Rule: a Dockerfile without mistakes, as far as that can be told before any image is there.
fn dockerfile(value: &Value, has_context: bool) -> Parsed<String> {
    let text = text(value)?;
    let given = BTreeMap::new();
    let parsed = Dockerfile::parse(text).map_err(|mistakes| mistakes.to_string())?;
    let plan = parsed.plan(&given, None, &|_| None).map_err(|mistakes| mistakes.to_string())?;
    let steps = plan.stages.iter().flat_map(|stage| &stage.steps);
    let is_copied = |step: &&Step| match &step.action {
        Action::Copy(copy) => copy.origin == Source::Context && !copy.sources.is_empty(),
        _ => false,
    };
    match steps.into_iter().find(is_copied).filter(|_| !has_context) {
        Some(step) => Err(format!(
            "line {}: there are no files to copy from; send them by POST …/sandbox_uploads and name them in context_id",
            step.line
        )),
        None => Ok(text.to_owned()),
    }
}

/// Whether a text can be a key of metadata.
pub fn is_metadata_key(key: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(plain)
}

fn pairs(value: &Value) -> Parsed<BTreeMap<String, String>> {
    let object = value.as_object().ok_or("must be an object of strings")?;
    let pair = |(key, value): (&String, &Value)| {
        let value = text(value).map_err(|rule| format!("{key}: {rule}"))?;
        Ok((key.clone(), value.to_owned()))
    };
    object.iter().map(pair).collect()
}

/// What pairs take: names, values, and two bytes for each pair.
fn bytes(pairs: &BTreeMap<String, String>) -> usize {
    pairs.iter().map(|(name, value)| name.len() + value.len() + 2).sum()
}

fn metadata(value: &Value) -> Parsed<Metadata> {
    let pairs = pairs(value)?;
    if pairs.len() > MAX_METADATA {
        return Err(format!("must have at most {MAX_METADATA} pairs"));
    }
    if !pairs.keys().all(|key| is_metadata_key(key)) {
        return Err(format!("keys must have 1 to {MAX_KEY} characters of A-Z, a-z, 0-9, '.', '_' and '-'"));
    }
    if pairs.values().any(|value| value.chars().count() > MAX_VALUE) {
        return Err(format!("values must have at most {MAX_VALUE} characters"));
    }
    if bytes(&pairs) > MAX_PAIRS {
        return Err(format!("must have at most {MAX_PAIRS} bytes: keys, values, and two for each pair"));
    }
    Ok(pairs)
}

fn env(value: &Value) -> Parsed<Env> {
    let pairs = pairs(value)?;
    let name = |name: &String| {
        let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    if !pairs.keys().all(name) {
        return Err("names must have letters, digits and '_' only, and not begin with a digit".into());
    }
    if bytes(&pairs) > MAX_PAIRS {
        return Err(format!("must have at most {MAX_PAIRS} bytes: names, values, and two for each pair"));
    }
    Ok(pairs)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
