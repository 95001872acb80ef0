//! Rows of invitations.

use berth_domain::Timestamp;
use berth_domain::identity::OrgRole;
use berth_domain::ids::{InvitationId, OrgId, UserId};
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// An invitation.
#[derive(Clone, Debug)]
pub struct InvitationRow {
    /// Id.
    pub id: InvitationId,
    /// Where to.
    pub org: OrgId,
    /// Whose address it is for.
    pub email: String,
    /// The role it gives.
    pub role: OrgRole,
    /// JSON of the roles in projects that it gives.
    pub project_roles: String,
    /// Who invites.
    pub invited_by: UserId,
    /// Creation.
    pub created_at: Timestamp,
    /// Its end.
    pub expires_at: Timestamp,
    /// When it was accepted.
    pub accepted_at: Option<Timestamp>,
    /// When it was taken back.
    pub revoked_at: Option<Timestamp>,
}

impl FromRow for InvitationRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            email: row.text("email")?,
            role: row.word("role", OrgRole::parse)?,
            project_roles: row.text("project_roles")?,
            invited_by: row.parsed("invited_by")?,
            created_at: row.time("created_at")?,
            expires_at: row.time("expires_at")?,
            accepted_at: row.opt_time("accepted_at")?,
            revoked_at: row.opt_time("revoked_at")?,
        })
    }
}

impl InvitationRow {
    /// Whether it can be accepted.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.accepted_at.is_none() && self.revoked_at.is_none() && self.expires_at > now
    }
}

/// Writes a new invitation.
pub async fn insert(tx: &mut Tx, invitation: &InvitationRow) -> Result<(), DbError> {
    sql("INSERT INTO invitations (id, org_id, email, email_key, role, project_roles, invited_by, created_at, \
         expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
    .bind(invitation.id)
    .bind(invitation.org)
    .bind(&invitation.email)
    .bind(invitation.email.to_lowercase())
    .bind(invitation.role.as_str())
    .bind(&invitation.project_roles)
    .bind(invitation.invited_by)
    .bind(invitation.created_at)
    .bind(invitation.expires_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Writes what may change of an invitation.
pub async fn update(tx: &mut Tx, invitation: &InvitationRow) -> Result<(), DbError> {
    sql("UPDATE invitations SET expires_at = $2, accepted_at = $3, revoked_at = $4 WHERE id = $1")
        .bind(invitation.id)
        .bind(invitation.expires_at)
        .bind(invitation.accepted_at)
        .bind(invitation.revoked_at)
        .execute(tx)
        .await
        .map(drop)
}

/// An invitation by id.
pub async fn find(on: impl On, id: InvitationId) -> Result<Option<InvitationRow>, DbError> {
    sql("SELECT * FROM invitations WHERE id = $1").bind(id).fetch_optional(on).await
}

/// An open invitation of an address to an organization.
pub async fn open_for(tx: &mut Tx, org: OrgId, email: &str, now: Timestamp) -> Result<Option<InvitationRow>, DbError> {
    sql("SELECT * FROM invitations WHERE org_id = $1 AND email_key = $2 AND accepted_at IS NULL \
         AND revoked_at IS NULL AND expires_at > $3")
    .bind(org)
    .bind(email.to_lowercase())
    .bind(now)
    .fetch_optional(tx)
    .await
}

/// A page of an organization's invitations, newest first, and how many there are.
pub async fn list(db: &Db, org: OrgId, page: Page) -> Result<(Vec<InvitationRow>, i64), DbError> {
    page_of("*", "invitations WHERE org_id = $1", "created_at DESC, id DESC").bind(org).fetch(db, page).await
}
