//! A machine's link to the network: the program beside it (`berth_egress::program`), and what it was told.
//!
//! The program outlives the service as the machine does, so a restart interrupts none of a sandbox's connections. Whoever
//! speaks to a machine has its program found or made, and another one made when that ends.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use berth_domain::sandbox::network::Network;
use berth_egress::program::Status;
use berth_egress::program::process::{self, Executable, Start};
use berth_process::Process;
use berth_qemu::machine::connect_network;
use ipnet::IpNet;
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use uuid::Uuid;

/// Between two tries to have a machine's network carried.
const AGAIN: Duration = Duration::from_millis(500);
/// Tries without success after which the machine is taken for gone.
const TRIES: u32 = 20;
/// The first user of the host that programs of sandboxes run as, where the service may choose; those of VMs lie below.
const FIRST_USER: u32 = 0x70c0_0000;
/// What of a sandbox's id chooses its user among them.
const USER: u128 = (1 << 22) - 1;

/// What all links are made with.
pub(super) struct Links {
    executable: Executable,
    /// What of local networks rules may unlock.
    unlock: Vec<IpNet>,
}

impl Links {
    /// Links whose rules may unlock some of the local networks.
    pub(super) fn new(unlock: Vec<IpNet>) -> Self {
        Self { executable: Executable::installed(), unlock }
    }

    /// Has the network of the machine in a folder carried.
    pub(super) fn link(&self, id: Uuid, dir: &Path, network: Network) -> Link {
        let rules = Mutex::new(Network { unlock: self.unlock.clone(), ..network });
        let carried = Arc::new(Carried { executable: self.executable.clone(), id, dir: dir.to_path_buf(), rules });
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
    /// Held while the program is told them.
    rules: Mutex<Network>,
}

impl Link {
    /// Sets what the machine may reach from now on; connections that are not allowed any more end. Once this returns it
    /// is so: a program that cannot be told is ended, and the next one begins with these.
    pub(super) async fn set(&self, network: Network) -> std::io::Result<()> {
        let mut rules = self.carried.rules.lock().await;
        let unlock = std::mem::take(&mut rules.unlock);
        *rules = Network { unlock, ..network };
        self.carried.tell(&rules).await.map(drop)
    }

    /// Bytes received and sent since its program began; none where there is no program now.
    pub(super) async fn bytes(&self) -> (u64, u64) {
        let asked = async { process::connect(&self.carried.dir).await?.status().await };
        asked.await.map_or((0, 0), |Status { rx_bytes, tx_bytes, .. }| (rx_bytes, tx_bytes))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
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
        let user = rustix::process::geteuid().is_root().then(|| user_of(self.id));
        let (executable, id) = (&self.executable, self.id.to_string());
        let mut control = process::spawn(Start { executable, dir: &self.dir, id: &id, user })?.note(&self.dir)?;
        control.set_rules(&rules).await?;
        control.set_link(&link.into()).await?;
        process::find(&self.dir)?.ok_or_else(|| std::io::Error::other("the program of a network ended at once"))
    }

    /// Tells the program these rules, if there is one. One that does not take them is ended.
    async fn tell(&self, rules: &Network) -> std::io::Result<Option<Process>> {
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

async fn keep(carried: Arc<Carried>) {
    let mut failures = 0;
    while failures < TRIES {
        match carried.carry().await {
            Ok(program) => {
                failures = 0;
                if let Err(error) = program.ended().await {
                    tracing::warn!(sandbox = %carried.id, %error, "nobody notices when this machine's network ends");
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(sandbox = %carried.id, %error, "a machine's network is not carried yet");
                failures += 1;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The user of a sandbox's program. Two may have the same one, seldom: neither can do anything to the other by that.
fn user_of(id: Uuid) -> u32 {
    FIRST_USER + u32::try_from(id.as_u128() & USER).unwrap_or(0)
}
