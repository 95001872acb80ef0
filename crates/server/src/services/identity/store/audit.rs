//! The audit log, of an organization or of the platform: read, and cleared of what is old.

use berth_domain::Timestamp;
use berth_domain::identity::audit::{Filter, Which};
use berth_domain::ids::OrgId;
use berth_domain::page::Page;
use tokio_util::sync::CancellationToken;

use crate::db::{Db, DbError, FromRow, PageQuery, Query, Row, Value, page_of, sql};

/// A record.
#[derive(Clone, Debug)]
pub struct AuditRow {
    /// Id.
    pub id: String,
    /// Organization, if it belongs to one.
    pub org: Option<String>,
    /// The organization's slug, while it is there.
    pub org_slug: Option<String>,
    /// Project, if it belongs to one.
    pub project: Option<String>,
    /// The project's slug, while it is there.
    pub project_slug: Option<String>,
    /// Address of the person, or name of the key, that did it.
    pub actor_name: Option<String>,
    /// Address of the person it was done to.
    pub subject_name: Option<String>,
    /// Id of who did it.
    pub actor: Option<String>,
    /// `user`, `api_key`, `anonymous` or `platform`.
    pub actor_kind: String,
    /// What was done.
    pub action: String,
    /// Id of what it was done to.
    pub subject: String,
    /// The request.
    pub request_id: Option<String>,
    /// JSON of more about it.
    pub data: String,
    /// When.
    pub created_at: Timestamp,
}

impl FromRow for AuditRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            org: row.opt_text("org_id")?,
            org_slug: row.opt_text("org_slug")?,
            project: row.opt_text("project_id")?,
            project_slug: row.opt_text("project_slug")?,
            actor_name: row.opt_text("actor_name")?,
            subject_name: row.opt_text("subject_name")?,
            actor: row.opt_text("actor")?,
            actor_kind: row.text("actor_kind")?,
            action: row.text("action")?,
            subject: row.text("subject")?,
            request_id: row.opt_text("request_id")?,
            data: row.text("data")?,
            created_at: row.time("created_at")?,
        })
    }
}

/// A record's place in the order of a list.
#[derive(Clone, Debug)]
pub struct Place {
    /// When it was written.
    pub at: Timestamp,
    /// Its id.
    pub id: String,
}

const WHERE: &str = "($2 IS NULL OR action = $2) AND ($3 IS NULL OR substr(action, 1, length($3)) = $3) \
     AND ($4 IS NULL OR actor = $4) AND ($5 IS NULL OR subject = $5) AND ($6 IS NULL OR project_id = $6) \
     AND created_at >= $7 AND created_at < $8";
const ORDER: &str = "created_at DESC, id DESC";

/// The columns of a record with the names of what it names.
macro_rules! columns_with_actor {
    ($actor:literal) => {
        concat!(
            "audit.*, \
             (SELECT slug FROM orgs WHERE orgs.id = audit.org_id AND orgs.deleted_at IS NULL) AS org_slug, \
             (SELECT slug FROM projects WHERE projects.id = audit.project_id AND projects.deleted_at IS NULL) \
             AS project_slug, \
             (SELECT email FROM users WHERE users.id = audit.subject AND users.deleted_at IS NULL) AS subject_name, \
             CASE actor_kind WHEN 'api_key' THEN (SELECT name FROM api_keys WHERE api_keys.id = audit.actor) ELSE ",
            $actor,
            " END AS actor_name"
        )
    };
}

/// As administrators see records.
const OF_PLATFORM: &str =
    columns_with_actor!("(SELECT email FROM users WHERE users.id = audit.actor AND users.deleted_at IS NULL)");
/// As an organization sees its own: it does not learn the addresses of the platform's administrators.
const OF_ORG: &str = columns_with_actor!(
    "(SELECT CASE WHEN is_admin = 1 AND NOT EXISTS (SELECT 1 FROM org_members WHERE org_members.user_id = users.id \
     AND org_members.org_id = audit.org_id) THEN 'an administrator of the platform' ELSE email END \
     FROM users WHERE users.id = audit.actor AND users.deleted_at IS NULL)"
);

/// What statements with [`WHERE`] bind first.
fn values(filter: &Filter, org: Option<OrgId>) -> [Value; 8] {
    let (one, beginning) = match filter.action.clone() {
        None => (None, None),
        Some(Which::One(action)) => (Some(action), None),
        Some(Which::Beginning(text)) => (None, Some(text)),
    };
    [
        org.into(),
        one.into(),
        beginning.into(),
        filter.actor.clone().into(),
        filter.subject.clone().into(),
        filter.project.clone().into(),
        filter.since.unwrap_or(Timestamp(0)).into(),
        filter.until.unwrap_or(Timestamp(i64::MAX)).into(),
    ]
}

fn matching(filter: &Filter, columns: &'static str, scope: &str, org: Option<OrgId>) -> PageQuery {
    let query = page_of(columns, format!("audit WHERE {scope} AND {WHERE}"));
    values(filter, org).into_iter().fold(query, PageQuery::bind)
}

/// A page of the records of an organization, newest first, and how many there are.
pub async fn list(db: &Db, org: OrgId, filter: &Filter, page: Page) -> Result<(Vec<AuditRow>, i64), DbError> {
    matching(filter, OF_ORG, "org_id = $1", Some(org)).fetch(db, ORDER, page).await
}

/// A page of the records of the platform, newest first, and how many there are.
pub async fn list_all(db: &Db, filter: &Filter, page: Page) -> Result<(Vec<AuditRow>, i64), DbError> {
    matching(filter, OF_PLATFORM, "($1 IS NULL OR org_id = $1)", filter.org).fetch(db, ORDER, page).await
}

/// The next records of the platform behind a place, newest first.
pub async fn after(db: &Db, filter: &Filter, place: Option<Place>, limit: i64) -> Result<Vec<AuditRow>, DbError> {
    let Place { at, id } = place.unwrap_or_else(|| Place { at: Timestamp(i64::MAX), id: String::new() });
    let text = format!(
        "SELECT {OF_PLATFORM} FROM audit WHERE ($1 IS NULL OR org_id = $1) AND {WHERE} \
         AND (created_at < $9 OR (created_at = $9 AND id < $10)) ORDER BY {ORDER} LIMIT $11"
    );
    let query = values(filter, filter.org).into_iter().fold(sql(text), Query::bind);
    query.bind(at).bind(id).bind(limit).fetch_all(db).await
}

/// Records of refusals, and of the minutes that had more of them. The schema's index names the same.
const REFUSALS: &str = "action IN ('user.login_failed', 'user.locked_out', 'api_key.refused', 'refusals.more')";

/// When the newest record was made that is one too many, where so many newer ones are kept.
pub async fn refusal_at(db: &Db, newer: i64) -> Result<Option<Timestamp>, DbError> {
    let at: Option<i64> =
        sql(format!("SELECT created_at FROM audit WHERE {REFUSALS} ORDER BY created_at DESC LIMIT 1 OFFSET $1"))
            .bind(newer)
            .fetch_optional(db)
            .await?;
    Ok(at.map(Timestamp))
}

/// Records that are removed.
#[derive(Clone, Copy, Debug)]
pub enum Old {
    /// All from before a time.
    Before(Timestamp),
    /// Those of refusals, up to a time.
    Refusals(Timestamp),
}

/// Removes them, the oldest first, until told to stop.
pub async fn forget(db: &Db, old: Old, stop: &CancellationToken) -> Result<(), DbError> {
    let (are_old, at) = match old {
        Old::Before(time) => ("created_at < $1".to_owned(), time),
        Old::Refusals(time) => (format!("{REFUSALS} AND created_at <= $1"), time),
    };
    sql(format!("DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE {are_old} ORDER BY created_at LIMIT $2)"))
        .bind(at)
        .remove_in_batches(db, stop)
        .await
}
