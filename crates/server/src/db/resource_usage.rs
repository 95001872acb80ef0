//! The ledger of what machines, disks and snapshots take. A line opens when a resource begins to take what the ledger
//! counts, and closes when that ends, in the transaction that changes the resource's row. So the ledger agrees with the
//! rows, whatever crashes when.
//!
//! The service only ever adds and closes lines. Each line keeps the name, the size and the price of its time: renaming,
//! resizing, deleting or another price rewrites nothing. At every start [`square`] compares the open lines with the
//! rows: it opens lines for resources that are older than the ledger, and makes new prices count from then on.

use std::collections::HashMap;

use berth_domain::gateway::Nano;
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::resource_usage::{Interval, Kind, Line, Measure, Price, Span};
use berth_domain::{Month, Timestamp};
use uuid::Uuid;

use super::tenant::Whose;
use super::{Db, DbError, FromRow, On, Row, Tx, record, sql};
use crate::columns;

/// The table.
const TABLE: &str = "resource_usage";
/// The end of a line that is still open; the schema's index names it, too.
const ENDLESS: i64 = i64::MAX;
/// Lines that one query reads.
const PAGE: i64 = 2000;
/// Lines to go through before other tasks get their turn on the thread.
const CHUNK: usize = 200;

/// What a resource takes at present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// What it is.
    pub kind: Kind,
    /// The resource.
    pub resource: Uuid,
    /// Its name.
    pub name: String,
    /// A machine's size, as a word.
    pub size: Option<String>,
    /// How much it takes.
    pub measure: Measure,
    /// The name of its price.
    pub tariff: String,
}

/// The price of a plan's VMs.
pub fn plan_tariff(plan: &str) -> String {
    format!("plan:{plan}")
}

/// The price of disks.
pub const DISK: &str = "disk";
/// The price of sandboxes.
pub const SANDBOX: &str = "sandbox";
/// The price of sandboxes' snapshots.
pub const SNAPSHOT: &str = "snapshot";

/// A line that is still open.
struct Open {
    id: String,
    kind: Kind,
    resource: Uuid,
    name: String,
    size: Option<String>,
    measure: Measure,
    rate: Nano,
    since: Timestamp,
}

impl FromRow for Open {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            kind: row.word("resource_type", Kind::parse)?,
            resource: row.parsed("resource_id")?,
            name: row.text("name")?,
            size: row.opt_text("size")?,
            measure: Measure {
                vcpu: row.int("vcpu")?,
                memory_mb: row.int("memory_mb")?,
                gpus: row.int("gpus")?,
                bytes: row.int("bytes")?,
            },
            rate: Nano(row.int("rate")?),
            since: row.time("since")?,
        })
    }
}

impl Open {
    fn is_of(&self, wanted: &Use, rate: Nano) -> bool {
        self.size == wanted.size && self.measure == wanted.measure && self.rate == rate
    }
}

/// Makes the ledger say what a resource takes from a time on: nothing, or this.
pub async fn settle(
    tx: &mut Tx,
    (kind, resource): (Kind, Uuid),
    wanted: Option<&Use>,
    at: Timestamp,
) -> Result<(), DbError> {
    let open: Option<Open> = sql(format!(
        "SELECT * FROM resource_usage WHERE resource_id = $1 AND resource_type = $2 AND until = {ENDLESS}"
    ))
    .bind(resource.to_string())
    .bind(kind.as_str())
    .fetch_optional(&mut *tx)
    .await?;
    change(tx, open.as_ref(), wanted, at).await
}

/// Turns a resource's open line into what is wanted.
async fn change(tx: &mut Tx, open: Option<&Open>, wanted: Option<&Use>, at: Timestamp) -> Result<(), DbError> {
    let Some(wanted) = wanted else {
        return match open {
            Some(open) => close(tx, open, at).await,
            None => Ok(()),
        };
    };
    let rate = price(tx, &wanted.tariff).await?.of(wanted.measure);
    match open {
        Some(open) if open.is_of(wanted, rate) => rename(tx, open, &wanted.name).await,
        Some(open) => {
            close(tx, open, at).await?;
            begin(tx, wanted, rate, at.max(open.since)).await
        }
        None => begin(tx, wanted, rate, at).await,
    }
}

async fn begin(tx: &mut Tx, wanted: &Use, rate: Nano, at: Timestamp) -> Result<(), DbError> {
    let Measure { vcpu, memory_mb, gpus, bytes } = wanted.measure;
    let columns = columns! {
        "id": Uuid::now_v7().to_string(), "org_id": wanted.org, "project_id": wanted.project,
        "resource_type": wanted.kind.as_str(), "resource_id": wanted.resource.to_string(), "name": &wanted.name,
        "size": wanted.size.clone(), "vcpu": vcpu, "memory_mb": memory_mb, "gpus": gpus, "bytes": bytes,
        "rate": rate.0, "since": at, "until": ENDLESS, "cost": 0_i64,
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

async fn close(tx: &mut Tx, open: &Open, at: Timestamp) -> Result<(), DbError> {
    // A clock that was set back makes a line empty, not negative.
    let until = at.max(open.since);
    let interval = Interval { since: open.since, until: Some(until), rate: open.rate, bytes: open.measure.bytes };
    let cost = interval.part(Span { begin: open.since, end: until }).cost;
    let columns = columns! { "id": &open.id, "until": until, "cost": cost.0 };
    record::overwrite(TABLE, columns).execute(tx).await.map(drop)
}

async fn rename(tx: &mut Tx, open: &Open, name: &str) -> Result<(), DbError> {
    if open.name == name {
        return Ok(());
    }
    sql("UPDATE resource_usage SET name = $2 WHERE id = $1")
        .bind(open.id.as_str())
        .bind(name)
        .execute(tx)
        .await
        .map(drop)
}

impl FromRow for Price {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            vcpu: Nano(row.int("vcpu_hour")?),
            memory_gb: Nano(row.int("memory_gb_hour")?),
            gpu: Nano(row.int("gpu_hour")?),
            disk_gb: Nano(row.int("disk_gb_hour")?),
        })
    }
}

/// What an hour costs; free where no price is set.
async fn price(tx: &mut Tx, tariff: &str) -> Result<Price, DbError> {
    let found = sql("SELECT * FROM resource_prices WHERE id = $1").bind(tariff).fetch_optional(tx).await?;
    Ok(found.unwrap_or_default())
}

/// Whether anything but models costs money here.
pub async fn is_priced(on: impl On) -> Result<bool, DbError> {
    let priced: i64 = sql("SELECT COUNT(*) FROM resource_prices \
         WHERE vcpu_hour > 0 OR memory_gb_hour > 0 OR gpu_hour > 0 OR disk_gb_hour > 0")
    .fetch_one(on)
    .await?;
    Ok(priced > 0)
}

/// Sets what an hour costs from now on. A plan that is no longer on offer keeps its last price.
pub async fn set_prices(tx: &mut Tx, prices: &[(String, Price)]) -> Result<(), DbError> {
    for (id, price) in prices {
        sql("DELETE FROM resource_prices WHERE id = $1").bind(id.as_str()).execute(&mut *tx).await?;
        let columns = columns! {
            "id": id, "vcpu_hour": price.vcpu.0, "memory_gb_hour": price.memory_gb.0, "gpu_hour": price.gpu.0,
            "disk_gb_hour": price.disk_gb.0,
        };
        record::insert("resource_prices", columns).execute(&mut *tx).await?;
    }
    Ok(())
}

/// Makes the open lines those of present use, at present prices.
pub async fn square(tx: &mut Tx, used: &[Use], now: Timestamp) -> Result<(), DbError> {
    let lines: Vec<Open> =
        sql(format!("SELECT * FROM resource_usage WHERE until = {ENDLESS}")).fetch_all(&mut *tx).await?;
    let mut open: HashMap<_, _> = lines.iter().map(|line| ((line.kind.as_str(), line.resource), line)).collect();
    for wanted in used {
        let line = open.remove(&(wanted.kind.as_str(), wanted.resource));
        change(tx, line, Some(wanted), now).await?;
    }
    for line in open.into_values() {
        change(tx, Some(line), None, now).await?;
    }
    Ok(())
}

/// A line with its position in the reading order: by its id, because its end may come meanwhile.
struct Numbered {
    id: String,
    line: Line,
}

/// When a line ends; `None` while it is open.
fn end(until: i64) -> Option<Timestamp> {
    (until != ENDLESS).then_some(Timestamp(until))
}

impl FromRow for Numbered {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let interval = Interval {
            since: row.time("since")?,
            until: end(row.int("until")?),
            rate: Nano(row.int("rate")?),
            bytes: row.int("bytes")?,
        };
        let line = Line {
            project: row.parsed("project_id")?,
            kind: row.word("resource_type", Kind::parse)?,
            resource: row.parsed("resource_id")?,
            name: row.text("name")?,
            size: row.opt_text("size")?,
            interval,
        };
        Ok(Self { id: row.text("id")?, line })
    }
}

/// Calls `each` for every line that overlaps a span, until it returns false; reads a page of lines at a time.
pub async fn read(
    db: &Db,
    whose: Whose,
    span: Span,
    mut each: impl FnMut(&Line) -> berth_domain::Result<()>,
) -> berth_domain::Result<()> {
    let column = whose.column();
    let mut last = String::new();
    loop {
        let lines: Vec<Numbered> = sql(format!(
            "SELECT * FROM resource_usage WHERE {column} = $1 AND id > $2 AND until > $3 AND since < $4 \
             ORDER BY id LIMIT {PAGE}"
        ))
        .bind(whose.id().to_string())
        .bind(last.as_str())
        .bind(span.begin)
        .bind(span.end)
        .fetch_all(db)
        .await?;
        for chunk in lines.chunks(CHUNK) {
            chunk.iter().try_for_each(|numbered| each(&numbered.line))?;
            tokio::task::yield_now().await;
        }
        let Some(end) = lines.last().filter(|_| i64::try_from(lines.len()) == Ok(PAGE)) else { return Ok(()) };
        last.clone_from(&end.id);
    }
}

/// The parts of a sum of money: closed lines, and those that need their part in the month computed.
struct Spent {
    interval: Interval,
    cost: Nano,
}

impl FromRow for Spent {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let until = end(row.int("until")?);
        let interval = Interval { since: row.time("since")?, until, rate: Nano(row.int("rate")?), bytes: 0 };
        Ok(Self { interval, cost: Nano(row.int("cost")?) })
    }
}

/// What machines, disks and snapshots cost this month up to now.
pub async fn spent(on: impl On, whose: Whose, now: Timestamp) -> Result<Nano, DbError> {
    let column = whose.column();
    let month = Month::of(now);
    let rows: Vec<Spent> = sql(format!(
        "SELECT since, until, rate, CAST(0 AS BIGINT) AS cost FROM resource_usage \
         WHERE {column} = $1 AND until > $2 AND (since < $2 OR until = {ENDLESS}) AND rate > 0 UNION ALL \
         SELECT CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(0 AS BIGINT), CAST(COALESCE(SUM(cost), 0) AS BIGINT) \
         FROM resource_usage WHERE {column} = $1 AND until > $2 AND until < {ENDLESS} AND since >= $2"
    ))
    .bind(whose.id().to_string())
    .bind(month.begin)
    .fetch_all(on)
    .await?;
    let span = Span { begin: month.begin, end: now };
    Ok(rows.iter().map(|row| row.cost + row.interval.part(span).cost).sum())
}

/// What requests to models cost this month up to now, as far as the database knows.
pub async fn spent_on_models(on: impl On, whose: Whose, now: Timestamp) -> Result<Nano, DbError> {
    let column = whose.column();
    let spent: i64 = sql(format!(
        "SELECT CAST(COALESCE(SUM(cost), 0) AS BIGINT) FROM inference_totals WHERE {column} = $1 AND at >= $2"
    ))
    .bind(whose.id().to_string())
    .bind(Month::of(now).begin)
    .fetch_one(on)
    .await?;
    Ok(Nano(spent))
}

/// What was spent this month up to now on everything: on models as far as the database knows, and on machines.
pub async fn spent_on_all(tx: &mut Tx, whose: Whose, now: Timestamp) -> Result<Nano, DbError> {
    Ok(spent_on_models(&mut *tx, whose, now).await? + spent(tx, whose, now).await?)
}

#[cfg(test)]
#[path = "resource_usage_tests.rs"]
mod tests;
