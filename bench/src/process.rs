//! The resources that a process uses.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A child that does not outlive the run.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// CPU seconds so far.
    pub fn cpu(&self) -> f64 {
        cpu(self.0.id().cast_signed())
    }

    /// Resident memory now, in MB (10^6 bytes).
    pub fn memory(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u32 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(f64::from(kib) * 1024.0 / 1e6)
    }
}

/// Asks until a check succeeds; returns the time since `began`.
pub async fn until(began: Instant, what: &str, mut check: impl AsyncFnMut() -> bool) -> Result<Duration> {
    while !check().await {
        if began.elapsed() > Duration::from_mins(5) {
            bail!("{what}: not within 300 s");
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(began.elapsed())
}

/// The median of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

/// CPU seconds of a process so far.
pub fn cpu(process: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u32 = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u32>().ok()).sum();
    f64::from(ticks) / 100.0
}

/// A process' share of memory, in MiB: a page that several processes map counts for each with its part.
pub fn pss(process: i32) -> Result<f64> {
    rollup(process, &["Pss:"])
}

/// What a process has of memory that nobody else maps, in MiB.
pub fn own(process: i32) -> Result<f64> {
    rollup(process, &["Private_Clean:", "Private_Dirty:"])
}

/// The sum of some figures of a process' memory, in MiB.
fn rollup(process: i32, names: &[&str]) -> Result<f64> {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let kib = |name: &&str| -> Result<f64> {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).context("a figure of memory")?;
        Ok(f64::from(line.trim().trim_end_matches(" kB").parse::<u32>()?))
    };
    Ok(names.iter().map(kib).sum::<Result<f64>>()? / 1024.0)
}

/// The figure that a given part of all figures does not exceed.
pub fn percentile(figures: &[f64], part: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let index = (sorted.len() as f64 * part) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
