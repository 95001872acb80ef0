//! What simulated hosts have of disks that lie in stores.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use berth_domain::ids::{DiskId, DiskSnapshotId, MachineId};
use berth_host::vm::{DiskSnapshotSpec, DiskSource, DiskSpec, Store};
use berth_host::{EngineError, Result};

/// The disks of all stores that hosts of one test reach.
#[derive(Default)]
pub struct SharedDisks {
    /// Sizes in GiB, by the names of the stores.
    all: HashMap<(String, DiskId), i64>,
    /// Snapshots of them, by the names of the stores.
    snapshots: BTreeSet<(String, DiskSnapshotId)>,
    /// Which machine of which host has each disk open.
    open: HashMap<DiskId, Opener>,
    /// Hosts that every store refuses.
    shut_out: BTreeSet<IpAddr>,
    /// What must never be, in words.
    violations: Vec<String>,
}

/// A machine, and the number of the simulated host that it runs on.
pub type Opener = (u64, MachineId);

impl SharedDisks {
    /// Makes one; fine where it is there.
    pub fn make(&mut self, disk: &DiskSpec, store: &Store) -> Result<()> {
        if matches!(disk.source, DiskSource::Snapshot { .. }) {
            return Err(EngineError::Permanent("a disk of a snapshot is restored".into()));
        }
        self.all.entry((store.name.clone(), disk.id)).or_insert(disk.size_gb);
        Ok(())
    }

    /// Keeps what one is; fine where it is kept.
    pub fn snapshot(&mut self, snapshot: &DiskSnapshotSpec, store: &Store) -> Result<()> {
        self.find(snapshot.disk, store)?;
        self.snapshots.insert((store.name.clone(), snapshot.id));
        Ok(())
    }

    /// Makes one of a snapshot; fine where it is there.
    pub fn restore(&mut self, disk: &DiskSpec, store: &Store) -> Result<()> {
        let DiskSource::Snapshot { id, .. } = disk.source else {
            return Err(EngineError::Permanent("only a disk of a snapshot is restored".into()));
        };
        if self.find(disk.id, store).is_err() && !self.snapshots.contains(&(store.name.clone(), id)) {
            return Err(EngineError::Permanent("the snapshot is not there any more".into()));
        }
        self.all.entry((store.name.clone(), disk.id)).or_insert(disk.size_gb);
        Ok(())
    }

    /// Removes a snapshot; fine where there is none.
    pub fn remove_snapshot(&mut self, id: DiskSnapshotId, store: &Store) {
        self.snapshots.remove(&(store.name.clone(), id));
    }

    /// How many snapshots there are.
    pub fn count_snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Has one grow.
    pub fn grow(&mut self, id: DiskId, size_gb: i64, store: &Store) -> Result<()> {
        let size = self.all.get_mut(&(store.name.clone(), id)).ok_or_else(missing)?;
        if let Some((_, machine)) = self.open.get(&id) {
            self.violations.push(format!("the disk {id} grew while the machine {machine} had it"));
        }
        *size = size_gb.max(*size);
        Ok(())
    }

    /// Removes one; fine where there is none.
    pub fn remove(&mut self, id: DiskId, store: &Store) {
        if self.all.remove(&(store.name.clone(), id)).is_some()
            && let Some((_, machine)) = self.open.get(&id)
        {
            self.violations.push(format!("the disk {id} was removed while the machine {machine} had it"));
        }
    }

    /// Whether one is there.
    pub fn find(&self, id: DiskId, store: &Store) -> Result<()> {
        if self.all.contains_key(&(store.name.clone(), id)) { Ok(()) } else { Err(missing()) }
    }

    /// A machine opens one.
    pub fn open(&mut self, id: DiskId, by: Opener, store: &Store) -> Result<()> {
        self.find(id, store)?;
        if self.shut_out.contains(&address(by.0)) {
            return Err(EngineError::Transient("the store refuses this host".into()));
        }
        if let Some(other) = self.open.insert(id, by).filter(|other| *other != by) {
            self.violations.push(format!("{by:?} opened the disk {id} while {other:?} had it"));
        }
        Ok(())
    }

    /// A machine has one open no more.
    pub fn close(&mut self, id: DiskId, by: Opener) {
        self.open.retain(|disk, opener| *disk != id || *opener != by);
    }

    /// A machine ended, with whatever it had open.
    pub fn ended(&mut self, by: Opener) {
        self.open.retain(|_, opener| *opener != by);
    }

    /// Stores refuse a host from now on: its machines write nothing any more.
    pub fn shut_out(&mut self, host: IpAddr) {
        self.shut_out.insert(host);
        self.open.retain(|_, (number, _)| address(*number) != host);
    }

    /// Stores take a host again.
    pub fn let_in(&mut self, host: IpAddr) {
        self.shut_out.remove(&host);
    }

    /// Whether stores refuse a host.
    pub fn is_shut_out(&self, host: IpAddr) -> bool {
        self.shut_out.contains(&host)
    }

    /// From where a disk is open.
    pub fn opener(&self, id: DiskId) -> Option<IpAddr> {
        self.open.get(&id).map(|(number, _)| address(*number))
    }

    /// How many hosts stores refuse.
    pub fn shut_outs(&self) -> usize {
        self.shut_out.len()
    }

    /// What two machines did with one disk at a time, in words.
    pub fn violations(&self) -> Vec<String> {
        self.violations.clone()
    }

    /// How large one is, in GiB, in whichever store it lies.
    pub fn size_gb(&self, id: DiskId) -> Option<i64> {
        self.all.iter().find(|((_, disk), _)| *disk == id).map(|(_, size)| *size)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.all.len()
    }
}

/// The address of the simulated host of this number, as stores see it.
pub fn address(number: u64) -> IpAddr {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 99, 0, 0)).saturating_add(number)).into()
}

fn missing() -> EngineError {
    EngineError::Permanent("there is no such disk in the store".into())
}
