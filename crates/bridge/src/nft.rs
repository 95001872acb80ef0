//! `nft`, by which rules reach the kernel: each call is one transaction.
//!
//! Whoever is killed amid a call must not leave half of a text to a program that goes on reading, nor a program that is late
//! and undoes what comes after. So the text is in memory as a whole before the program begins, and the program holds the
//! bridge's lock as long as it lives: its answers go to that file, where there are none.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use crate::error::{Error, Result};

/// Where the program is looked for beside the path of the service, which need not have them.
const PLACES: &str = "/usr/sbin:/sbin:/usr/local/sbin";
/// How long it may take: a thousand machines' rules are 0.7 s. One that hangs is killed.
const PATIENCE: Duration = Duration::from_secs(30);
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
    let mut command = nft(&["-f", "-"]);
    command.stdin(given).stdout(lock).stderr(Stdio::piped());
    let output = ended(command, PATIENCE).await?;
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
    let mut command = nft(&arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ended(command, PATIENCE).await?;
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

/// Runs it to its end.
async fn ended(mut command: Command, patience: Duration) -> Result<Output> {
    let running = command.spawn().map_err(missing)?.wait_with_output();
    match tokio::time::timeout(patience, running).await {
        Ok(output) => output.map_err(Error::io("what nft says cannot be read")),
        Err(_) => Err(Error::Device {
            what: "nft".into(),
            why: format!("it did not end within {} s and was killed; trying again", patience.as_secs_f32()),
        }),
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn one_that_hangs_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nft");
        let text = "#!/bin/sh\necho $$ > \"$0.pid\"\nexec /bin/sleep 600\n";
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let since = Instant::now();
        let mut command = nft(&["-f", "-"]);
        command.env("PATH", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = ended(command, Duration::from_secs(2)).await.unwrap_err().to_string();
        assert!(failed.contains("within 2 s"), "{failed}");
        assert!(since.elapsed() < Duration::from_secs(20));
        let pid = std::fs::read_to_string(dir.path().join("nft.pid")).unwrap();
        let command_line = format!("/proc/{}/cmdline", pid.trim());
        let lives = || std::fs::read(&command_line).is_ok_and(|line| !line.is_empty());
        while lives() {
            assert!(since.elapsed() < Duration::from_secs(20), "it lives on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // One that ends in time is not held up.
        let mut command = Command::new("/bin/echo");
        command.arg("done").stdout(Stdio::piped());
        assert_eq!(ended(command, Duration::from_mins(1)).await.unwrap().stdout, b"done\n");
    }
}
