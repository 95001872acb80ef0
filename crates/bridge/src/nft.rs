//! `nft`, by which rules reach the kernel: each call is one transaction.
//!
//! Whoever is killed amid a call must not leave half of a text to a program that goes on reading, nor a program that is late
//! and undoes what comes after. So the text is in memory as a whole before the program begins, and the program holds the
//! bridge's lock as long as it lives: its answers go to that file, where there are none.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use crate::error::{Error, Result};

/// Where the program is looked for beside the path of the service, which need not have them.
const PLACES: &str = "/usr/sbin:/sbin:/usr/local/sbin";
/// Lines of what it says that are told.
const SAID: usize = 3;

/// What it answers.
#[derive(Deserialize)]
struct Answer {
    nftables: Vec<Value>,
}

/// Applies a text, as a whole or not at all.
pub(crate) async fn apply(text: &str, lock: &File) -> Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let given = in_memory(text).map_err(Error::io("the rules of the bridge cannot be handed over"))?;
    let lock = lock.try_clone().map_err(Error::io("the lock of the bridge cannot be handed over"))?;
    let output = nft(&["-f", "-"]).stdin(given).stdout(lock).stderr(Stdio::piped()).output().await.map_err(missing)?;
    if output.status.success() { Ok(()) } else { Err(Error::Rules(said(&output.stderr))) }
}

/// What it lists of a table; nothing where there is none.
pub(crate) async fn table(family: &str, name: &str) -> Result<Vec<Value>> {
    let tables = list(&["tables", family]).await?;
    let has = |value: &Value| value["table"]["name"] == name;
    if tables.iter().any(has) { list(&["table", family, name]).await } else { Ok(Vec::new()) }
}

/// Whether a chain of a table that is there has rules; one that is gone has none.
pub(crate) async fn has_rules(family: &str, table: &str, chain: &str) -> Result<bool> {
    match list(&["chain", family, table, chain]).await {
        Err(Error::Rules(_)) => Ok(false),
        listed => Ok(listed?.iter().any(|object| object.get("rule").is_some())),
    }
}

/// What it lists.
pub(crate) async fn list(what: &[&str]) -> Result<Vec<Value>> {
    let arguments = [&["-j", "list"], what].concat();
    let output = nft(&arguments).stdin(Stdio::null()).output().await.map_err(missing)?;
    if !output.status.success() {
        return Err(Error::Rules(said(&output.stderr)));
    }
    let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|error| Error::Rules(error.to_string()))?;
    Ok(answer.nftables)
}

fn nft(arguments: &[&str]) -> Command {
    let mut command = Command::new("nft");
    let path = std::env::var("PATH").map_or_else(|_| PLACES.to_owned(), |path| format!("{path}:{PLACES}"));
    command.args(arguments).env("PATH", path).env("LC_ALL", "C").current_dir("/").kill_on_drop(true);
    command
}

fn in_memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("rules", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

fn missing(error: io::Error) -> Error {
    if error.kind() == io::ErrorKind::NotFound {
        Error::Missing(
            "nft is not there, which network.mode = \"bridge\" needs; type: sudo apt-get install nftables".into(),
        )
    } else {
        Error::io("nft cannot be started")(error)
    }
}

fn said(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().take(SAID).collect::<Vec<_>>().join("; ")
}
