//! API keys.

use berth_domain::fields::{Fields, integer, text};
use berth_domain::identity::api_key::PREFIX;
use berth_domain::identity::{KeyScope, KeyScopes};
use berth_domain::{Error, Result, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{time, title};
use crate::http::auth::Scope;
use crate::services::identity::store::api_key::KeyRow;

/// Longest overlap of a key and its successor: a week.
const OVERLAP: i64 = 7 * 86_400;

/// A key to be made.
pub struct NewKey {
    /// Name.
    pub name: String,
    /// What it is good for.
    pub scopes: KeyScopes,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
}

fn scopes(f: &mut Fields<'_>) -> Option<KeyScopes> {
    let listed = f.list("scopes", 10, |v| KeyScope::parse(text(v)?))?;
    let known = KeyScopes::new(listed);
    if known.is_none() && !f.failed() {
        f.fail("scopes", "must have at least one of: vm sandbox inference");
    }
    known
}

impl TryFrom<&Value> for NewKey {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", title);
        if !f.has("scopes") {
            f.fail("scopes", "is required");
        }
        let scopes = scopes(&mut f);
        let expires_at = f.optional("expires_at", time);
        f.finish(name.zip(scopes).map(|(name, scopes)| Self { name, scopes, expires_at }))
    }
}

/// What changes of a key.
pub struct ChangeKey {
    /// Name.
    pub name: Option<String>,
    /// What it is good for.
    pub scopes: Option<KeyScopes>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
}

impl TryFrom<&Value> for ChangeKey {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", title);
        let scopes = scopes(&mut f);
        let expires_at = f.optional("expires_at", time);
        f.finish(Some(Self { name, scopes, expires_at }))
    }
}

/// Reads how long a key and its successor are both good, in seconds; absent is 0.
pub fn overlap(body: &Value) -> Result<i64> {
    let mut f = Fields::of(body);
    let overlap = f.optional("overlap_seconds", integer(0, OVERLAP));
    f.finish(Some(overlap.unwrap_or(0)))
}

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
}

impl KeyView {
    /// A key as it stands now.
    pub fn of(row: &KeyRow, now: Timestamp) -> Self {
        Self {
            id: row.id.to_string(),
            name: row.name.clone(),
            prefix: format!("{PREFIX}{}", row.public_id),
            scopes: row.scopes.iter().map(KeyScope::as_str).collect(),
            status: match row.revoked_at {
                Some(_) => "revoked",
                None if row.lives(now) => "active",
                None => "expired",
            },
            created_by: row.created_by.to_string(),
            created_at: row.created_at,
            updated_at: row.updated_at,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
        }
    }

    /// What the audit log tells of the key.
    pub fn told(&self) -> Value {
        json!({"name": self.name, "scopes": self.scopes, "prefix": self.prefix})
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
    /// When it ends; never, where absent.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<String>,
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
}

/// How long a key stays good beside its successor.
#[derive(ToSchema)]
#[schema(as = RotateAPIKeyRequest)]
#[expect(dead_code, reason = "describes")]
pub struct RotateKeyBody {
    #[schema(minimum = 0, maximum = 604_800, default = 0)]
    overlap_seconds: Option<i64>,
}
