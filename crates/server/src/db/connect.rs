//! The way to a database: its address, and connections to it.
//!
//! The operator who starts a service reads these errors, so each names what was typed or which server does not answer,
//! and none shows the password in the address.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Connection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::time::timeout;

use super::leader::{self, Leader, Members, Surveyed};
use super::{DbError, Pools};

/// Connections that read at the same time.
const READERS: u32 = 8;
/// How long the first connection to a file may take: it recovers what a power failure left, on a disk that may be busy.
const OPEN: Duration = Duration::from_mins(1);
/// How long the first connection to a server may take.
const REACH: Duration = Duration::from_secs(5);

const FORMS: &str = "write sqlite:PATH, or postgres://user:password@host/name, with commas between several hosts";

/// The kind of database that an address means.
#[derive(Debug, PartialEq, Eq)]
enum Address<'a> {
    File(&'a Path),
    Server(&'a str),
}

/// Refuses an address that means no database that Berth knows; the error lists the possible forms.
pub fn check_address(url: &str) -> Result<(), String> {
    read(url).map(drop)
}

fn read(url: &str) -> Result<Address<'_>, String> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return match Members::from_str(url) {
            Ok(_) => Ok(Address::Server(url)),
            Err(wrong) => Err(format!("{wrong}; {FORMS}")),
        };
    }
    let path = match url.split_once(':') {
        Some(("sqlite", path)) => path.strip_prefix("//").filter(|path| path.starts_with('/')).unwrap_or(path),
        Some((scheme, _)) if is_scheme(scheme) => {
            return Err(format!("begins with '{scheme}:', which is no database that Berth knows; {FORMS}"));
        }
        _ => url,
    };
    if path.is_empty() || path.starts_with("//") {
        return Err(format!("names no file; {FORMS}"));
    }
    Ok(Address::File(Path::new(path)))
}

/// The folder of a database's file; `None` for one on a server.
pub fn disk_of(url: &str) -> Option<PathBuf> {
    match read(url).ok()? {
        Address::File(path) => {
            Some(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).into())
        }
        Address::Server(_) => None,
    }
}

/// The members of a server's cluster and what they say now; nothing where the address is a file's.
pub async fn survey(url: &str) -> Option<Vec<Surveyed>> {
    match read(url).ok()? {
        Address::Server(url) => Some(leader::survey(&url.parse().ok()?).await),
        Address::File(_) => None,
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+.-".contains(c))
}

/// Opens a database. Callers wait at most `wait` for a connection or a lock; a server has at most so many connections.
pub(super) async fn open(url: &str, wait: Duration, connections: u32) -> Result<Pools, DbError> {
    match read(url).map_err(|wrong| DbError::Other(format!("its address {wrong}")))? {
        Address::File(path) => open_file(path, wait).await,
        Address::Server(url) => open_server(url, REACH, wait, connections).await,
    }
}

async fn open_file(path: &Path, wait: Duration) -> Result<Pools, DbError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .statement_cache_capacity(256)
        .busy_timeout(wait);
    let first = timeout(OPEN, SqliteConnection::connect_with(&options)).await;
    let first = first.map_err(|_| DbError::Unavailable(format!("its file did not open in {OPEN:?}")))?;
    let first = first.map_err(|error| DbError::Other(format!("{}: {error}", path.display())))?;
    let write = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(wait)
        .test_before_acquire(false)
        // SQLite ends a transaction by itself when its disk is full. The rollback then fails, and the connection would
        // count as "in a transaction" for ever.
        .before_acquire(|connection, _| Box::pin(async move { Ok(!connection.is_in_transaction()) }))
        .connect_with(options.clone())
        .await?;
    let read = SqlitePoolOptions::new()
        .max_connections(READERS)
        .acquire_timeout(wait)
        .test_before_acquire(false)
        .connect_lazy_with(options.read_only(true).create_if_missing(false));
    first.close().await?;
    Ok(Pools::Sqlite { write, read })
}

/// Copies a SQLite database into a new file, as it is at one moment, while others read and write it.
pub async fn copy(url: &str, to: &Path) -> Result<(), DbError> {
    let path = match read(url).map_err(|wrong| DbError::Other(format!("its address {wrong}")))? {
        Address::File(path) => path,
        Address::Server(_) => {
            return Err(DbError::Other("it is a PostgreSQL database; PostgreSQL's pg_dump copies it".into()));
        }
    };
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(OPEN);
    let named = |error: sqlx::Error| DbError::Other(format!("{} to {}: {error}", path.display(), to.display()));
    let mut connection = SqliteConnection::connect_with(&options).await.map_err(named)?;
    let name = to.to_str().ok_or_else(|| DbError::Other("the name of the copy is not UTF-8".into()))?;
    // SQLite writes into an existing file if that is empty, and follows a link to a missing file. This call makes the
    // file, and follows no link.
    std::fs::OpenOptions::new().write(true).create_new(true).open(to).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => DbError::Other(format!("{} is there already; name a new file", to.display())),
        _ => DbError::Other(format!("{}: {error}", to.display())),
    })?;
    if let Err(error) = sqlx::query("VACUUM INTO $1").bind(name).execute(&mut connection).await {
        // An empty file is no copy.
        let _ = std::fs::remove_file(to);
        return Err(named(error));
    }
    connection.close().await?;
    let synced = std::fs::File::open(to).and_then(|file| file.sync_all());
    synced.map_err(|error| DbError::Other(format!("{}: {error}", to.display())))
}

async fn open_server(url: &str, patience: Duration, wait: Duration, most: u32) -> Result<Pools, DbError> {
    Ok(Pools::Postgres(Arc::new(Leader::find(url, patience, wait, most).await?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{CONNECTIONS, WAIT};

    #[test]
    fn an_address_is_a_file_or_a_postgresql_server() {
        for (url, path) in [
            ("sqlite:/var/lib/berth.db", "/var/lib/berth.db"),
            ("sqlite:///var/lib/berth.db", "/var/lib/berth.db"),
            ("sqlite:here.db", "here.db"),
            ("/a:b/berth.db", "/a:b/berth.db"),
            ("berth.db", "berth.db"),
        ] {
            assert_eq!(read(url), Ok(Address::File(Path::new(path))), "{url}");
        }
        for url in ["postgres://berth@localhost/berth", "postgresql://berth:secret@db.example.com:5433/berth"] {
            assert_eq!(read(url), Ok(Address::Server(url)));
        }
    }

    #[test]
    fn other_schemes_are_refused_and_the_forms_named() {
        for (url, word) in [
            ("mysql://root:hush@h/x", "mysql:"),
            ("postgress://h/x", "postgress:"),
            ("sqlite:", "no file"),
            ("sqlite://here.db", "no file"),
            ("", "no file"),
            ("postgres://h:port/x", "PostgreSQL"),
        ] {
            let refusal = read(url).unwrap_err();
            assert!(refusal.contains(word) && refusal.contains("sqlite:PATH"), "{refusal}");
            assert!(!refusal.contains("hush"), "{refusal}");
        }
    }

    #[tokio::test]
    async fn a_database_is_copied_while_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let url = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
        let db = crate::db::Db::open(&url("db")).await.unwrap();
        let writing = db.begin().await.unwrap();
        let to = dir.path().join("copy");
        copy(&url("db"), &to).await.unwrap();
        drop(writing);
        assert!(crate::db::Db::connect(&url("copy"), WAIT, CONNECTIONS).await.unwrap().is_current().await.unwrap());
        let refusal = copy(&url("db"), &to).await.unwrap_err().to_string();
        assert!(refusal.contains("copy"), "nothing is written over: {refusal}");
        assert!(copy(&url("none"), &dir.path().join("other")).await.is_err() && !dir.path().join("none").exists());
        assert!(copy("postgres://h/x", &to).await.unwrap_err().to_string().contains("pg_dump"));
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_named() {
        // No one listens there, and no one else gets the port.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let port = held.local_addr().unwrap().port();
        let error = open(&format!("postgres://berth:hush@127.0.0.1:{port}/berth"), WAIT, CONNECTIONS)
            .await
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(&format!("127.0.0.1, port {port}")) && error.contains("running"), "{error}");
        assert!(!error.contains("hush"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_is_silent_is_named() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let url = format!("postgres://berth@127.0.0.1:{port}/berth");
        let error = open_server(&url, Duration::from_millis(50), WAIT, CONNECTIONS).await.err().unwrap().to_string();
        assert!(error.contains(&format!("127.0.0.1, port {port}")) && error.contains("within 50ms"), "{error}");
    }

    #[tokio::test]
    async fn a_copy_is_a_new_file_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let url = format!("sqlite:{}", at("berth.db").display());
        let db = crate::db::Db::open(&url).await.unwrap();
        copy(&url, &at("copy.db")).await.unwrap();
        assert!(std::fs::metadata(at("copy.db")).unwrap().len() > 0);
        std::fs::write(at("empty"), "").unwrap();
        std::os::unix::fs::symlink(at("elsewhere"), at("link")).unwrap();
        for name in ["copy.db", "empty", "link"] {
            let refused = copy(&url, &at(name)).await.unwrap_err().to_string();
            assert!(refused.contains("is there already"), "{name}: {refused}");
        }
        assert!(!at("elsewhere").exists() && std::fs::metadata(at("empty")).unwrap().len() == 0);
        db.close().await;
        // A failed copy leaves no file.
        std::fs::write(at("text.db"), "this is not a database").unwrap();
        copy(&format!("sqlite:{}", at("text.db").display()), &at("none.db")).await.unwrap_err();
        assert!(!at("none.db").exists());
    }
}
