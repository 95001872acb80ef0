//! What is measured: a process between the load and the upstream, or no process.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_testkit::Caller;

use super::http;
use super::load::{Outcome, Work};
use super::upstream::Shape;
use crate::process::Running;

/// The name of the system that has bounds.
pub const OURS: &str = "Berth";
/// Time for a system to finish work that it puts off.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// A gateway, or nothing.
pub struct System {
    /// Its name.
    pub name: &'static str,
    /// Its address, as `127.0.0.1:1234`.
    pub address: String,
    /// Headers that it needs, each with its line end.
    pub headers: String,
    /// Its process; `None` if there is none between.
    pub process: Option<Running>,
    /// Number of open streams for measuring its memory.
    pub streams: u32,
    /// A caller who can read its usage.
    pub ledger: Option<Caller>,
}

/// The cost of some work.
pub struct Round {
    /// What the load measured.
    pub outcome: Outcome,
    /// CPU seconds of the system, metering included.
    pub cpu: f64,
    /// Number of requests that its usage gained, if it meters.
    pub metered: Option<u64>,
}

impl System {
    /// Whether it is Berth, for which the bounds hold.
    pub fn is_ours(&self) -> bool {
        self.name == OURS
    }

    /// Describes work for it.
    pub fn work(&self, shape: Shape, connections: u32, requests: u32, seconds: u64) -> Work {
        let request = http::request(&self.headers, &shape.body());
        Work { address: self.address.clone(), request, shape, connections, requests, seconds }
    }

    /// Waits for its first answer.
    pub async fn answers(&mut self) -> Result<()> {
        let work = self.work(Shape::Plain, 1, 1, 1);
        let mut last = None;
        for _ in 0..600 {
            match work.once().await {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
            if let Some(status) = self.process.as_mut().and_then(|process| process.0.try_wait().ok().flatten()) {
                bail!("{} ended with {status}", self.name);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(last.context("no answer")?.context(format!("{} does not answer", self.name)))
    }

    /// Sends some work through it.
    pub async fn round(&self, work: &Work) -> Result<Round> {
        let metered = self.metered().await?;
        let before = self.cpu();
        let outcome = work.run().await?;
        let metered = self.settled(metered, u64::from(outcome.answers)).await?;
        Ok(Round { outcome, cpu: self.cpu() - before, metered })
    }

    /// The same; reports a failure of another system than Berth, and leaves it out.
    pub async fn round_if_possible(&self, work: &Work) -> Result<Option<Round>> {
        match self.round(work).await {
            Ok(round) => Ok(Some(round)),
            Err(error) if self.is_ours() => Err(error),
            Err(error) => {
                println!("{} is left out of a figure: {error:#}", self.name);
                Ok(None)
            }
        }
    }

    /// Waits until its usage has so many more requests; returns how many it has.
    pub async fn settled(&self, before: Option<u64>, wanted: u64) -> Result<Option<u64>> {
        tokio::time::sleep(AFTERWARDS).await;
        let Some(before) = before else { return Ok(None) };
        let mut more = 0;
        for _ in 0..60 {
            more = self.metered().await?.unwrap_or_default().saturating_sub(before);
            if more >= wanted {
                break;
            }
            tokio::time::sleep(AFTERWARDS).await;
        }
        Ok(Some(more))
    }

    /// Number of requests in its usage, if it meters.
    pub async fn metered(&self) -> Result<Option<u64>> {
        let Some(caller) = &self.ledger else { return Ok(None) };
        let answer = caller.get("/usage?window=24h&resolution=1h&group_by=model").await;
        ensure!(answer.status == 200, "{answer:?}");
        let rows = answer.body["data"].as_array().context("usage without data")?;
        Ok(Some(rows.iter().filter_map(|row| row["requests"].as_u64()).sum()))
    }

    fn cpu(&self) -> f64 {
        self.process.as_ref().map_or(0.0, |process| spent(process.0.id()))
    }
}

/// Starts a process with its output in a file.
pub fn start(command: &mut Command, log: &Path) -> Result<Running> {
    let file = File::create(log)?;
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
    Ok(Running(child.with_context(|| format!("{} does not start", command.get_program().display()))?))
}

/// An address on which nothing listens.
pub fn free_address() -> Result<String> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// CPU seconds of a process and all its descendants so far.
fn spent(root: u32) -> f64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<(u32, Stat)> = pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let (mut tree, mut next, mut ticks) = (vec![root], 0, 0);
    while let Some(&process) = tree.get(next) {
        tree.extend(all.iter().filter(|(_, stat)| stat.parent == process).map(|(pid, _)| *pid));
        ticks += all.iter().find(|(pid, _)| *pid == process).map_or(0, |(_, stat)| stat.ticks);
        next += 1;
    }
    f64::from(ticks) / 100.0
}

/// The content of `/proc/PID/stat`; proc_pid_stat(5).
struct Stat {
    parent: u32,
    /// User and system time, including that of ended children; hundredths of a second.
    ticks: u32,
}

impl Stat {
    fn of(process: u32) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name before it may contain any character.
        let (_, after) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u32>().ok()).sum();
        Some(Self { parent: fields.get(1)?.parse().ok()?, ticks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_process_and_its_children() {
        let line = "42 (a ) b) S 7 42 42 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 1 0 100 1 1 1";
        let stat = Stat::read(line).unwrap();
        assert_eq!((stat.parent, stat.ticks), (7, 124));
        assert!(Stat::read("42 (a").is_none());
    }
}
