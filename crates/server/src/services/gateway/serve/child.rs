//! A server of one model file, from its start to its end.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::engine::{Engine, command};
use super::log;

/// The program that serves with the Python package; see that file.
const RUNNER: &str = include_str!("runner.py");
/// Runs a program that dies when this shell's stdin ends; the program itself does not get that stdin.
const LEASH: &str = r#"exec 3<&0 </dev/null
{ cat <&3 >/dev/null; kill -9 $$; } 2>/dev/null &
exec "$@" >&2 3<&-"#;
/// Pause between two health checks.
const ASK: Duration = Duration::from_millis(100);
/// Longest wait for a health check's answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a child may live after its stdin was closed.
const GRACE: Duration = Duration::from_secs(5);

/// A child of the service.
pub struct Child {
    process: tokio::process::Child,
    /// The child lives as long as this is open.
    held: Option<ChildStdin>,
    port: Port,
    log: JoinHandle<()>,
}

/// Where a child listens.
enum Port {
    Chosen(u16),
    /// The child tells it in its first line.
    Told(BufReader<ChildStdout>),
}

#[derive(Deserialize)]
struct Line {
    port: u16,
}

impl Child {
    /// Starts a server of a file, given by its whole path.
    pub fn start(engine: &Engine, file: &Path, data_dir: &Path) -> Result<Self> {
        let folder = data_dir.join("models");
        std::fs::create_dir_all(&folder).context("the folder of models cannot be made")?;
        let (mut command, chosen) = match engine {
            Engine::Server(server) => {
                let port = free_port().context("there is no free port")?;
                let mut command = command("sh");
                command.args(["-c", LEASH, "sh"]).arg(server).arg("-m").arg(file);
                command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).stdout(Stdio::null());
                // Without an alias, answers would show the file's path on this host.
                command.arg("--alias").arg(file.file_stem().unwrap_or(file.as_os_str()));
                (command, Some(port))
            }
            Engine::Python(python) => {
                let mut command = command(python);
                command.args(["-c", RUNNER]).arg(file).stdout(Stdio::piped());
                (command, None)
            }
        };
        // A process group of its own: a signal from the terminal goes to the service's group only.
        command.current_dir(&folder).stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut process = command.spawn().context("the server of a model file cannot be started")?;
        let port = match (chosen, process.stdout.take()) {
            (Some(port), _) => Port::Chosen(port),
            (None, Some(stdout)) => Port::Told(BufReader::new(stdout)),
            (None, None) => anyhow::bail!("the server of a model file has no output"),
        };
        let errors = process.stderr.take().context("the server of a model file has no errors")?;
        let log = tokio::spawn(log::keep(errors, log::path(data_dir, file)));
        Ok(Self { held: process.stdin.take(), process, port, log })
    }

    /// Waits until the child ends; publishes its address as soon as it answers. Returns why it ended, in words.
    pub async fn life(&mut self, address: &watch::Sender<Option<String>>) -> String {
        match self.lives(address).await {
            Ok(status) => status.to_string(),
            Err(error) => format!("{error:#}"),
        }
    }

    async fn lives(&mut self, address: &watch::Sender<Option<String>>) -> Result<ExitStatus> {
        let port = match &mut self.port {
            Port::Chosen(port) => *port,
            Port::Told(stdout) => match announced_port(stdout).await? {
                Some(port) => port,
                None => return Ok(self.process.wait().await?),
            },
        };
        tokio::select! {
            status = self.process.wait() => return Ok(status?),
            () = healthy(port) => {}
        }
        address.send_replace(Some(format!("http://127.0.0.1:{port}/v1")));
        Ok(self.process.wait().await?)
    }

    /// Ends the child and waits until it is gone.
    pub async fn end(mut self) {
        // A process that was waited for has no id.
        let group = self.process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        drop(self.held.take());
        if timeout(GRACE, self.process.wait()).await.is_err() {
            if let Some(group) = group {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.process.wait().await;
        }
        if timeout(GRACE, &mut self.log).await.is_err() {
            self.log.abort();
        }
    }
}

/// The port in the child's first line, or `None` if it ended without one.
async fn announced_port(stdout: &mut BufReader<ChildStdout>) -> Result<Option<u16>> {
    let mut line = String::new();
    stdout.take(1000).read_line(&mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let line: Line = serde_json::from_str(&line).context("the server of a model file said nonsense")?;
    Ok(Some(line.port))
}

/// Waits until the server at a port reports that it is healthy.
async fn healthy(port: u16) {
    while !matches!(timeout(ANSWER, asked(port)).await, Ok(Ok(true))) {
        sleep(ASK).await;
    }
}

async fn asked(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.") && answer.ends_with(b" 200"))
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::super::tests::program;
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// A child on the leash.
    fn on_the_leash(dir: &Path, script: &str) -> Child {
        let program = program(dir, "program", &format!("#!/bin/sh\n{script}\n"));
        Child::start(&Engine::Server(program), Path::new("/x/tiny.gguf"), dir).unwrap()
    }

    #[tokio::test]
    async fn it_ends_with_the_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = on_the_leash(dir.path(), "trap '' TERM; echo $$ >&2; while :; do sleep 0.1; done");
        let log = dir.path().join("models/tiny.log");
        let said = async {
            while !std::fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n')) {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(MINUTE, said).await.unwrap();
        let id = child.process.id().unwrap();
        assert_eq!(std::fs::read_to_string(&log).unwrap().trim(), id.to_string(), "no shell stands between");
        drop(child.held.take());
        let status = timeout(MINUTE, child.process.wait()).await.unwrap().unwrap();
        assert_eq!(status.signal(), Some(9), "what ignores a wish is killed");
    }

    #[tokio::test]
    async fn its_end_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = on_the_leash(dir.path(), "exit 7");
        let (address, _told) = watch::channel(None);
        assert!(child.life(&address).await.contains('7'));
        child.end().await;
    }

    #[test]
    fn runner_is_one_argument() {
        // Linux allows 128 KiB.
        assert!(RUNNER.len() < 100_000 && !RUNNER.contains('\0'));
    }
}
