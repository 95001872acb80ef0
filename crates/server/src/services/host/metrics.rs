//! Metrics of hosts. A host is identified by its id: `/metrics` needs no credential, so it shows no name and no address. Nor
//! are these figures there for everybody who reaches the API (`app::metrics`).

use std::collections::HashMap;
use std::fmt::Write;

use berth_domain::Timestamp;
use berth_domain::host::State;
use berth_domain::host::placement::{Promised, Sum};
use berth_domain::ids::HostId;

use super::store::host::HostRow;

/// Bytes of a MiB.
const MIB: i64 = 1 << 20;

/// A host, and what machines hold of it.
type Standing<'a> = (&'a HostRow, Sum);
/// What a figure is called, what it says, and its value; none where a host has none.
type Figure = (&'static str, &'static str, fn(Standing) -> Option<i64>);

const FIGURES: [Figure; 9] = [
    ("berth_host_up", "Whether a host can be asked.", |(host, _)| Some(is_up(host).into())),
    (
        "berth_host_trouble",
        "Whether something keeps it from running machines; `berth admin host list` says what.",
        |(host, _)| Some(host.trouble.is_some().into()),
    ),
    ("berth_host_seen_seconds", "When it was last there, as seconds since 1970.", |(host, _)| {
        Some(seconds(host.last_seen))
    }),
    ("berth_host_certificate_end_seconds", "When its certificate ends, as seconds since 1970.", |(host, _)| {
        host.certificate_until.map(seconds)
    }),
    ("berth_host_machines", "Machines that hold something of it.", |(_, load)| Some(load.machines)),
    ("berth_host_cpus", "Its processors.", |(host, _)| Some(host.capacity.cpus)),
    ("berth_host_vcpus_held", "Virtual CPUs that machines hold.", |(_, load)| Some(load.vcpu)),
    ("berth_host_memory_bytes", "Its memory for machines.", |(host, _)| {
        Some(host.capacity.memory_mb.saturating_mul(MIB))
    }),
    ("berth_host_memory_held_bytes", "Memory that machines hold.", |(_, load)| {
        Some(load.memory_mb.saturating_mul(MIB))
    }),
];

fn is_up(host: &HostRow) -> bool {
    !matches!(host.state(), State::Lost | State::Joining)
}

const fn seconds(at: Timestamp) -> i64 {
    at.seconds()
}

/// What these hosts have, and what is promised of them, in Prometheus' text format.
pub(super) fn text(hosts: &[HostRow], promised: &HashMap<HostId, Promised>) -> String {
    let mut text = String::from("# HELP berth_host_state Hosts, each with its state.\n# TYPE berth_host_state gauge\n");
    for host in hosts {
        let _ = writeln!(text, "berth_host_state{{host=\"{}\",state=\"{}\"}} 1", host.id, host.state().as_str());
    }
    for (name, help, figure) in FIGURES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for host in hosts {
            let load = promised.get(&host.id).copied().unwrap_or_default().total();
            if let Some(value) = figure((host, load)) {
                let _ = writeln!(text, "{name}{{host=\"{}\"}} {value}", host.id);
            }
        }
    }
    text
}
