//! Machines that run, as this service speaks to them.
//!
//! A machine outlives the service, so all of this can be found again: the process by its folder, what it
//! was told by `incarnation.json` there, and the session by beginning a new one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::ids::{LayerId, SandboxId};
use berth_domain::sandbox::network::Network;
use berth_egress::Gateway;
use berth_qemu::machine;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, broadcast};

use super::network::Link;
use crate::clock::Clock;
use crate::services::sandbox::agent::{self, AgentError, Session};

/// The file in a machine's folder that tells what it was started as. Only the service may read it.
const INCARNATION: &str = "incarnation.json";
/// How long a running machine's agent may take for a new session.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a machine was started as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Incarnation {
    /// Counts the machines of one sandbox.
    pub generation: i64,
    /// What requests to its agent bear.
    pub token: String,
    /// What the guest is called by programs, 32 hexadecimal digits.
    pub machine_id: String,
    /// Whether it began with a captured memory of its own, and so has its file system already.
    pub from_memory: bool,
    /// The top layer of its disk when it was started.
    pub top: Option<LayerId>,
    /// The memory and the disk that were brought together last: once, since the disk goes on.
    pub consumed: Option<String>,
    /// The memory and the disk that are being brought together, and how often that was begun.
    pub loading: Option<(String, u32)>,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// What it may reach.
    pub network: Network,
    /// Whether its agent has taken its identity.
    pub identified: bool,
}

impl Incarnation {
    /// What the folder's machine was started as.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join(INCARNATION)).ok()?).ok()
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, dir: &Path) -> std::io::Result<()> {
        let tmp = dir.join("incarnation.tmp");
        std::fs::write(&tmp, serde_json::to_vec(self).unwrap_or_default())?;
        std::fs::rename(tmp, dir.join(INCARNATION))
    }
}

/// A running machine.
pub(super) struct Live {
    id: SandboxId,
    dir: std::path::PathBuf,
    token: String,
    session: AsyncMutex<Option<Session>>,
    /// Whether somebody waits for the end of its process.
    is_attended: AtomicBool,
    open: AtomicU32,
    last_used: AtomicI64,
    clock: Clock,
    happenings: broadcast::Sender<SandboxId>,
    link: Link,
}

impl Live {
    /// Its link to the network.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// What requests to the agent bear in `Authorization`.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// The session, begun anew where the last one ended.
    pub async fn session(&self) -> Result<Session, AgentError> {
        let mut slot = self.session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| !session.is_over()) {
            return Ok(session.clone());
        }
        let stream = berth_qemu::sandbox::connect_agent(&self.dir).await;
        let session = agent::connect(stream.map_err(|e| AgentError::Gone(e.to_string()))?, PATIENCE).await?;
        self.attend(session.clone());
        *slot = Some(session.clone());
        Ok(session)
    }

    /// Tells when a session ends, and when the process does: a machine that is about to end has left its session
    /// already, and who looks at it then still sees it run.
    fn attend(&self, session: Session) {
        let (id, happenings) = (self.id, self.happenings.clone());
        tokio::spawn(async move {
            session.over().await;
            // Nobody listening is fine: whoever comes looks at the machine itself.
            let _ = happenings.send(id);
        });
        if self.is_attended.swap(true, Ordering::Relaxed) {
            return;
        }
        let (id, dir, happenings) = (self.id, self.dir.clone(), self.happenings.clone());
        tokio::spawn(async move {
            match machine::ended(&dir, id.0).await {
                Ok(()) => drop(happenings.send(id)),
                Err(error) => tracing::warn!(sandbox = %id, %error, "nobody notices when this machine ends"),
            }
        });
    }

    /// Something of a user's is under way until the guard goes.
    pub fn begin_use(self: &Arc<Self>) -> Use {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Use { live: self.clone() }
    }

    /// What is under way, and when the last of it began or ended.
    pub fn used(&self) -> (u32, Timestamp) {
        (self.open.load(Ordering::Relaxed), Timestamp(self.last_used.load(Ordering::Relaxed)))
    }

    fn touch(&self) {
        self.last_used.fetch_max(self.clock.now().0, Ordering::Relaxed);
    }
}

/// Something of a user's that is under way.
pub(super) struct Use {
    live: Arc<Live>,
}

impl Drop for Use {
    fn drop(&mut self) {
        self.live.touch();
        self.live.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The machines that this service speaks to.
pub(super) struct Lives {
    map: Mutex<HashMap<SandboxId, Arc<Live>>>,
    clock: Clock,
    gateway: Gateway,
    pub happenings: broadcast::Sender<SandboxId>,
}

impl Lives {
    pub(super) fn new(clock: Clock, gateway: Gateway, happenings: broadcast::Sender<SandboxId>) -> Self {
        Self { map: Mutex::default(), clock, gateway, happenings }
    }

    /// Joins the link of a machine that nobody but its maker speaks to.
    pub(super) fn link(&self, dir: &Path, network: Network) -> Link {
        Link::new(&self.gateway, dir.to_path_buf(), network)
    }

    /// The machine in a folder, as it was started.
    pub(super) fn of(&self, id: SandboxId, dir: &Path) -> Option<Arc<Live>> {
        let incarnation = Incarnation::read(dir)?;
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = map.get(&id).filter(|live| live.token == incarnation.token) {
            return Some(live.clone());
        }
        let live = Arc::new(Live {
            id,
            dir: dir.to_path_buf(),
            token: incarnation.token,
            session: AsyncMutex::default(),
            is_attended: AtomicBool::new(false),
            open: AtomicU32::new(0),
            last_used: AtomicI64::new(0),
            clock: self.clock.clone(),
            happenings: self.happenings.clone(),
            link: Link::new(&self.gateway, dir.to_path_buf(), incarnation.network),
        });
        map.insert(id, live.clone());
        Some(live)
    }

    /// Forgets a machine that ended.
    pub(super) fn forget(&self, id: SandboxId) {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}
