//! The audit log of an organization, read.

use berth_domain::Timestamp;
use berth_domain::ids::OrgId;
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, PageQuery, Row, Value, page_of};

/// A record.
#[derive(Clone, Debug)]
pub struct AuditRow {
    /// Id.
    pub id: String,
    /// Project, if it belongs to one.
    pub project: Option<String>,
    /// Id of who did it.
    pub actor: Option<String>,
    /// `user`, `api_key` or `platform`.
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
            project: row.opt_text("project_id")?,
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

/// What to look for; `None` is everything.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// What was done.
    pub action: Option<String>,
    /// Who did it.
    pub actor: Option<String>,
    /// What it was done to.
    pub subject: Option<String>,
    /// In which project.
    pub project: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

const WHERE: &str = "org_id = $1 AND ($2 IS NULL OR action = $2) AND ($3 IS NULL OR actor = $3) \
     AND ($4 IS NULL OR subject = $4) AND ($5 IS NULL OR project_id = $5) AND created_at >= $6 AND created_at < $7";

impl Filter {
    fn bind(&self, query: PageQuery, org: OrgId) -> PageQuery {
        query
            .bind(org)
            .bind(self.action.clone())
            .bind(self.actor.clone())
            .bind(self.subject.clone())
            .bind(self.project.clone())
            .bind(Value::from(self.since.unwrap_or(Timestamp(0))))
            .bind(Value::from(self.until.unwrap_or(Timestamp(i64::MAX))))
    }
}

/// A page of the records of an organization, newest first, and how many there are.
pub async fn list(db: &Db, org: OrgId, filter: &Filter, page: Page) -> Result<(Vec<AuditRow>, i64), DbError> {
    filter.bind(page_of("*", format!("audit WHERE {WHERE}"), "created_at DESC, id DESC"), org).fetch(db, page).await
}
