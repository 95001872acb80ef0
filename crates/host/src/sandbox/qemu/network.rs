//! A machine's link to the network: the program beside it (`berth_egress::program`), and what it was told.
//!
//! The program outlives the service as the machine does, so a restart interrupts none of a sandbox's connections.
//! Whoever speaks to a machine has its program found or made, and another one made when that ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::program::Status;
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_process::Process;
use berth_qemu::machine::{self, connect_network};
use ipnet::IpNet;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::Machines;
use crate::network::{Switches, announce};

/// Between two tries to have a machine's network carried.
const AGAIN: Duration = Duration::from_millis(500);
/// Tries without success after which somebody is told; a machine that is not there by then is gone.
const TRIES: u32 = 20;
/// Between two tries from then on.
const RARELY: Duration = Duration::from_secs(30);
/// What of a machine's id stands for its slot where an earlier version started it, which did not note that.
const OF_ID: u128 = (1 << 20) - 1;

/// What all links are made with.
pub(super) struct Links {
    executable: Executable,
    machines: Machines,
    /// What of local networks rules may unlock.
    unlock: Vec<IpNet>,
    switches: Arc<Switches>,
}

impl Links {
    /// Links whose rules may unlock some of the local networks.
    pub(super) fn new(machines: Machines, unlock: Vec<IpNet>, switches: Arc<Switches>) -> Self {
        Self { executable: Executable::installed(), machines, unlock, switches }
    }

    /// Has the network of the machine in a folder carried.
    pub(super) fn link(&self, id: Uuid, dir: &Path, slot: Option<i64>, network: NetworkPolicy) -> Link {
        let rules = Mutex::new(NetworkPolicy { unlock: self.unlock.clone(), ..network });
        let of_id = || i64::try_from(id.as_u128() & OF_ID).unwrap_or(0);
        let user = self.machines.network_of_sandbox(slot.unwrap_or_else(of_id));
        let (executable, dir) = (self.executable.clone(), dir.to_path_buf());
        let switches = self.switches.clone();
        let carried = Arc::new(Carried { executable, id, dir, user, rules, switches });
        let task = tokio::spawn(keep(Arc::clone(&carried))).abort_handle();
        Link { carried, task }
    }
}

/// A machine's link. Dropping it leaves the program to its machine, with which it ends.
pub(super) struct Link {
    carried: Arc<Carried>,
    task: AbortHandle,
}

struct Carried {
    executable: Executable,
    id: Uuid,
    dir: PathBuf,
    user: Option<u32>,
    /// Held while the program is told them.
    rules: Mutex<NetworkPolicy>,
    switches: Arc<Switches>,
}

impl Link {
    /// Sets what the machine may reach from now on; connections that are not allowed any more end. Once this returns it
    /// is so: a program that cannot be told is ended, and the next one begins with these.
    pub(super) async fn set(&self, network: NetworkPolicy) -> std::io::Result<()> {
        let mut rules = self.carried.rules.lock().await;
        let unlock = std::mem::take(&mut rules.unlock);
        *rules = NetworkPolicy { unlock, ..network };
        self.carried.tell(&rules).await.map(drop)
    }

    /// Bytes received and sent since its program began; none where there is no program now.
    pub(super) async fn bytes(&self) -> (u64, u64) {
        let asked = async { process::connect(&self.carried.dir).await?.status().await };
        asked.await.map_or((0, 0), |Status { rx_bytes, tx_bytes, .. }| (rx_bytes, tx_bytes))
    }

    /// Leaves the program to the machine, whoever still holds this.
    pub(super) fn end(&self) {
        self.task.abort();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end();
    }
}

impl Carried {
    /// The program that carries the network by the newest rules.
    async fn carry(&self) -> std::io::Result<Process> {
        let rules = self.rules.lock().await;
        if let Some(running) = self.tell(&rules).await? {
            return Ok(running);
        }
        let link = connect_network(&self.dir).await.map_err(std::io::Error::other)?.into_std()?;
        let (executable, id) = (&self.executable, self.id.to_string());
        let start = Start { executable, kind: Kind::Machine, dir: &self.dir, id: &id, user: self.user };
        let mut control = process::spawn(start)?.note(&self.dir)?;
        control.set_rules(&rules).await?;
        // What the machine belongs to so far; of what it is started in its start tells.
        let machine = MachineId(self.id);
        let known = self.switches.memberships(machine);
        announce(&mut control, &known).await.map_err(std::io::Error::other)?;
        control.set_link(&link.into()).await?;
        self.switches.rejoin(machine);
        process::find(&self.dir)?.ok_or_else(|| std::io::Error::other("the program of a network ended at once"))
    }

    /// Tells the program these rules, if there is one. One that does not take them is ended.
    async fn tell(&self, rules: &NetworkPolicy) -> std::io::Result<Option<Process>> {
        let Some(running) = process::find(&self.dir)? else { return Ok(None) };
        let told = async {
            let mut control = process::connect(&self.dir).await?;
            control.set_rules(rules).await?;
            control.status().await
        };
        if told.await.is_ok_and(|status| status.is_linked) {
            return Ok(Some(running));
        }
        process::end(&self.dir).await.map(|()| None)
    }
}

/// Has the network carried for as long as there is the machine.
async fn keep(carried: Arc<Carried>) {
    let mut failures = 0_u32;
    loop {
        match carried.carry().await {
            Ok(program) => {
                failures = 0;
                if let Err(error) = program.ended().await {
                    tracing::warn!(machine = %carried.id, %error, "nobody notices when this machine's network ends");
                    return;
                }
            }
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures >= TRIES && machine::find(&carried.dir, carried.id).is_none() {
                    return;
                }
                if failures == TRIES {
                    tracing::warn!(machine = %carried.id, %error, "a machine has no network; trying again");
                }
            }
        }
        tokio::time::sleep(if failures < TRIES { AGAIN } else { RARELY }).await;
    }
}
