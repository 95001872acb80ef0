//! Rows of usage: one for each request to a model.

use std::ops::Range;
use std::sync::LazyLock;

use berth_domain::Timestamp;
use berth_domain::gateway::Nano;
use berth_domain::ids::ProjectId;
use uuid::Uuid;

use super::Tenant;
use crate::db::{Db, DbError, FromRow, Query, Row, Tx, sql};
use crate::services::gateway::journal::Line;

/// The columns, in the order in which they are bound.
const COLUMNS: [&str; 14] = [
    "id",
    "at",
    "org_id",
    "project_id",
    "key_id",
    "user_id",
    "model",
    "operation",
    "status",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "estimated",
    "service",
];

/// Rows of a statement. There are few sizes, so that connections keep few prepared statements.
const SIZES: [usize; 3] = [50, 5, 1];

/// The statements of SQLite: its driver looks an argument that has a name, as `$1`, up in a list of all, which took
/// two fifths of its thread's time; those of PostgreSQL.
static STATEMENTS: LazyLock<[[String; 3]; 2]> = LazyLock::new(|| {
    [SIZES.map(|rows| statement(rows, |_| "?".into())), SIZES.map(|rows| statement(rows, |n| format!("${n}")))]
});

fn statement(rows: usize, mark: impl Fn(usize) -> String) -> String {
    let width = COLUMNS.len();
    let row = |n: usize| (1..=width).map(|column| mark(n * width + column)).collect::<Vec<_>>().join(", ");
    let rows: Vec<_> = (0..rows).map(|n| format!("({})", row(n))).collect();
    let changes: Vec<_> = COLUMNS.iter().skip(1).map(|name| format!("{name} = excluded.{name}")).collect();
    format!(
        "INSERT INTO inference_usage ({}) VALUES {} ON CONFLICT (id) DO UPDATE SET {}",
        COLUMNS.join(", "),
        rows.join(", "),
        changes.join(", ")
    )
}

/// Writes what a run of a service noted; what is there of the same requests is replaced. No two lines are of the
/// same request.
pub async fn put(tx: &mut Tx, service: Uuid, lines: &[Line]) -> Result<(), DbError> {
    let service = service.to_string();
    let mut left = lines;
    let statements = &STATEMENTS[usize::from(tx.is_shared())];
    for (size, text) in SIZES.into_iter().zip(statements) {
        let chunks = left.chunks_exact(size);
        left = chunks.remainder();
        for chunk in chunks {
            let query = chunk.iter().fold(sql(text.as_str()), |query, line| bind(query, line, &service));
            query.execute(&mut *tx).await?;
        }
    }
    Ok(())
}

fn bind(query: Query, line: &Line, service: &str) -> Query {
    query
        .bind(line.id.to_string())
        .bind(line.at)
        .bind(line.org)
        .bind(line.project)
        .bind(line.key)
        .bind(line.user)
        .bind(&*line.model)
        .bind(&*line.operation)
        .bind(i64::from(line.status))
        .bind(line.prompt)
        .bind(line.completion)
        .bind(line.cost)
        .bind(line.estimated)
        .bind(service)
}

/// What a project spent from a moment on, without what one run of a service noted for requests since another.
pub async fn spent(db: &Db, project: ProjectId, from: Timestamp, besides: (Uuid, Timestamp)) -> Result<Nano, DbError> {
    let (service, since) = besides;
    let sum: i64 = sql("SELECT CAST(COALESCE(SUM(cost), 0) AS BIGINT) FROM inference_usage \
         WHERE project_id = $1 AND at >= $2 AND NOT (service = $3 AND at >= $4)")
    .bind(project)
    .bind(from)
    .bind(service.to_string())
    .bind(since)
    .fetch_one(db)
    .await?;
    Ok(Nano(sum))
}

/// What usage is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// The model.
    Model,
    /// The API key; requests of persons have none.
    Key,
}

/// Usage of a project in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepRow {
    /// Beginning of the step, in seconds since 1970.
    pub begin: i64,
    /// The model's or key's id.
    pub group: Option<String>,
    /// Requests.
    pub requests: i64,
    /// Tokens of the prompts.
    pub prompt_tokens: i64,
    /// Tokens of the answers.
    pub completion_tokens: i64,
    /// What they cost.
    pub cost: Nano,
    /// Whether any of the numbers is an estimate.
    pub estimated: bool,
}

impl FromRow for StepRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            begin: row.int("step")?,
            group: row.opt_text("grp")?,
            requests: row.int("requests")?,
            prompt_tokens: row.int("prompt_tokens")?,
            completion_tokens: row.int("completion_tokens")?,
            cost: Nano(row.int("cost")?),
            estimated: row.flag("estimated")?,
        })
    }
}

/// Usage of a project by steps of so many seconds, those without requests left out: by time, then group. `span` is
/// in seconds since 1970.
pub async fn steps(
    db: &Db,
    tenant: Tenant,
    span: Range<i64>,
    resolution: i64,
    grouping: Option<Grouping>,
) -> Result<Vec<StepRow>, DbError> {
    let (group, by) = match grouping {
        None => ("CAST(NULL AS TEXT)", "1"),
        Some(Grouping::Model) => ("model", "1, 2"),
        Some(Grouping::Key) => ("key_id", "1, 2"),
    };
    let text = format!(
        "SELECT CAST(at / 1000000 / $5 * $5 AS BIGINT) AS step, {group} AS grp, COUNT(*) AS requests, \
         CAST(SUM(prompt_tokens) AS BIGINT) AS prompt_tokens, \
         CAST(SUM(completion_tokens) AS BIGINT) AS completion_tokens, CAST(SUM(cost) AS BIGINT) AS cost, \
         MAX(estimated) AS estimated FROM inference_usage \
         WHERE org_id = $1 AND project_id = $2 AND at >= $3 AND at < $4 GROUP BY {by}"
    );
    let mut rows: Vec<StepRow> = sql(text)
        .bind(tenant.org)
        .bind(tenant.project)
        .bind(span.start.saturating_mul(Timestamp::SECOND))
        .bind(span.end.saturating_mul(Timestamp::SECOND))
        .bind(resolution)
        .fetch_all(db)
        .await?;
    // Databases disagree about the order of texts and of what is null.
    rows.sort_by(|a, b| (a.begin, &a.group).cmp(&(b.begin, &b.group)));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{KeyId, OrgId};

    use super::*;

    const ORG: OrgId = OrgId(Uuid::from_u128(1));
    const PROJECT: ProjectId = ProjectId(Uuid::from_u128(2));
    const KEY: KeyId = KeyId(Uuid::from_u128(3));

    async fn database(dir: &tempfile::TempDir) -> Db {
        Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap()
    }

    fn line(seconds: i64, model: &'static str, key: Option<KeyId>) -> Line {
        Line {
            id: Uuid::now_v7(),
            at: seconds * Timestamp::SECOND,
            org: ORG,
            project: PROJECT,
            key,
            user: None,
            model: model.into(),
            operation: "chat".into(),
            status: 200,
            prompt: 10,
            completion: 1,
            cost: 7,
            estimated: false,
        }
    }

    async fn written(db: &Db, service: Uuid, lines: &[Line]) {
        let mut tx = db.begin().await.unwrap();
        put(&mut tx, service, lines).await.unwrap();
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn many_rows_at_once_are_all_there_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let mut lines: Vec<_> = (0..1234).map(|n| line(n, "tiny", None)).collect();
        written(&db, Uuid::nil(), &lines).await;
        for line in &mut lines {
            line.completion = 2;
            line.estimated = true;
        }
        written(&db, Uuid::nil(), &lines).await;
        let all = steps(&db, Tenant { org: ORG, project: PROJECT }, 0..3600, 3600, None).await.unwrap();
        let row = StepRow {
            begin: 0,
            group: None,
            requests: 1234,
            prompt_tokens: 12_340,
            completion_tokens: 2468,
            cost: Nano(8638),
            estimated: true,
        };
        assert_eq!(all, [row]);
    }

    #[tokio::test]
    async fn usage_is_grouped_by_step_and_by_what_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let foreign = Line { project: ProjectId(Uuid::nil()), ..line(60, "tiny", None) };
        let guess = Line { estimated: true, ..line(119, "big", None) };
        let lines = [
            line(59, "tiny", None),
            line(60, "tiny", Some(KEY)),
            line(61, "tiny", None),
            guess,
            line(120, "Zed", Some(KEY)),
            foreign,
        ];
        written(&db, Uuid::nil(), &lines).await;
        let tenant = Tenant { org: ORG, project: PROJECT };
        let by = async |grouping| {
            let rows = steps(&db, tenant, 60..180, 60, grouping).await.unwrap();
            rows.into_iter().map(|r| (r.begin, r.group, r.requests, r.estimated)).collect::<Vec<_>>()
        };
        assert_eq!(by(None).await, [(60, None, 3, true), (120, None, 1, false)]);
        let name = |text: &str| Some(text.to_owned());
        let models = [(60, name("big"), 1, true), (60, name("tiny"), 2, false), (120, name("Zed"), 1, false)];
        assert_eq!(by(Some(Grouping::Model)).await, models);
        let key = Some(KEY.to_string());
        let keys = [(60, None, 2, true), (60, key.clone(), 1, false), (120, key, 1, false)];
        assert_eq!(by(Some(Grouping::Key)).await, keys);
        let nobody = Tenant { org: OrgId(Uuid::nil()), project: PROJECT };
        assert!(steps(&db, nobody, 0..180, 60, None).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn spent_leaves_out_what_its_asker_counts_itself() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let (own, other) = (Uuid::now_v7(), Uuid::now_v7());
        written(&db, own, &[line(99, "tiny", None), line(200, "tiny", None)]).await;
        written(&db, other, &[line(99, "tiny", None), line(100, "tiny", None), line(200, "tiny", None)]).await;
        let at = |seconds: i64| Timestamp(seconds * Timestamp::SECOND);
        let spent = async |from, since| spent(&db, PROJECT, at(from), (own, at(since))).await.unwrap();
        assert_eq!(spent(0, 0).await, Nano(21));
        assert_eq!(spent(0, 150).await, Nano(28));
        assert_eq!(spent(100, 201).await, Nano(21));
        assert_eq!(spent(201, 0).await, Nano(0));
    }
}
