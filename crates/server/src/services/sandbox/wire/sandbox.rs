//! A sandbox as its owner sees it.

use std::collections::BTreeMap;

use berth_domain::Timestamp;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::fleet::told;
use crate::services::membership::MembershipView;
use crate::services::sandbox::store::sandbox::SandboxRow;

/// How a view is shown: to whom the service is known by which address, and when.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// Address of the service.
    pub base: &'a str,
    /// The time.
    pub now: Timestamp,
    /// Whether hosts are named: to administrators of the platform alone.
    pub names_hosts: bool,
}

/// A sandbox.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxResponse)]
pub struct SandboxView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name, and its host name inside.
    name: String,
    /// Where it stands.
    #[schema(value_type = SandboxPhase)]
    phase: &'static str,
    /// The step under way, or the reason of a failure.
    #[schema(required = true)]
    message: Option<String>,
    /// Host that it is on, once it is on one; administrators of the platform alone see it.
    #[schema(value_type = Option<uuid::Uuid>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    host_id: Option<String>,
    /// Where files, commands and terminals are reached.
    connect_url: String,
    /// The template it, or its origin, was made of.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    template_id: Option<String>,
    /// The snapshot it was made of.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    snapshot_id: Option<String>,
    /// The sandbox it was forked from.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    forked_from: Option<String>,
    /// Free pairs.
    metadata: BTreeMap<String, String>,
    /// Virtual CPUs.
    vcpu: i64,
    /// Memory, in MiB.
    memory_mb: i64,
    /// Disk, in GiB.
    disk_gb: i64,
    /// How many GPUs it has.
    gpu_config_count: i64,
    /// Their model.
    #[schema(required = true)]
    gpu_model: Option<String>,
    /// What it may reach.
    #[schema(value_type = NetworkPolicyView)]
    network: NetworkPolicy,
    /// Networks of the project that it belongs to.
    networks: Vec<MembershipView>,
    /// Seconds it lives while not paused.
    #[schema(required = true)]
    timeout_seconds: Option<i64>,
    /// Seconds it may be idle.
    #[schema(required = true)]
    idle_timeout_seconds: Option<i64>,
    /// What happens then.
    #[schema(value_type = OnTimeoutWord)]
    on_timeout: &'static str,
    /// Whether requests to it of whoever may change it resume it while it is paused.
    auto_resume: bool,
    /// Whether it is to outlive its host while it is paused.
    durable: bool,
    /// Since when a second host, or the store of backups, has all of it; `null` until then, and while it runs.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    copied_at: Option<Timestamp>,
    /// Seconds it was `Ready`.
    running_seconds: i64,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// End of its life; `null` before it was `Ready`, while it is paused, and without `timeout_seconds`.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    expires_at: Option<Timestamp>,
}

/// Sandboxes that were forked.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ForkedSandboxes)]
pub struct Forked {
    /// The new ones.
    pub data: Vec<SandboxView>,
}

/// What a sandbox may reach.
#[derive(ToSchema)]
#[schema(as = SandboxNetwork)]
#[expect(dead_code, reason = "describes `NetworkPolicy`")]
pub struct NetworkPolicyView {
    egress: EgressWord,
    allow: Vec<String>,
    deny: Vec<String>,
}

macro_rules! word_schema {
    ($($(#[$meta:meta])* $name:ident { $($word:ident),* })*) => {$(
        #[derive(ToSchema)]
        $(#[$meta])*
        #[expect(dead_code, reason = "describes a word of the wire")]
        pub(crate) enum $name { $($word),* }
    )*};
}
pub(super) use word_schema;

word_schema! {
    /// Where a sandbox stands. `Deleted` is told only to who waits for it.
    SandboxPhase { Pending, Provisioning, Ready, Pausing, Paused, Resuming, Restoring, Deleting, Failed, Deleted }
    /// What happens to a sandbox whose time is over or that nobody used; default `pause`.
    #[serde(rename_all = "snake_case")]
    OnTimeoutWord { Pause, Delete }
    /// What becomes of a connection that no rule speaks of; default `allow`.
    #[serde(rename_all = "snake_case")]
    EgressWord { Allow, Deny }
}

impl SandboxView {
    /// The view of a sandbox.
    pub fn new(row: &SandboxRow, shown: Shown<'_>) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            phase: row.phase.as_str(),
            message: told(row.machine.host_is_lost, row.message.as_deref()),
            host_id: row.machine.host.filter(|_| shown.names_hosts).map(|host| host.to_string()),
            connect_url: format!("{}/sandbox/{}", shown.base, row.id),
            template_id: row.template.map(|id| id.to_string()),
            snapshot_id: row.snapshot.map(|id| id.to_string()),
            forked_from: row.forked_from.map(|id| id.to_string()),
            metadata: row.metadata.clone(),
            vcpu: row.vcpu,
            memory_mb: row.memory_mb,
            disk_gb: row.disk_gb,
            gpu_config_count: row.gpu_config_count,
            gpu_model: row.gpu_model.clone(),
            network: row.network.clone(),
            networks: row.networks.iter().map(MembershipView::from).collect(),
            timeout_seconds: row.timeout_seconds,
            idle_timeout_seconds: row.idle_timeout_seconds,
            on_timeout: row.on_timeout.as_str(),
            auto_resume: row.auto_resume,
            durable: row.durable,
            copied_at: row.copy.map(|copy| copy.since),
            running_seconds: row.running_seconds(shown.now),
            created_at: row.created_at,
            updated_at: row.updated_at,
            expires_at: row.expires_at,
        }
    }

    /// The path of the sandbox.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/sandboxes/{}", scope.org, scope.project, self.id)
    }
}
