//! How a caller stands at this moment: the credential, whose it is, and the roles it has where a call goes to. One
//! statement, each part of which is found by a key, because every transaction of a caller begins with it.

use berth_domain::Timestamp;
use berth_domain::identity::{KeyScopes, OrgRole, ProjectRole, SourceNetworks};
use berth_domain::ids::{KeyId, OrgId, ProjectId, SessionId, UserId};

use super::org::REFUSED;
use crate::db::{DbError, FromRow, On, Row, sql};

/// Where a call goes to, as far as its path says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The organization.
    pub org: Option<OrgId>,
    /// The project.
    pub project: Option<ProjectId>,
}

/// A credential that is known.
#[derive(Clone, Debug)]
pub struct Standing {
    /// When it ends.
    pub ends_at: Option<Timestamp>,
    /// Whether it was revoked.
    pub revoked: bool,
    /// Whether the person is suspended whose it is, or who made it.
    pub suspended: bool,
    /// Whether the person administers the platform.
    pub is_admin: bool,
    /// What a key is good for.
    pub scopes: Option<KeyScopes>,
    /// Where a key may be used from.
    pub networks: SourceNetworks,
    /// Whether the organization is there.
    pub has_org: bool,
    /// Whether the organization is suspended, or nobody who owns it is active.
    pub org_refused: bool,
    /// The role in the organization.
    pub org_role: Option<OrgRole>,
    /// Whether the project is there.
    pub has_project: bool,
    /// The role in the project.
    pub project_role: Option<ProjectRole>,
}

impl FromRow for Standing {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            ends_at: row.opt_time("ends_at")?,
            revoked: row.opt_time("revoked_at")?.is_some(),
            suspended: row.opt_time("suspended_at")?.is_some(),
            is_admin: row.flag("is_admin")?,
            scopes: row.opt_word("scopes", KeyScopes::parse)?,
            networks: row.opt_word("networks", SourceNetworks::parse)?.unwrap_or_default(),
            has_org: row.opt_text("org_id")?.is_some(),
            org_refused: row.flag("refused")?,
            org_role: row.opt_word("org_role", OrgRole::parse)?,
            has_project: row.opt_text("project_id")?.is_some(),
            project_role: row.opt_word("project_role", ProjectRole::parse)?,
        })
    }
}

/// How a person stands who is signed in.
pub async fn of_person(
    on: impl On,
    user: UserId,
    session: SessionId,
    place: Place,
) -> Result<Option<Standing>, DbError> {
    sql(format!(
        "SELECT s.expires_at AS ends_at, s.revoked_at AS revoked_at, u.suspended_at AS suspended_at, \
         u.is_admin AS is_admin, NULL AS scopes, NULL AS networks, o.id AS org_id, {REFUSED} AS refused, m.role AS org_role, \
         p.id AS project_id, r.role AS project_role \
         FROM sessions s JOIN users u ON u.id = s.user_id AND u.deleted_at IS NULL \
         LEFT JOIN orgs o ON o.id = $3 AND o.deleted_at IS NULL \
         LEFT JOIN org_members m ON m.org_id = o.id AND m.user_id = u.id \
         LEFT JOIN projects p ON p.id = $4 AND p.org_id = o.id AND p.deleted_at IS NULL \
         LEFT JOIN project_members r ON r.project_id = p.id AND r.user_id = u.id \
         WHERE s.id = $1 AND s.user_id = $2"
    ))
    .bind(session)
    .bind(user)
    .bind(place.org)
    .bind(place.project)
    .fetch_optional(on)
    .await
}

/// How a key stands: an editor of its own project.
pub async fn of_key(on: impl On, key: KeyId, place: Place) -> Result<Option<Standing>, DbError> {
    sql(format!(
        "SELECT k.expires_at AS ends_at, k.revoked_at AS revoked_at, u.suspended_at AS suspended_at, \
         CAST(0 AS BIGINT) AS is_admin, k.scopes AS scopes, k.networks AS networks, o.id AS org_id, \
         {REFUSED} AS refused, NULL AS org_role, p.id AS project_id, 'editor' AS project_role \
         FROM api_keys k LEFT JOIN users u ON u.id = k.created_by \
         LEFT JOIN projects p ON p.id = k.project_id AND p.id = $2 AND p.deleted_at IS NULL \
         LEFT JOIN orgs o ON o.id = p.org_id AND o.deleted_at IS NULL \
         WHERE k.id = $1"
    ))
    .bind(key)
    .bind(place.project)
    .fetch_optional(on)
    .await
}
