//! What the machine uses, from a few small files and without a look at each process.

use berth_domain::agent::control::Metrics;
use http::StatusCode;

use crate::body::{Answer, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};

/// Ticks a second in which the kernel reports times.
const TICKS: f64 = 100.0;

/// `GET /control/metrics`.
pub fn metrics(call: &Call) -> Result<Answer> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(Refusal::internal);
    let (total, available) = memory(&read("/proc/meminfo")?);
    let agent = &call.agent;
    let disk = rustix::fs::statvfs(agent.place.get().map_or(std::path::Path::new("/"), |place| &place.workspace));
    let disk = disk.map_err(Refusal::internal)?;
    let disk_total = disk.f_blocks * disk.f_frsize;
    let running = (agent.processes.running() + agent.terminals.running()) as u64;
    let metrics = Metrics {
        cpu_seconds: busy_ticks(&read("/proc/stat")?) / TICKS,
        memory_bytes: total.saturating_sub(available),
        memory_total_bytes: total,
        disk_bytes: disk_total.saturating_sub(disk.f_bfree * disk.f_frsize),
        disk_total_bytes: disk_total,
        processes: agent.freezer.processes().unwrap_or(agent.reaper.living() as u64),
        running,
    };
    Ok(reply(StatusCode::OK, &metrics))
}

/// Ticks in which the processor was busy, from the first line of `/proc/stat`: all but idling and waiting for a disk.
fn busy_ticks(stat: &str) -> f64 {
    let line = stat.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    let columns = line.split_ascii_whitespace().skip(1).take(8).map(|word| word.parse().unwrap_or(0.0));
    columns.enumerate().filter(|(index, _)| !matches!(index, 3 | 4)).map(|(_, ticks): (_, f64)| ticks).sum()
}

/// Total and available memory in bytes, of `/proc/meminfo`.
fn memory(meminfo: &str) -> (u64, u64) {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let bytes = |name: &str| field(name).unwrap_or(0) * 1024;
    (bytes("MemTotal"), bytes("MemAvailable"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::float_cmp, reason = "sums of small integers are exact")]
    fn the_kernels_files_are_read() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 9"), 63.0);
        assert_eq!(busy_ticks(""), 0.0);
        assert_eq!(memory("MemTotal:  10 kB\nMemFree: 1 kB\nMemAvailable:    4 kB\n"), (10_240, 4096));
        assert_eq!(memory("nonsense"), (0, 0));
    }
}
