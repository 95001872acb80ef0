//! The schema: one list of migrations, in each database's own folder under the same number.
//!
//! Rule: expand, then contract. A migration only adds; a later release removes what became useless, when no running
//! service reads it any more. Applied in order, the migrations equal the schema of a fresh installation.
//!
//! A replica that stands by may be of the version before or after the active one's. It reads the keeper, settings, the secrets'
//! marks and the row of its host, and writes that row once: columns of those are added with a default, and none is removed
//! or renamed.
//!
//! The list stands here and is not made by sqlx's macro: the macro would have SQLite and the whole
//! of TLS compiled a second time, for the compiler's own use.

use std::borrow::Cow;

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use super::{Db, DbError, Pools, sql};

/// A migration's number, its name, and its statements for SQLite and for PostgreSQL.
struct Step {
    version: i64,
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! steps {
    ($($version:literal $number:literal $name:literal),* $(,)?) => {
        &[$(Step {
            version: $version,
            name: $name,
            sqlite: include_str!(concat!("../../../../migrations/sqlite/", $number, "_", $name, ".sql")),
            postgres: include_str!(concat!("../../../../migrations/postgres/", $number, "_", $name, ".sql")),
        }),*]
    };
}

/// Every migration, in order. A missing number was never used: numbers are given out before the work begins.
const STEPS: &[Step] = steps![
    1 "0001" "foundation",
    2 "0002" "image_status",
    3 "0003" "identity",
    4 "0004" "sandbox",
    5 "0005" "template_builds",
    6 "0006" "gateway",
    7 "0007" "usage",
    8 "0008" "key_limits",
    9 "0009" "message_limits",
    10 "0010" "audit",
    11 "0011" "keeper",
    12 "0012" "org_quotas",
    14 "0014" "layer_bytes",
    15 "0015" "vm_life",
    16 "0016" "resource_usage",
    18 "0018" "voices",
    20 "0020" "project_limits",
    22 "0022" "deaths_and_refusals",
    23 "0023" "ports_pending",
    24 "0024" "template_machines",
    25 "0025" "machines",
    26 "0026" "hosts",
    27 "0027" "machine_rows",
    28 "0028" "warm_machines",
    29 "0029" "machine_indexes",
    31 "0031" "networks",
    32 "0032" "shared_address",
    33 "0033" "disk_growth",
    34 "0034" "disk_moves",
    35 "0035" "ssh_keys",
    36 "0036" "vm_expiry",
    38 "0038" "gpus",
    40 "0040" "firewall",
    41 "0041" "suspended",
    42 "0042" "pool",
    43 "0043" "disk_snapshots",
    44 "0044" "disks_of_snapshots",
    45 "0045" "project_images",
    46 "0046" "gpu_parts",
    47 "0047" "reinstall",
    48 "0048" "rescue",
    49 "0049" "backups",
    50 "0050" "backup_schedules",
    51 "0051" "sandbox_gpus",
    53 "0053" "network_ipv6",
    54 "0054" "slug_since",
    55 "0055" "disk_imports",
    56 "0056" "hidden_copies",
    57 "0057" "ssh_keys_state",
    58 "0058" "brought_disks",
    59 "0059" "gpu_quotas",
    60 "0060" "cordoned_hosts",
    61 "0061" "joined_hosts",
    62 "0062" "disks_on_hosts",
    63 "0063" "replicas",
    65 "0065" "sandboxes_on_hosts",
    66 "0066" "layer_copies",
    67 "0067" "drained_hosts",
    68 "0068" "disks_under_way",
    69 "0069" "sandboxes_leave",
    70 "0070" "sums_of_hosts",
    72 "0072" "durable",
    73 "0073" "vm_migrations",
    74 "0074" "disk_stores",
    75 "0075" "fences",
    76 "0076" "shared_snapshots",
    77 "0077" "archives",
    78 "0078" "auto_resume",
];

/// Brings the schema up to date; does nothing if it is.
pub(super) async fn run(db: &Db) -> Result<(), DbError> {
    match &db.pools {
        Pools::Sqlite { write, .. } => migrator(|s| s.sqlite).run(write).await,
        Pools::Postgres(leader) => migrator(|s| s.postgres).run(&leader.link().pool).await,
    }
    .map_err(refused)
}

/// Whether the migrations of the list are applied, according to the database, and no others: a step may have a lower number
/// than one that was applied before it.
pub(super) async fn is_current(db: &Db) -> Result<bool, DbError> {
    let found: Vec<i64> = sql("SELECT version FROM _sqlx_migrations ORDER BY version").fetch_all(db).await?;
    Ok(found.iter().eq(STEPS.iter().map(|step| &step.version)))
}

/// The latest step that was applied by a newer version than this.
pub(super) async fn newer_step(db: &Db) -> Result<Option<i64>, DbError> {
    let found: Vec<i64> = sql("SELECT version FROM _sqlx_migrations ORDER BY version DESC").fetch_all(db).await?;
    Ok(found.into_iter().find(|version| STEPS.iter().all(|step| step.version != *version)))
}

/// Why the service cannot use the schema, for the operator.
fn refused(error: MigrateError) -> DbError {
    match error {
        MigrateError::VersionMissing(found) => DbError::Other(format!(
            "a newer Berth wrote this database: its schema has step {found}, which berth {} does not have. Start the newer \
             version, or restore the backup that was made before it",
            env!("CARGO_PKG_VERSION")
        )),
        MigrateError::VersionMismatch(step) => DbError::Other(format!(
            "another build of Berth wrote this database: step {step} of its schema is not the one of berth {}. Start the \
             build that wrote it",
            env!("CARGO_PKG_VERSION")
        )),
        error => DbError::Other(format!("the schema could not be brought up to date: {error}")),
    }
}

fn migrator(statements: fn(&Step) -> &'static str) -> Migrator {
    let migrations = STEPS.iter().map(|step| migration(step, statements(step))).collect();
    Migrator { migrations: Cow::Owned(migrations), ..Migrator::DEFAULT }
}

fn migration(step: &Step, statements: &'static str) -> Migration {
    let description = Cow::Owned(step.name.replace('_', " "));
    Migration::new(step.version, description, MigrationType::Simple, statements.into_sql_str(), false)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{STEPS, sql};
    use crate::db::Db;

    /// The error of a start on a database that somebody changed in this way.
    async fn refusal_after(change: &'static str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        assert!(db.is_current().await.unwrap());
        let mut tx = db.begin().await.unwrap();
        sql(change).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        db.migrate().await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn who_wrote_a_database_that_is_not_ours_is_said() {
        let newer = "UPDATE _sqlx_migrations SET version = 9000 WHERE version = 1";
        let told = refusal_after(newer).await;
        assert!(told.contains("a newer Berth") && told.contains("step 9000"), "{told}");
        let told = refusal_after("UPDATE _sqlx_migrations SET checksum = X'00' WHERE version = 1").await;
        assert!(told.contains("another build of Berth") && told.contains("step 1 "), "{told}");
    }

    #[tokio::test]
    async fn a_schema_without_a_step_in_the_middle_is_not_current() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let middle = STEPS[STEPS.len() / 2].version;
        let mut tx = db.begin().await.unwrap();
        sql("DELETE FROM _sqlx_migrations WHERE version = $1").bind(middle).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        assert!(!db.is_current().await.unwrap());
        assert_eq!(db.newer_step().await.unwrap(), None);
        let mut tx = db.begin().await.unwrap();
        let later = sql("UPDATE _sqlx_migrations SET version = 9000 WHERE version = $1").bind(STEPS[0].version);
        later.execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(db.newer_step().await.unwrap(), Some(9000));
    }

    #[test]
    fn every_file_of_either_folder_stands_in_the_list() {
        let listed: Vec<String> = STEPS.iter().map(|s| format!("{:04}_{}.sql", s.version, s.name)).collect();
        for folder in ["sqlite", "postgres"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(folder);
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .expect("the folder of migrations")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
                .collect();
            files.sort();
            assert_eq!(files, listed);
        }
    }
}
