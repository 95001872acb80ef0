//! Transactions of one service at a server of PostgreSQL: who waits goes on where the one before ended, all are committed together,
//! and each loses no more than its own.

use std::time::Duration;

use berth_server::db::{Db, DbError, Tx, setting, settled, sql};
use berth_testkit::Postgres;
use futures::future::join_all;
use futures::poll;
use tokio::task::JoinHandle;
use tokio::time::timeout;

async fn database(server: &Postgres) -> Db {
    Db::open(&url(server)).await.expect("a database")
}

fn url(server: &Postgres) -> String {
    format!("postgres://berth@127.0.0.1:{}/berth", server.port())
}

/// How many settings there are whose names begin so.
async fn count(db: &Db, begin: &str) -> i64 {
    let counted = sql("SELECT COUNT(*) FROM settings WHERE key LIKE $1").bind(format!("{begin}%"));
    counted.fetch_one(db).await.expect("a number")
}

async fn puts(db: &Db, key: &str) -> Result<(), DbError> {
    let mut tx = db.begin().await?;
    setting::put(&mut tx, key, "x").await?;
    tx.commit().await
}

/// A row with a key of its own; another one of the same key breaks a unique rule.
async fn inserts(db: &Db, key: String) -> Result<(), DbError> {
    let mut tx = db.begin().await?;
    sql("INSERT INTO settings (key, value) VALUES ($1, $2)").bind(key).bind("x").execute(&mut tx).await?;
    tx.commit().await
}

fn commits(server: &Postgres) -> i64 {
    let asked = "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database WHERE datname = 'berth'";
    let said = server.sql("postgres", asked);
    said.trim_start_matches('|').trim().parse().unwrap_or_else(|_| panic!("a number: {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_are_committed_together() {
    let server = Postgres::started();
    // Connections report what they did when they end.
    database(&server).await.close().await;
    let before = commits(&server);
    let db = database(&server).await;
    let held = db.begin().await.expect("a transaction");
    let all = (0..100).map(|number| {
        let db = db.clone();
        tokio::spawn(async move { puts(&db, &format!("one-{number}")).await })
    });
    let all: Vec<_> = all.collect();
    held.commit().await.expect("a commit");
    for one in join_all(all).await {
        one.expect("no panic").expect("a commit");
    }
    assert_eq!(count(&db, "one-").await, 100);
    db.close().await;
    // At least two are together, whatever else the machine does; a service that begins asks some more.
    let commits = commits(&server) - before;
    assert!(commits < 80, "{commits} commits");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_fails_or_leaves_loses_its_own_changes_alone() {
    let server = Postgres::started();
    let db = database(&server).await;
    puts(&db, "twice").await.expect("a commit");
    let held = db.begin().await.expect("a transaction");
    let all = (0..60).map(|number| {
        let db = db.clone();
        tokio::spawn(async move {
            match number % 3 {
                0 => inserts(&db, format!("kept-{number}")).await,
                // It breaks a rule.
                1 => inserts(&db, "twice".into()).await,
                // It leaves without a word.
                _ => {
                    let mut tx = db.begin().await?;
                    setting::put(&mut tx, &format!("left-{number}"), "x").await
                }
            }
        })
    });
    let all: Vec<_> = all.collect();
    drop(held);
    for (number, one) in join_all(all).await.into_iter().enumerate() {
        let outcome = one.expect("no panic");
        let is_unique = matches!(outcome, Err(DbError::Unique(_)));
        assert_eq!((outcome.is_ok(), is_unique), (number % 3 != 1, number % 3 == 1), "{number}: {outcome:?}");
    }
    assert_eq!((count(&db, "kept-").await, count(&db, "left-").await), (20, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failed_statement_is_followed_by_is_not_committed() {
    let server = Postgres::started();
    let db = database(&server).await;
    let mut tx = db.begin().await.expect("a transaction");
    setting::put(&mut tx, "before", "x").await.expect("a row");
    sql("INSERT INTO settings (key) VALUES ($1)").bind("none").execute(&mut tx).await.expect_err("it lacks a value");
    tx.commit().await.expect_err("a statement failed");
    assert_eq!(count(&db, "before").await, 0);
    puts(&db, "after").await.expect("the next one writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_is_told_and_keeps_nobody_waiting() {
    let server = Postgres::started();
    drop(database(&server).await);
    let db = Db::connect(&url(&server), Duration::from_millis(200), 4).await.expect("a database");
    let held = db.begin().await.expect("a transaction");
    assert!(matches!(puts(&db, "late").await, Err(DbError::Unavailable(_))));
    // Whoever leaves while it waits, or just as its turn comes, leaves it to the next one.
    for micros in [1, 1_000, 50_000] {
        let _ = timeout(Duration::from_micros(micros), db.begin()).await;
    }
    drop(held);
    for micros in (0..40).map(|n| n * 50) {
        let _ = timeout(Duration::from_micros(micros), puts(&db, "perhaps")).await;
    }
    let patient = Db::connect(&url(&server), Duration::from_secs(30), 4).await.expect("a database");
    puts(&patient, "another service").await.expect("a commit");
    puts(&db, "this one").await.expect("a commit");
    assert_eq!(count(&db, "late").await, 0);
}

/// A commit that waits, of a row that is called `first-…`, and the transaction that goes on where that one ended.
async fn two(db: &Db) -> (JoinHandle<Result<(), DbError>>, Tx) {
    let mut first = db.begin().await.expect("a transaction");
    let key = format!("first-{}", uuid::Uuid::now_v7());
    setting::put(&mut first, &key, "x").await.expect("a row");
    let mut follower = Box::pin(db.begin());
    assert!(poll!(&mut follower).is_pending());
    let first = tokio::spawn(first.commit());
    (first, follower.await.expect("a transaction"))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_who_wait_for_a_commit_hear_that_the_server_is_lost() {
    let server = Postgres::started();
    let db = database(&server).await;
    let (first, follower) = two(&db).await;
    assert_eq!(count(&db, "first").await, 0);
    server.kill();
    follower.commit().await.expect_err("the server is lost");
    let outcome = first.await.expect("no panic");
    assert!(matches!(outcome, Err(DbError::Unavailable(_) | DbError::Unknown(_))), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_in_the_middle_of_a_statement_takes_nobody_along() {
    let server = Postgres::started();
    let db = database(&server).await;
    let fails = "SELECT CAST(1 / (LENGTH(pg_sleep(1)::TEXT) * 0) AS TEXT)";
    for (statement, number) in [("SELECT CAST(pg_sleep(1) AS TEXT)", 1), (fails, 2)] {
        let (first, mut follower) = two(&db).await;
        setting::put(&mut follower, "left", "x").await.expect("a row");
        let mut asking = Box::pin(sql(statement).fetch_optional::<String>(&mut follower));
        assert!(poll!(&mut asking).is_pending());
        drop(asking);
        drop(follower);
        first.await.expect("no panic").expect("a commit");
        assert_eq!((count(&db, "first").await, count(&db, "left").await), (number, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_takes_too_long_is_given_up_at_the_server() {
    let server = Postgres::started();
    let db = database(&server).await;
    let mut tx = db.begin().await.expect("a transaction");
    let asked = sql("SELECT CAST(pg_sleep(600) AS TEXT)").fetch_optional::<String>(&mut tx).await;
    assert!(matches!(asked, Err(DbError::Unavailable(_))), "{asked:?}");
    drop(tx);
    // Nothing holds the lock there any more.
    puts(&database(&server).await, "another service").await.expect("a commit");
}

/// What somebody answers who only looks, after somebody else whose change it sees, and whose commit is lost; none where that was
/// committed before.
async fn answer_to_what_is_lost() -> Option<Result<Result<Option<String>, DbError>, DbError>> {
    let server = Postgres::started();
    let db = database(&server).await;
    let held = db.begin().await.expect("a transaction");
    let mut changes = Box::pin(puts(&db, "change"));
    let mut looks = Box::pin(settled(async {
        let mut tx = db.begin().await?;
        let seen = setting::find(&mut tx, "change").await?;
        server.kill();
        Ok::<_, DbError>(seen)
    }));
    // They wait in this order.
    assert!(poll!(&mut changes).is_pending() && poll!(&mut looks).is_pending());
    drop(held);
    let (outcome, answer) = tokio::join!(changes, looks);
    outcome.is_err().then_some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_answers_by_what_others_did_waits_for_their_commit() {
    for _ in 0..10 {
        if let Some(answer) = answer_to_what_is_lost().await {
            assert!(matches!(answer, Err(DbError::Unavailable(_) | DbError::Unknown(_))), "{answer:?}");
            return;
        }
    }
    panic!("no change was seen before its commit");
}
