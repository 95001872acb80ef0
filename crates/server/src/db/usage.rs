//! What projects hold of every service, counted over rows: for quotas and for administrators of the platform. A page of
//! projects cannot come from the lists of several services.

use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::page::Page;

use super::tenant::Whose;
use super::{Db, DbError, FromRow, On, Row, page_of, sql};

/// What a project has.
#[derive(Clone, Copy, Debug)]
pub struct UsageRow {
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// How many of its VMs run.
    pub running: i64,
    /// Everything that it has.
    pub held: Held,
}

impl FromRow for UsageRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            running: row.int("running")?,
            held: Held::from_row(row)?,
        })
    }
}

/// A page of the projects that have anything, those with most memory first, and how many there are.
pub async fn list(db: &Db, page: Page) -> Result<(Vec<UsageRow>, i64), DbError> {
    let each = format!("SELECT org_id, project_id, {}, {} FROM {}", sum("runs", "running"), sums(), rows(""));
    page_of("*", format!("({each} GROUP BY org_id, project_id) projects_with_something"))
        .fetch(db, "memory_mb DESC, project_id", page)
        .await
}

/// What a project has, or all projects of an organization together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// VMs.
    pub vms: i64,
    /// Virtual CPUs of all VMs.
    pub vcpu: i64,
    /// Memory of all VMs, in MiB.
    pub memory_mb: i64,
    /// GPUs of all VMs and sandboxes, also of those that are stopped or paused.
    pub gpus: i64,
    /// Disks, root disk volumes, snapshots of disks, backups, images of the project and disks whose files are on their way
    /// among them.
    pub disks: i64,
    /// Their sizes summed, in GiB; of a backup, what the store has of it.
    pub disk_gb: i64,
    /// Sandboxes.
    pub sandboxes: i64,
    /// Networks.
    pub networks: i64,
}

impl FromRow for Held {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            vms: row.int("vms")?,
            vcpu: row.int("vcpu")?,
            memory_mb: row.int("memory_mb")?,
            gpus: row.int("gpus")?,
            disks: row.int("disks")?,
            disk_gb: row.int("disk_gb")?,
            sandboxes: row.int("sandboxes")?,
            networks: row.int("networks")?,
        })
    }
}

/// What is held at this moment, summed over rows.
pub async fn held(on: impl On, whose: Whose) -> Result<Held, DbError> {
    let rows = rows(&format!("{} AND ", whose.owns()));
    sql(format!("SELECT {} FROM {rows}", sums())).bind(whose.id().to_string()).fetch_one(on).await
}

/// What is summed: the column of a thing, and what its sum is called in [`Held`].
const SUMMED: [(&str, &str); 8] = [
    ("vm", "vms"),
    ("cpus", "vcpu"),
    ("mib", "memory_mb"),
    ("gpu", "gpus"),
    ("disk", "disks"),
    ("gib", "disk_gb"),
    ("sandbox", "sandboxes"),
    ("network", "networks"),
];

/// A table of things: which of its rows count, and what each of them adds to what is summed.
type Things = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// All things that exist. A copy of a disk from which something else is made is hidden, and nobody's.
const THINGS: [Things; 8] = [
    (
        "vms",
        "",
        &[
            ("vm", "1"),
            ("runs", "CASE WHEN status = 'running' THEN 1 ELSE 0 END"),
            ("cpus", "vcpu"),
            ("mib", "memory_mb"),
            ("gpu", "gpu_config_count"),
        ],
    ),
    ("disks", "", &[("disk", "1"), ("gib", "size_gb")]),
    ("brought_disks", "claimed_gb IS NOT NULL AND ", &[("disk", "1"), ("gib", "claimed_gb")]),
    ("disk_snapshots", "hidden = 0 AND ", &[("disk", "1"), ("gib", "size_gb")]),
    (
        "backups",
        "status <> 'failed' AND ",
        &[
            ("disk", "1"),
            ("gib", "CASE WHEN size_bytes IS NULL THEN size_gb ELSE (size_bytes + 1073741823) / 1073741824 END"),
        ],
    ),
    ("project_images", "", &[("disk", "1"), ("gib", "size_gb")]),
    ("sandboxes", "", &[("sandbox", "1"), ("gpu", "gpu_config_count")]),
    ("networks", "", &[("network", "1")]),
];

/// A query with one row for each existing thing, filtered by a condition, which ends with `AND` or is empty.
fn rows(of: &str) -> String {
    let each = THINGS.map(|(table, counted, adds)| {
        let columns = SUMMED.iter().map(|(column, _)| *column).chain(["runs"]);
        let values = columns.map(|column| {
            let value = adds.iter().find(|(name, _)| *name == column).map_or("0", |(_, value)| *value);
            format!("{value} AS {column}")
        });
        let values = values.collect::<Vec<_>>().join(", ");
        format!("SELECT org_id, project_id, {values} FROM {table} WHERE {of}{counted}deleted_at IS NULL")
    });
    format!("({}) held", each.join(" UNION ALL "))
}

/// The columns of [`Held`].
fn sums() -> String {
    SUMMED.map(|(column, name)| sum(column, name)).join(", ")
}

fn sum(column: &str, name: &str) -> String {
    format!("CAST(COALESCE(SUM({column}), 0) AS BIGINT) AS {name}")
}
