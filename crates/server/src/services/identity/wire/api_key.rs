//! API keys.

use berth_domain::Timestamp;
use berth_domain::identity::KeyScope;
use berth_domain::identity::api_key::PREFIX;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::identity::store::api_key::KeyRow;
use crate::services::identity::store::org::OrgRow;
use crate::services::identity::store::project::ProjectRow;

/// A key, without its secret.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = APIKeyResponse)]
pub struct KeyView {
    /// Id.
    #[schema(value_type = uuid::Uuid)]
    pub id: String,
    name: String,
    /// What the key begins with, to recognise it by.
    prefix: String,
    /// `vm`, `sandbox`, `inference`.
    scopes: Vec<&'static str>,
    /// `active`, `expired` or `revoked`.
    status: &'static str,
    /// Who made it.
    #[schema(value_type = uuid::Uuid)]
    created_by: String,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    expires_at: Option<Timestamp>,
    /// To the minute.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    last_used_at: Option<Timestamp>,
    /// Where it was used last.
    #[schema(required = true)]
    last_used_address: Option<String>,
    /// Networks that it may be used from; everywhere, where there are none.
    source_networks: Vec<String>,
    /// Who made it, and answers for it.
    owner: KeyOwnerView,
    /// Whether it lives longer than the organization lets keys live that are made now.
    exceeds_max_life: bool,
}

/// Who made a key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = APIKeyOwner)]
pub struct KeyOwnerView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Address; `null` where the account was deleted.
    #[schema(required = true)]
    email: Option<String>,
}

impl KeyView {
    /// A key as it stands now.
    pub fn of(row: &KeyRow, now: Timestamp) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            prefix: format!("{PREFIX}{}", row.public_id),
            scopes: row.scopes.iter().map(KeyScope::as_str).collect(),
            status: row.status(now).as_str(),
            created_by: row.created_by.to_string(),
            created_at: row.created_at,
            updated_at: row.updated_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            last_used_address: row.last_used_address.clone(),
            source_networks: row.networks.texts(),
            owner: KeyOwnerView { id: row.created_by.to_string(), email: row.maker_email.clone() },
            exceeds_max_life: row.outlives_limit(),
        }
    }

    /// What the audit log tells of the key.
    pub fn told(&self) -> Value {
        json!({"name": self.name, "scopes": self.scopes, "prefix": self.prefix, "source_networks": self.source_networks})
    }

    /// The path of the key.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/api_keys/{}", scope.org, scope.project, self.id)
    }
}

/// A new key with its secret.
#[derive(Serialize, ToSchema)]
#[schema(as = NewAPIKeyResponse)]
pub struct NewKeyView {
    /// The key without its secret.
    #[serde(flatten)]
    pub key: KeyView,
    /// The key itself, shown only here; absent where an Idempotency-Key is replayed.
    #[serde(rename = "key")]
    #[schema(required = false)]
    pub secret: String,
}

/// A key to be made.
#[derive(ToSchema)]
#[schema(as = CreateAPIKeyRequest)]
#[expect(dead_code, reason = "describes")]
pub struct NewKeyBody {
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// What it is good for: `vm`, `sandbox`, `inference`.
    #[schema(min_items = 1, max_items = 10)]
    scopes: Vec<String>,
    /// When it ends; never, where absent. An organization may say how long its keys live at most.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<String>,
    /// CIDRs and addresses that it may be used from; everywhere, where absent.
    #[schema(max_items = 50)]
    source_networks: Option<Vec<String>>,
}

/// What changes of a key.
#[derive(ToSchema)]
#[schema(as = UpdateAPIKeyRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ChangeKeyBody {
    #[schema(min_length = 1, max_length = 100)]
    name: Option<String>,
    #[schema(min_items = 1, max_items = 10)]
    scopes: Option<Vec<String>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<String>,
    /// All that it may be used from; an empty list is everywhere.
    #[schema(max_items = 50)]
    source_networks: Option<Vec<String>>,
}

/// How long a key stays good beside its successor.
#[derive(ToSchema)]
#[schema(as = RotateAPIKeyRequest)]
#[expect(dead_code, reason = "describes")]
pub struct RotateKeyBody {
    #[schema(minimum = 0, maximum = 604_800, default = 0)]
    overlap_seconds: Option<i64>,
}

/// Something with a name, as a key is told where it belongs.
#[derive(Serialize, ToSchema)]
#[schema(as = NamedResponse)]
pub struct NamedView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    slug: String,
    name: String,
}

/// A key as it is told of itself.
#[derive(Serialize, ToSchema)]
#[schema(as = OwnAPIKeyResponse)]
pub struct OwnKeyView {
    #[schema(value_type = uuid::Uuid)]
    id: String,
    name: String,
    /// What the key begins with.
    prefix: String,
    /// `vm`, `sandbox`, `inference`.
    scopes: Vec<&'static str>,
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    expires_at: Option<Timestamp>,
    /// Networks that it may be used from; everywhere, where there are none.
    source_networks: Vec<String>,
    organization: NamedView,
    project: NamedView,
}

impl OwnKeyView {
    /// A key of a project.
    pub fn new(key: &KeyRow, org: OrgRow, project: ProjectRow) -> Self {
        Self {
            id: key.id.to_string(),
            name: key.name.clone(),
            prefix: format!("{PREFIX}{}", key.public_id),
            scopes: key.scopes.iter().map(KeyScope::as_str).collect(),
            expires_at: key.expires_at,
            source_networks: key.networks.texts(),
            organization: NamedView { id: org.id.to_string(), slug: org.slug, name: org.name },
            project: NamedView { id: project.id.to_string(), slug: project.slug, name: project.name },
        }
    }
}
