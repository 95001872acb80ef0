//! Choosing a host among a thousand: where many have room, and where none has.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use berth_domain::host::State;
use berth_domain::host::gpu::Device;
use berth_domain::host::placement::{AtHand, Disk, Host, Kind, Overcommit, Policy, Promised, Stores, Sum, Wish, place};
use berth_domain::ids::HostId;
use uuid::Uuid;

use crate::process::median;
use crate::report::{Bound, Report};

/// Hosts of the fleet.
const HOSTS: u32 = 1000;
/// Decisions; the median counts.
const ROUNDS: usize = 501;
/// MiB of a host.
const EACH: i64 = 64 * 1024;

/// What all hosts have alike.
struct Alike {
    regions: Vec<String>,
    labels: BTreeMap<String, String>,
    stores: Stores,
    held_gpus: BTreeSet<Device>,
}

impl Alike {
    fn host<'a>(&'a self, number: u32, name: &'a str) -> Host<'a> {
        // Each is filled otherwise, and none is empty.
        let memory_mb = 1024 + i64::from(number * 7919 % 61) * 1024;
        Host {
            id: HostId(Uuid::from_u128(u128::from(number))),
            name,
            says: true,
            state: State::Ready,
            regions: &self.regions,
            labels: &self.labels,
            stores: &self.stores,
            vcpu: Some(256),
            memory_mb: EACH,
            most_sandboxes: None,
            overcommit: Overcommit { vm: 1.0, sandbox: 4.0 },
            promised: Promised { vms: Sum { machines: 8, vcpu: 16, memory_mb }, ..Promised::default() },
            disk: Disk { is_full: false, sizes: Some((1000, 100)) },
            gpus: &[],
            held_gpus: &self.held_gpus,
            lacks: None,
            at_hand: AtHand::Image,
        }
    }
}

pub fn run(report: &mut Report) -> Result<()> {
    let alike = Alike {
        regions: vec!["local".into()],
        labels: [("disk".to_owned(), "ssd".to_owned())].into(),
        stores: Stores::new(),
        held_gpus: BTreeSet::new(),
    };
    let names: Vec<_> = (0..HOSTS).map(|number| format!("host-{number}")).collect();
    let fleet: Vec<_> = (0..HOSTS).zip(&names).map(|(number, name)| alike.host(number, name)).collect();
    for (memory_mb, what) in
        [(2048, "placement among 1,000 hosts"), (EACH, "placement among 1,000 hosts, none has room")]
    {
        let wish = Wish {
            kind: Kind::Vm,
            vcpu: 2,
            memory_mb,
            most: 1,
            disk_gb: Some(20),
            gpus: None,
            region: Some("local"),
            labels: Some(&alike.labels),
            needs: AtHand::Nothing,
            tied: None,
            on: None,
            store: None,
        };
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            let placed = black_box(place(black_box(&wish), black_box(&fleet), Policy::Spread, Uuid::nil));
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            ensure!(placed.is_ok() == (memory_mb < EACH), "{placed:?}");
        }
        report.add(what, median(times), "ms", Some(Bound::Most(1.0)), format!("median of {ROUNDS} decisions"));
    }
    Ok(())
}
