//! Bodies of requests as the document describes them. The domain parses them; see
//! [`berth_domain::sandbox::request`].

#![expect(dead_code, reason = "these types describe; the domain parses")]

use std::collections::BTreeMap;

use utoipa::ToSchema;

use super::sandbox::{EgressWord, OnTimeoutWord};

/// A sandbox to create. Of `template_id` and `snapshot_id` at most one; neither means the template `base`.
#[derive(ToSchema)]
#[schema(as = CreateSandboxRequest)]
pub struct CreateSandboxBody {
    /// Id or name of a template.
    #[schema(min_length = 1, max_length = 255)]
    template_id: Option<String>,
    #[schema(value_type = Option<uuid::Uuid>)]
    snapshot_id: Option<String>,
    /// Its name, and its host name inside; made up where absent. Duplicates are allowed.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: Option<String>,
    /// At most 64 pairs: keys of 1 to 64 characters of `A-Za-z0-9._-`, values of at most 1,024 characters, 32 KiB in
    /// all.
    metadata: Option<BTreeMap<String, String>>,
    /// Environment of every command: names of letters, digits and `_`, at most 32 KiB in all.
    env: Option<BTreeMap<String, String>>,
    /// Seconds it lives, from the first `Ready`, while not paused; for ever where absent.
    #[schema(minimum = 5, maximum = 2_592_000)]
    timeout_seconds: Option<i64>,
    /// Seconds it may be without a request, an open stream or terminal, and a running command.
    #[schema(minimum = 5, maximum = 2_592_000)]
    idle_timeout_seconds: Option<i64>,
    on_timeout: Option<OnTimeoutWord>,
    /// Whether requests to it of whoever may change it resume it while it is paused.
    #[schema(default = false)]
    auto_resume: Option<bool>,
    network: Option<NetworkPolicyBody>,
    /// Networks of the project that it belongs to, beside those it reaches by `network`. Where absent, those of the
    /// snapshot's sandbox that are still there.
    #[schema(max_items = 4)]
    network_ids: Option<Vec<uuid::Uuid>>,
    /// How many of the host's GPUs it has for itself. One with any boots from its disk, and no memory of it is kept.
    #[schema(minimum = 0, maximum = 1024, default = 0)]
    gpu_config_count: Option<i64>,
    /// Which: a `gpu_model` of `GET /api/v1/vm_configs`. Required where several are on offer.
    #[schema(min_length = 1, max_length = 255)]
    gpu_model: Option<String>,
}

/// What a sandbox may reach; `deny` wins.
#[derive(ToSchema)]
#[schema(as = SandboxNetworkRequest)]
pub struct NetworkPolicyBody {
    egress: Option<EgressWord>,
    /// CIDRs, addresses and domain names such as `*.example.org`.
    #[schema(max_items = 100)]
    allow: Option<Vec<String>>,
    #[schema(max_items = 100)]
    deny: Option<Vec<String>>,
}

/// A change of a sandbox; absent fields stay as they are.
#[derive(ToSchema)]
#[schema(as = UpdateSandboxRequest)]
pub struct UpdateSandboxBody {
    /// Sets its life time anew, from now.
    #[schema(minimum = 5, maximum = 2_592_000)]
    timeout_seconds: Option<i64>,
    #[schema(minimum = 5, maximum = 2_592_000)]
    idle_timeout_seconds: Option<i64>,
    on_timeout: Option<OnTimeoutWord>,
    /// Whether requests to it of whoever may change it resume it while it is paused.
    auto_resume: Option<bool>,
    /// Replaces all pairs.
    metadata: Option<BTreeMap<String, String>>,
    /// What is absent in it stays as it is, too; a list replaces the one of before.
    network: Option<NetworkPolicyBody>,
}

/// How a sandbox is paused.
#[derive(ToSchema)]
#[schema(as = PauseSandboxRequest)]
pub struct PauseBody {
    /// Whether its memory is kept, so that processes go on after it is resumed; by default where it can be, which is wherever
    /// the sandbox has no GPU.
    include_memory: Option<bool>,
    /// Whether it is to outlive its host while it is paused: all of it is kept on a second one or in the store of backups, too. Of
    /// one that is paused already, `false` ends that.
    durable: Option<bool>,
}

/// How a sandbox is forked.
#[derive(ToSchema)]
#[schema(as = ForkSandboxRequest)]
pub struct ForkBody {
    #[schema(minimum = 1, maximum = 100, default = 1)]
    count: Option<i64>,
    /// Name of the new ones; several get `-1`, `-2`, … behind it.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: Option<String>,
    /// Whether processes go on in the new ones.
    #[schema(default = false)]
    include_memory: Option<bool>,
    /// A snapshot to take instead of the live state.
    #[schema(value_type = Option<uuid::Uuid>)]
    snapshot_id: Option<String>,
}

/// What a sandbox goes back to.
#[derive(ToSchema)]
#[schema(as = RestoreSandboxRequest)]
pub struct RestoreBody {
    #[schema(value_type = uuid::Uuid)]
    snapshot_id: String,
}

/// A snapshot to take.
#[derive(ToSchema)]
#[schema(as = CreateSnapshotRequest)]
pub struct CreateSnapshotBody {
    /// Free text without control characters; made up where absent.
    #[schema(min_length = 1, max_length = 64)]
    name: Option<String>,
    /// Whether the memory is kept, too.
    #[schema(default = false)]
    include_memory: Option<bool>,
    /// Whether it is to outlive its host: all of it is kept on a second one or in the store of backups, too.
    #[schema(default = false)]
    durable: Option<bool>,
}

/// A template to build: exactly one of `image`, `dockerfile` and `from_snapshot`.
#[derive(ToSchema)]
#[schema(as = CreateSandboxTemplateRequest)]
pub struct CreateTemplateBody {
    /// Unique in the project; not like a UUID.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 63)]
    name: String,
    /// A container image: a template's name, a registry's reference, or `upload:ID`.
    #[schema(min_length = 1, max_length = 512, pattern = "^[A-Za-z0-9._:/@+][-A-Za-z0-9._:/@+]*$")]
    image: Option<String>,
    /// The text of a Dockerfile, at most 64 KiB.
    #[schema(min_length = 1, max_length = 65536)]
    dockerfile: Option<String>,
    /// The upload that its `COPY` takes files from.
    #[schema(value_type = Option<uuid::Uuid>)]
    context_id: Option<String>,
    #[schema(value_type = Option<uuid::Uuid>)]
    from_snapshot: Option<String>,
    /// Required but with `from_snapshot`, where the snapshot's is the default.
    #[schema(minimum = 1, maximum = 8)]
    vcpu: Option<i64>,
    /// Required but with `from_snapshot`, where the snapshot's is the default.
    #[schema(minimum = 128, maximum = 16384)]
    memory_mb: Option<i64>,
    /// Required but with `from_snapshot`, whose disk keeps its size.
    #[schema(minimum = 1, maximum = 100)]
    disk_gb: Option<i64>,
    /// Environment of every command in its sandboxes.
    env: Option<BTreeMap<String, String>>,
    /// Runs once when the template is built; its sandboxes find it running.
    #[schema(min_length = 1, max_length = 4096)]
    start_command: Option<String>,
    /// Succeeds when what `start_command` runs is ready.
    #[schema(min_length = 1, max_length = 4096)]
    ready_command: Option<String>,
    /// Whether a template of the project that has this name is deleted in its favour, at once. Sandboxes that have
    /// their disk stay; where this one's build fails, the former does not come back. One that failed is replaced in any
    /// case.
    #[schema(default = false)]
    replace: Option<bool>,
}
