//! Machines of the simulated engine that go to another one while they run, and those that come: what is sent of each is its name.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use berth_domain::ids::{DiskId, MachineId};
use berth_host::vm::{Channel, Console, Likeness, MachineSpec};
use berth_host::{EngineError, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;

/// Bytes under way.
const UNDER_WAY: usize = 1024;
/// How long what was sent may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The machines.
pub(crate) struct Migrations {
    /// How processors are made here.
    pub(crate) processor: String,
    /// What of each was sent.
    sent: HashMap<MachineId, Vec<Channel>>,
    /// What of each came.
    came: HashMap<MachineId, Arriving>,
}

/// A machine that comes: what came of it so far.
#[derive(Clone)]
pub(crate) struct Arriving(Arc<watch::Sender<Vec<String>>>);

impl Default for Migrations {
    fn default() -> Self {
        Self { processor: "tcg".into(), sent: HashMap::new(), came: HashMap::new() }
    }
}

impl Migrations {
    pub(crate) fn likeness(&self, spec: &MachineSpec, disks: &HashMap<DiskId, i64>) -> Likeness {
        let ids = std::iter::once(spec.root_disk).chain(spec.data_disks.iter().map(|disk| disk.id));
        let bytes = |id: DiskId| u64::try_from(disks.get(&id).copied().unwrap_or_default()).unwrap_or_default() << 30;
        Likeness {
            processor: self.processor.clone(),
            qemu: (7, 2),
            places: BTreeMap::new(),
            has_screen: true,
            has_guest_port: true,
            disks: ids.map(|id| (id, bytes(id))).collect(),
        }
    }

    /// Refuses a machine that is not like those here.
    pub(crate) fn compare(&self, likeness: &Likeness) -> Result<()> {
        if likeness.processor == self.processor {
            return Ok(());
        }
        Err(EngineError::Permanent("the other host has another processor".into()))
    }

    /// Sends the name of something of a machine.
    pub(crate) fn send(&mut self, id: MachineId, channel: Channel) -> Result<Box<dyn Console>> {
        self.sent.entry(id).or_default().push(channel);
        let (ours, mut theirs) = duplex(UNDER_WAY);
        let name = format!("{channel:?}\n");
        tokio::spawn(async move {
            let _ = theirs.write_all(name.as_bytes()).await;
            let _ = theirs.shutdown().await;
        });
        Ok(Box::new(ours))
    }

    /// Takes the name of something of a machine.
    pub(crate) fn fill(&mut self, id: MachineId, channel: Channel) -> Box<dyn Console> {
        let came = self.came.entry(id).or_insert_with(|| Arriving(Arc::new(watch::Sender::new(Vec::new())))).clone();
        let (ours, mut theirs) = duplex(UNDER_WAY);
        tokio::spawn(async move {
            let mut name = String::new();
            let _ = theirs.read_to_string(&mut name).await;
            if name == format!("{channel:?}\n") {
                came.0.send_modify(|all| all.push(name));
            }
        });
        Box::new(ours)
    }

    /// Whether all of a machine is on its way.
    pub(crate) fn sent(&self, id: MachineId) -> Result<()> {
        let is_sent =
            self.sent.get(&id).is_some_and(|channels| channels.contains(&Channel::Memory) && channels.len() > 1);
        if is_sent { Ok(()) } else { Err(EngineError::Permanent("its memory, or its disk, is not sent".into())) }
    }

    pub(crate) fn arriving(&self, id: MachineId) -> Option<Arriving> {
        self.came.get(&id).cloned()
    }

    /// Nothing of a machine is sent any more, nor comes.
    pub(crate) fn forget(&mut self, id: MachineId) {
        self.sent.remove(&id);
        self.came.remove(&id);
    }
}

impl Arriving {
    /// Waits until the memory came, and a disk at least.
    pub(crate) async fn all(&self) -> Result<()> {
        let mut came = self.0.subscribe();
        let memory = format!("{:?}\n", Channel::Memory);
        let all = came.wait_for(|all| all.contains(&memory) && all.len() > 1);
        let waited = tokio::time::timeout(PATIENCE, all).await;
        waited.map(drop).map_err(|_| EngineError::Transient("not all of it came".into()))
    }
}
