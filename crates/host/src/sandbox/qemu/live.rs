//! Machines that run, as this service speaks to them.
//!
//! A machine outlives the service, so all of this can be found again: the process by its folder, what it
//! was told by `incarnation.json` there, and the session by beginning a new one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::Timestamp;
use berth_domain::agent::control::Metrics;
use berth_domain::ids::{LayerId, MachineId};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_process::folder;
use berth_qemu::machine;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use uuid::Uuid;

use super::network::{Link, Links};
use crate::clock::Clock;
use crate::sandbox::agent::{self, AgentError, Session};

/// The file in a machine's folder that tells what it was started as. Only the service may read it.
const INCARNATION: &str = "incarnation.json";
/// Longest such file, in bytes: a hundred rules of the longest names, and some.
const LONGEST: u64 = 256 << 10;
/// How long a running machine's agent may take for a new session. One on a host with more to do than it can has its turn
/// seldom, and whoever gives it up begins anew.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a guest may take to tell how much runs in it, with a new session; then it runs nothing that counts.
const ANSWER: Duration = PATIENCE.saturating_add(Duration::from_secs(10));
/// How long what it said holds: a detached process may begin with a request and end without one.
const FRESH: Duration = Duration::from_secs(5);

/// What a machine was started as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Incarnation {
    /// What its guest is told that it is: what owns the machine.
    #[serde(default)]
    pub guest: String,
    /// Counts its starts.
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
    pub network: NetworkPolicy,
    /// Its slot on the host; none where an earlier version started it.
    #[serde(default)]
    pub slot: Option<i64>,
    /// Whether its agent has taken its identity.
    pub identified: bool,
}

impl Incarnation {
    /// What the folder's machine was started as.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&folder::read(&dir.join(INCARNATION), LONGEST).ok()?).ok()
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, dir: &Path) -> std::io::Result<()> {
        folder::write(&dir.join(INCARNATION), &serde_json::to_vec(self).unwrap_or_default())
    }
}

/// A running machine.
pub(super) struct Live {
    id: MachineId,
    dir: std::path::PathBuf,
    token: String,
    session: tokio::sync::Mutex<Option<Session>>,
    /// Whether somebody waits for the end of its process.
    is_attended: AtomicBool,
    open: AtomicU32,
    last_used: AtomicI64,
    running: Running,
    since: Mutex<Instant>,
    clock: Clock,
    events: broadcast::Sender<MachineId>,
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
        let (id, events) = (self.id, self.events.clone());
        tokio::spawn(async move {
            session.over().await;
            // Nobody listening is fine: whoever comes looks at the machine itself.
            let _ = events.send(id);
        });
        if self.is_attended.swap(true, Ordering::Relaxed) {
            return;
        }
        let (id, dir, events) = (self.id, self.dir.clone(), self.events.clone());
        tokio::spawn(async move {
            match machine::ended(&dir, id.0).await {
                Ok(()) => drop(events.send(id)),
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

    /// Since when it is the sandbox that it is now, as far as this service knows.
    pub fn since(&self) -> Instant {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is a sandbox from now on.
    pub fn begins(&self) {
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// What the guest uses.
    pub async fn metrics(&self) -> Result<Metrics, AgentError> {
        let metrics = self.session().await?.metrics().await?;
        self.running.told(u32::try_from(metrics.running).unwrap_or(u32::MAX), Instant::now());
        if metrics.running > 0 {
            self.touch();
        }
        Ok(metrics)
    }

    /// Commands and processes that run, if that is known; else it is asked, and told to who watches.
    pub fn running(self: &Arc<Self>) -> Option<u32> {
        let known = self.running.known(Instant::now());
        if known.is_none() && self.running.begin() {
            let live = self.clone();
            tokio::spawn(async move {
                live.running.asked(live.metrics(), ANSWER).await;
                let _ = live.events.send(live.id);
            });
        }
        known
    }

    fn touch(&self) {
        self.last_used.fetch_max(self.clock.now().0, Ordering::Relaxed);
    }
}

/// What a guest said last about how much runs in it.
#[derive(Default)]
struct Running {
    last: Mutex<Option<(u32, Instant)>>,
    is_asked: AtomicBool,
}

impl Running {
    /// How much runs, unless that was too long ago.
    fn known(&self, now: Instant) -> Option<u32> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.filter(|(_, at)| now.saturating_duration_since(*at) <= FRESH).map(|(running, _)| running)
    }

    fn told(&self, running: u32, now: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((running, now));
    }

    /// Whether nobody asks yet: who is told so asks.
    fn begin(&self) -> bool {
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// Waits for an answer, whose taker notes it. A guest that gives none in time runs nothing, as far as anybody
    /// knows.
    async fn asked<T, E>(&self, answer: impl Future<Output = Result<T, E>>, patience: Duration) {
        if !matches!(tokio::time::timeout(patience, answer).await, Ok(Ok(_))) {
            self.told(0, Instant::now());
        }
        self.is_asked.store(false, Ordering::Relaxed);
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
    map: Mutex<HashMap<MachineId, Arc<Live>>>,
    clock: Clock,
    links: Links,
    pub events: broadcast::Sender<MachineId>,
}

impl Lives {
    pub(super) fn new(clock: Clock, links: Links, events: broadcast::Sender<MachineId>) -> Self {
        Self { map: Mutex::default(), clock, links, events }
    }

    /// The link of a machine that nobody but its maker speaks to.
    pub(super) fn link(&self, id: Uuid, dir: &Path, slot: i64, network: NetworkPolicy) -> Link {
        self.links.link(id, dir, Some(slot), network)
    }

    /// The machine in a folder, as it was started.
    pub(super) fn of(&self, id: MachineId, dir: &Path) -> Option<Arc<Live>> {
        let incarnation = Incarnation::read(dir)?;
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = map.get(&id).filter(|live| live.token == incarnation.token) {
            return Some(live.clone());
        }
        let live = Arc::new(Live {
            id,
            dir: dir.to_path_buf(),
            token: incarnation.token,
            session: tokio::sync::Mutex::default(),
            is_attended: AtomicBool::new(false),
            open: AtomicU32::new(0),
            last_used: AtomicI64::new(0),
            running: Running::default(),
            since: Mutex::new(Instant::now()),
            clock: self.clock.clone(),
            events: self.events.clone(),
            link: self.links.link(id.0, dir, incarnation.slot, incarnation.network),
        });
        if let Some(before) = map.insert(id, live.clone()) {
            before.link.end();
        }
        Some(live)
    }

    /// Forgets a machine that ended.
    pub(super) fn forget(&self, id: MachineId) {
        let ended = self.map.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        // Somebody may still read from it, and its rules are not those of the machine's next start.
        if let Some(live) = ended {
            live.link.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_said_holds_for_a_while() {
        let (running, now) = (Running::default(), Instant::now());
        assert_eq!(running.known(now), None);
        running.told(3, now);
        assert_eq!((running.known(now), running.known(now + FRESH)), (Some(3), Some(3)));
        assert_eq!(running.known(now + FRESH + Duration::from_nanos(1)), None);
    }

    #[tokio::test]
    async fn one_at_a_time_asks_and_who_does_not_answer_runs_nothing() {
        let running = Running::default();
        let known = || running.known(Instant::now());
        assert!(running.begin() && !running.begin());
        let answers = async {
            running.told(3, Instant::now());
            Ok::<_, ()>(())
        };
        running.asked(answers, ANSWER).await;
        assert_eq!(known(), Some(3));
        for (answer, patience) in [(None, Duration::ZERO), (Some(Err::<(), ()>(())), ANSWER)] {
            assert!(running.begin() && !running.begin(), "who asked before is done");
            running.told(3, Instant::now());
            let answer = async { if let Some(answer) = answer { answer } else { std::future::pending().await } };
            running.asked(answer, patience).await;
            assert_eq!(known(), Some(0));
        }
        assert!(running.begin());
    }
}
