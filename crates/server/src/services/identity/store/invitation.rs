//! Rows of invitations.

use berth_domain::Timestamp;
use berth_domain::identity::{InvitationStatus, OrgRole};
use berth_domain::ids::{InvitationId, OrgId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// The table.
const TABLE: &str = "invitations";

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
    /// Who sent it last, by whose right it counts.
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

impl InvitationRow {
    /// Where it stands.
    pub fn status(&self, now: Timestamp) -> InvitationStatus {
        InvitationStatus::of(self.expires_at, self.accepted_at, self.revoked_at, now)
    }
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
        self.status(now) == InvitationStatus::Pending
    }
}

/// The id, and what may change of an invitation.
fn changeable(invitation: &InvitationRow) -> Columns {
    columns! {
        "id": invitation.id, "invited_by": invitation.invited_by, "expires_at": invitation.expires_at,
        "accepted_at": invitation.accepted_at, "revoked_at": invitation.revoked_at,
    }
}

fn columns(invitation: &InvitationRow) -> Columns {
    let lasting = columns! {
        "org_id": invitation.org, "email": &invitation.email, "email_key": invitation.email.to_lowercase(),
        "role": invitation.role.as_str(), "project_roles": &invitation.project_roles,
        "created_at": invitation.created_at,
    };
    [changeable(invitation), lasting].concat()
}

/// Writes a new invitation.
pub async fn insert(tx: &mut Tx, invitation: &InvitationRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(invitation)).execute(tx).await.map(drop)
}

/// Writes what may change of an invitation.
pub async fn update(tx: &mut Tx, invitation: &InvitationRow) -> Result<(), DbError> {
    record::overwrite(TABLE, changeable(invitation)).execute(tx).await.map(drop)
}

/// Takes back the open invitations that a person sent: those of one organization, or all. How many.
pub async fn end_of(tx: &mut Tx, sender: UserId, org: Option<OrgId>, now: Timestamp) -> Result<u64, DbError> {
    sql("UPDATE invitations SET revoked_at = $3 WHERE invited_by = $1 AND (org_id = $2 OR $2 IS NULL) \
         AND accepted_at IS NULL AND revoked_at IS NULL")
    .bind(sender)
    .bind(org)
    .bind(now)
    .execute(tx)
    .await
}

/// An invitation by id.
pub async fn find(on: impl On, id: InvitationId) -> Result<Option<InvitationRow>, DbError> {
    sql("SELECT * FROM invitations WHERE id = $1").bind(id).fetch_optional(on).await
}

/// The invitation that a link leads to which was not used, by the hash of its token.
pub async fn by_link(on: impl On, purpose: &str, hash: &str) -> Result<Option<InvitationRow>, DbError> {
    sql("SELECT i.* FROM invitations i JOIN one_time_tokens t ON t.subject = i.id \
         WHERE t.purpose = $1 AND t.token_hash = $2 AND t.used_at IS NULL")
    .bind(purpose)
    .bind(hash)
    .fetch_optional(on)
    .await
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

/// By what a list of invitations can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "listed.id",
    created: "listed.created_at",
    name: None,
    status: Some(Words { param: "status", column: "listed.status", words: InvitationStatus::WORDS }),
    labels: None,
};

/// A page of an organization's invitations, and how many there are.
pub async fn list(
    db: &Db,
    org: OrgId,
    now: Timestamp,
    listing: &Listing,
) -> Result<(Vec<InvitationRow>, i64), DbError> {
    let from = "(SELECT i.*, CASE WHEN i.accepted_at IS NOT NULL THEN 'accepted' \
         WHEN i.revoked_at IS NOT NULL THEN 'revoked' WHEN i.expires_at <= $2 THEN 'expired' ELSE 'pending' END \
         AS status FROM invitations i WHERE i.org_id = $1) AS listed WHERE 1 = 1";
    page_of("*", from).bind(org).bind(now).list(db, &LISTED, listing).await
}
