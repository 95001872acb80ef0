//! A database that an older service left is brought up to date with all that is in it, on either kind of database.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use berth_server::app::{App, Engines};
use berth_server::config::Config;
use berth_server::db::{Db, sql};
use berth_testkit::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes, fresh_database};
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection, SqlSafeStr};

/// What lay in it.
const ROWS: (i64, &str) = (7, include_str!("filled_0007.sql"));
/// What a service of a later schema added to that.
const LATER: (i64, &str) = (25, include_str!("filled_0025.sql"));

/// The schema as its first steps made it.
fn schema(kind: &str, last: i64) -> Migrator {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(kind);
    let files = std::fs::read_dir(folder).expect("migrations").map(|file| file.expect("a file").path());
    let read = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let version: i64 = name[..4].parse().expect("a number");
        let text = std::fs::read_to_string(path).expect("statements");
        let text = AssertSqlSafe(text).into_sql_str();
        Migration::new(version, Cow::Owned(name), MigrationType::Simple, text, false)
    };
    let mut steps: Vec<Migration> = files.map(read).filter(|step| step.version <= last).collect();
    steps.sort_by_key(|step| step.version);
    Migrator { migrations: Cow::Owned(steps), ..Migrator::DEFAULT }
}

/// A database of older schemas, one after the other, with rows of everything that changed since each; its address.
async fn filled(dir: &Path, with: &[(i64, &'static str)]) -> String {
    let Ok(server) = std::env::var("BERTH_TEST_POSTGRES") else {
        let file = dir.join("berth.db");
        let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
        let mut connection = SqliteConnection::connect_with(&options).await.expect("a database");
        for (version, rows) in with {
            schema("sqlite", *version).run(&mut connection).await.expect("a schema");
            sqlx::raw_sql(*rows).execute(&mut connection).await.expect("rows");
        }
        connection.close().await.expect("closed");
        return format!("sqlite:{}", file.display());
    };
    let url = fresh_database(&server);
    let mut connection = PgConnection::connect(&url).await.expect("a database");
    for (version, rows) in with {
        schema("postgres", *version).run(&mut connection).await.expect("a schema");
        sqlx::raw_sql(*rows).execute(&mut connection).await.expect("rows");
    }
    connection.close().await.expect("closed");
    url
}

async fn text(db: &Db, what: &'static str) -> Vec<String> {
    sql(what).fetch_all(db).await.expect("rows")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filled_database_of_an_older_service_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let url = filled(dir.path(), &[ROWS]).await;
    let db = Db::open(&url).await.expect("it is brought up to date");
    assert!(db.is_current().await.expect("a look"));
    let counted: Vec<i64> = sql("SELECT deaths FROM vms ORDER BY name").fetch_all(&db).await.expect("rows");
    assert_eq!(counted, [3, 1, 2, 2, 0], "what was counted as attempts were deaths");
    let attempts: Vec<i64> = sql("SELECT attempts FROM vms").fetch_all(&db).await.expect("rows");
    assert_eq!(attempts, [0; 5]);
    assert_eq!(text(&db, "SELECT COALESCE(user_data, 'none') FROM vms WHERE name = 'v14'").await, ["none"]);
    assert_eq!(text(&db, "SELECT login_user FROM disks").await, ["root"; 5]);
    assert_eq!(text(&db, "SELECT COALESCE(source, 'none') FROM images").await, ["none"]);
    db.close().await;

    // The service goes on where the older one was, though every deadline passed meanwhile.
    let read = |name: &str| match name {
        "BERTH_DATA_DIR" => Some(dir.path().to_string_lossy().into_owned()),
        "BERTH_DATABASE_URL" => Some(url.clone()),
        _ => None,
    };
    let config = Config::from_sources(None, read).expect("a configuration");
    let (vm, sandbox): (Arc<SimulatedEngine>, Arc<SimulatedSandboxes>) = (Arc::default(), Arc::default());
    let app = App::start_with(&config, Engines { vm, sandbox, network: Arc::<SimulatedNetworks>::default() })
        .await
        .expect("the service starts");
    let wanted = ["running", "deleted", "stopped", "running", "deleted"];
    let mut changes = app.db.watch();
    while text(&app.db, "SELECT status FROM vms ORDER BY name").await != wanted {
        let failed = text(&app.db, "SELECT name FROM vms WHERE status = 'failed'").await;
        assert!(failed.is_empty(), "{failed:?}");
        let change = tokio::time::timeout(std::time::Duration::from_mins(1), changes.recv()).await;
        assert!(change.is_ok(), "nothing happens any more");
    }
    assert!(app.first_login.is_none(), "somebody was there");
    app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_before_keep_their_ids_and_what_they_hold() {
    let dir = tempfile::tempdir().expect("a folder");
    let url = filled(dir.path(), &[ROWS, LATER]).await;
    let db = Db::open(&url).await.expect("it is brought up to date");
    let machines = "SELECT owner_kind || ' ' || SUBSTR(id, 35) || ' reserved ' || CAST(reserved AS TEXT) || ' slot ' \
         || COALESCE(CAST(slot AS TEXT), '-') || ' at ' || COALESCE(address, '-') || ' start ' || CAST(generation AS TEXT) \
         || CASE WHEN deleted_at IS NULL THEN '' ELSE ' gone' END FROM machines ORDER BY owner_kind, id";
    let wanted = [
        "sandbox a1 reserved 1 slot 1 at - start 4",
        "sandbox a2 reserved 0 slot 2 at - start 7",
        "sandbox a3 reserved 0 slot - at - start 1 gone",
        "template b1 reserved 1 slot 3 at - start 0",
        "vm 0a reserved 1 slot - at 127.64.0.10 start 1",
        "vm 0b reserved 1 slot - at 127.64.0.11 start 1",
        "vm 0c reserved 1 slot - at 127.64.0.12 start 1",
        "vm 0d reserved 1 slot - at 127.64.0.13 start 1",
        "vm 0e reserved 0 slot - at - start 1 gone",
    ];
    assert_eq!(text(&db, machines).await, wanted);
    assert_eq!(text(&db, "SELECT id FROM machines WHERE id <> owner_id").await, [""; 0]);
    let host = "SELECT DISTINCT h.name || ' ' || h.state FROM machines m JOIN hosts h ON h.id = m.host_id";
    assert_eq!(text(&db, host).await, ["alpha ready"]);
    assert_eq!(text(&db, "SELECT id FROM machines WHERE host_id IS NULL").await, [""; 0]);
    db.close().await;
}
