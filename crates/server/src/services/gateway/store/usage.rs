//! Rows of usage: one for each minute and combination of keys.

use std::ops::Range;
use std::sync::LazyLock;

use berth_domain::Timestamp;
use berth_domain::gateway::Nano;
use uuid::Uuid;

use super::Tenant;
use crate::columns;
use crate::db::record::{self, Columns};
use crate::db::tenant::Whose;
use crate::db::{Db, DbError, FromRow, Row, Tx, sql};
use crate::services::gateway::books::bound::SUM;
use crate::services::gateway::books::totals::{Counts, Group, Totals};

/// The key columns.
const KEYS: &str = "project_id, at, model, key_id, service";
/// The summed columns.
const SUMS: [&str; 5] = ["requests", "prompt_tokens", "completion_tokens", "cost", "estimated"];

/// Rows of one statement. There are few sizes, so that connections keep few prepared statements.
const SIZES: [usize; 3] = [50, 5, 1];

/// On a conflict, the new numbers are added to the row.
static ADDED: LazyLock<String> = LazyLock::new(|| {
    let sum = |name: &str| {
        let (known, new) = (format!("inference_totals.{name}"), format!("excluded.{name}"));
        format!("{name} = CASE WHEN {known} > {SUM} - {new} THEN {SUM} ELSE {known} + {new} END")
    };
    format!("({KEYS}) DO UPDATE SET {}", SUMS.map(sum).join(", "))
});

fn columns(group: &Group, counts: &Counts, service: &str) -> Columns {
    columns! {
        "project_id": group.project, "at": group.minute, "model": &*group.model,
        "key_id": group.key.map(|key| key.to_string()).unwrap_or_default(), "service": service, "org_id": group.org,
        "requests": counts.requests, "prompt_tokens": counts.prompt, "completion_tokens": counts.completion,
        "cost": counts.cost, "estimated": counts.estimated,
    }
}

/// Adds the sums of a segment of a run's journal. Segments come in the order of their numbers; adding one again changes
/// nothing.
pub async fn add(tx: &mut Tx, (service, segment): (Uuid, u64), totals: &Totals) -> Result<(), DbError> {
    const LATER: &str = "(service) DO UPDATE SET segment = excluded.segment \
         WHERE inference_journals.segment < excluded.segment";
    let service = service.to_string();
    let journal = columns! { "service": &service, "segment": i64::try_from(segment).unwrap_or(i64::MAX) };
    let is_new = record::insert("inference_journals", journal).on_conflict(LATER).execute(tx).await?;
    if is_new == 0 {
        return Ok(());
    }
    let all: Vec<_> = totals.iter().collect();
    let mut left = all.as_slice();
    for size in SIZES {
        let chunks = left.chunks_exact(size);
        left = chunks.remainder();
        for chunk in chunks {
            let rows = chunk.iter().map(|(group, counts)| columns(group, counts, &service)).collect();
            record::insert_all("inference_totals", rows).on_conflict(&ADDED).execute(tx).await?;
        }
    }
    Ok(())
}

/// The money spent from the beginning of a minute on, except what one run of the service noted for requests since
/// another minute.
pub async fn spent(db: &Db, whose: Whose, from: Timestamp, besides: (Uuid, Timestamp)) -> Result<Nano, DbError> {
    let (service, since) = besides;
    let column = whose.column();
    let sum: i64 = sql(format!(
        "SELECT CAST(COALESCE(SUM(cost), 0) AS BIGINT) FROM inference_totals \
         WHERE {column} = $1 AND at >= $2 AND NOT (service = $3 AND at >= $4)"
    ))
    .bind(whose.id().to_string())
    .bind(from)
    .bind(service.to_string())
    .bind(since)
    .fetch_one(db)
    .await?;
    Ok(Nano(sum))
}

/// What usage is grouped by.
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
/// in seconds since 1970; it and the steps are whole minutes.
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
        Some(Grouping::Key) => ("NULLIF(key_id, '')", "1, 2"),
    };
    let text = format!(
        "SELECT CAST(at / 1000000 / $5 * $5 AS BIGINT) AS step, {group} AS grp, \
         CAST(SUM(requests) AS BIGINT) AS requests, CAST(SUM(prompt_tokens) AS BIGINT) AS prompt_tokens, \
         CAST(SUM(completion_tokens) AS BIGINT) AS completion_tokens, CAST(SUM(cost) AS BIGINT) AS cost, \
         CAST(CASE WHEN SUM(estimated) > 0 THEN 1 ELSE 0 END AS BIGINT) AS estimated FROM inference_totals \
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
    // Databases sort texts and nulls differently.
    rows.sort_by(|a, b| (a.begin, &a.group).cmp(&(b.begin, &b.group)));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::{KeyId, OrgId, ProjectId};

    use super::*;
    use crate::services::gateway::books::totals::Line;

    const ORG: OrgId = OrgId(Uuid::from_u128(1));
    const PROJECT: ProjectId = ProjectId(Uuid::from_u128(2));
    const KEY: KeyId = KeyId(Uuid::from_u128(3));

    async fn database(dir: &tempfile::TempDir) -> Db {
        Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap()
    }

    /// A request of a minute.
    fn line(minute: i64, model: &str, key: Option<KeyId>) -> Line {
        let mut line = Line::sample(minute, model);
        line.group.key = key;
        line
    }

    async fn written(db: &Db, segment: (Uuid, u64), lines: &[Line]) {
        let mut totals = Totals::default();
        for line in lines {
            totals.add(line);
        }
        let mut tx = db.begin().await.unwrap();
        add(&mut tx, segment, &totals).await.unwrap();
        tx.commit().await.unwrap();
    }

    #[tokio::test]
    async fn many_rows_at_once_are_all_there_and_added_to() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let mut lines: Vec<_> = (0..1234).map(|n| line(n % 60, &format!("model {n}"), None)).collect();
        written(&db, (Uuid::nil(), 1), &lines).await;
        for line in &mut lines {
            line.counts = Counts { requests: 0, prompt: -4, completion: 1, cost: 0, estimated: 1 };
        }
        written(&db, (Uuid::nil(), 2), &lines).await;
        let all = steps(&db, Tenant { org: ORG, project: PROJECT }, 0..3600, 3600, None).await.unwrap();
        let row = StepRow {
            begin: 0,
            group: None,
            requests: 1234,
            prompt_tokens: 6 * 1234,
            completion_tokens: 2 * 1234,
            cost: Nano(7 * 1234),
            estimated: true,
        };
        assert_eq!(all, [row]);
    }

    #[tokio::test]
    async fn a_segment_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        for segment in [(one, 4), (one, 4), (other, 1), (one, 5), (one, 4), (one, 5), (other, 1)] {
            written(&db, segment, &[line(1, "tiny", None)]).await;
        }
        let all = steps(&db, Tenant { org: ORG, project: PROJECT }, 0..3600, 3600, None).await.unwrap();
        assert_eq!(all.iter().map(|row| row.requests).collect::<Vec<_>>(), [3]);
    }

    #[tokio::test]
    async fn nonsense_adds_up_to_no_more_than_a_row_holds() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let mut much = line(1, "tiny", None);
        much.counts.prompt = i64::MAX;
        for segment in 1..4 {
            written(&db, (Uuid::nil(), segment), &[much.clone()]).await;
        }
        let all = steps(&db, Tenant { org: ORG, project: PROJECT }, 0..3600, 3600, None).await.unwrap();
        assert_eq!(all.iter().map(|row| (row.requests, row.prompt_tokens)).collect::<Vec<_>>(), [(3, SUM)]);
    }

    #[tokio::test]
    async fn usage_is_grouped_by_step_and_by_what_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let db = database(&dir).await;
        let mut foreign = line(1, "tiny", None);
        foreign.group.project = ProjectId(Uuid::nil());
        let mut guess = line(1, "big", None);
        guess.counts.estimated = 1;
        let lines = [
            line(0, "tiny", None),
            line(1, "tiny", Some(KEY)),
            line(1, "tiny", None),
            guess,
            line(2, "Zed", Some(KEY)),
            line(3, "Zed", Some(KEY)),
            foreign,
        ];
        written(&db, (Uuid::nil(), 1), &lines).await;
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
        written(&db, (own, 1), &[line(1, "tiny", None), line(4, "tiny", None)]).await;
        written(&db, (other, 1), &[line(1, "tiny", None), line(2, "tiny", None), line(4, "tiny", None)]).await;
        let at = |minute: i64| Timestamp(minute * 60 * Timestamp::SECOND);
        let spent = async |from, since| spent(&db, Whose::Project(PROJECT), at(from), (own, at(since))).await.unwrap();
        assert_eq!(spent(0, 0).await, Nano(21));
        assert_eq!(spent(0, 3).await, Nano(28));
        assert_eq!(spent(2, 5).await, Nano(21));
        assert_eq!(spent(5, 0).await, Nano(0));
    }
}
