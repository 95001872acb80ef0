//! The host's resources, for `/metrics`.

use std::fmt::Write;
use std::path::Path;

/// Processors, memory, the data folder's disk, and this build's version, in Prometheus' text format.
pub(super) fn prometheus(data_dir: &Path, connections: usize) -> String {
    let mut text = format!(
        "# HELP berth_build_info The version that runs.\n# TYPE berth_build_info gauge\n\
         berth_build_info{{version=\"{}\"}} 1\n",
        env!("CARGO_PKG_VERSION")
    );
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    gauge(&mut text, "berth_http_connections", "Connections at this moment.", connections as u64);
    gauge(&mut text, "berth_host_cpus", "Processors of the host.", cpus as u64);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    for (name, help, key) in [
        ("berth_host_memory_bytes", "Memory of the host.", "MemTotal:"),
        ("berth_host_memory_available_bytes", "Memory that programs could get.", "MemAvailable:"),
    ] {
        if let Some(bytes) = bytes_of(&memory, key) {
            gauge(&mut text, name, help, bytes);
        }
    }
    if let Ok(disk) = rustix::fs::statvfs(data_dir) {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        gauge(&mut text, "berth_host_disk_bytes", "The disk of the data folder.", bytes(disk.f_blocks));
        gauge(&mut text, "berth_host_disk_available_bytes", "What is free on it.", bytes(disk.f_bavail));
    }
    text
}

fn gauge(text: &mut String, name: &str, help: &str, value: u64) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
}

/// A line of /proc/meminfo, which counts KiB.
fn bytes_of(memory: &str, key: &str) -> Option<u64> {
    let rest = memory.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_capacity_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let text = prometheus(dir.path(), 7);
        let value = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| unreachable!("{name}: {text}")).parse().unwrap()
        };
        assert_eq!(value("berth_http_connections"), 7);
        assert!(value("berth_host_memory_bytes") >= value("berth_host_memory_available_bytes"));
        assert!(value("berth_host_disk_bytes") >= value("berth_host_disk_available_bytes"));
        assert!(value("berth_host_cpus") > 0 && text.contains("berth_build_info{version=\""));
    }
}
