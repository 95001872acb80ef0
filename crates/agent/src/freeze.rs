//! Standing still for the moment of a cut.
//!
//! User processes stand still by their cgroup, the agent's own file work by its gate. If both do, everything written is
//! on the disk after a sync and nobody writes any more. Otherwise the kernel is asked to keep writers off the file
//! system; where it does not, that is synced only, and the answer says so.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use berth_domain::agent::control::{Freeze, Frozen, Stillness};
use berth_domain::fields::{Fields, boolean};
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Opcode, ioctl, opcode};
use tokio::time::{Instant, sleep};

use crate::agent::Agent;
use crate::body::{Answer, nothing, reply};
use crate::error::{Refusal, Result};
use crate::server::Call;

/// How long user processes, and file work, may take to stand still.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

/// The cgroup of everything users run.
struct Group {
    path: PathBuf,
    procs: Arc<OwnedFd>,
}

/// What stands still.
#[derive(Default)]
pub struct Freezer {
    group: OnceLock<Group>,
    /// Whether the file system was frozen; held while anything changes.
    file_system: tokio::sync::Mutex<bool>,
}

impl Freezer {
    /// Makes the cgroup, or takes the one that is there.
    pub fn set_up(&self, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(path)?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let procs = Arc::new(rustix::fs::open(path.join("cgroup.procs"), flags, Mode::empty())?);
        let _ = self.group.set(Group { path: path.to_owned(), procs });
        Ok(())
    }

    /// What a command writes itself into.
    pub fn cgroup(&self) -> Option<Arc<OwnedFd>> {
        self.group.get().map(|group| group.procs.clone())
    }

    /// Processes and threads in the cgroup, where the kernel counts them.
    pub fn processes(&self) -> Option<u64> {
        let path = self.group.get()?.path.join("pids.current");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    async fn stop_processes(&self) -> Result<bool> {
        let Some(group) = self.group.get() else { return Ok(false) };
        std::fs::write(group.path.join("cgroup.freeze"), "1").map_err(Refusal::internal)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = std::fs::read_to_string(group.path.join("cgroup.events")).map_err(Refusal::internal)?;
            if events.lines().any(|line| line == "frozen 1") {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }

    fn let_processes_go(&self) -> Result<()> {
        let Some(group) = self.group.get() else { return Ok(()) };
        std::fs::write(group.path.join("cgroup.freeze"), "0").map_err(Refusal::internal)
    }
}

/// `POST /control/freeze`.
pub async fn freeze(call: Call) -> Result<Answer> {
    let agent = call.agent.clone();
    let body = call.json().await?;
    let mut fields = Fields::among_others(&body);
    let processes = fields.optional("processes", boolean).unwrap_or_default();
    let wanted = fields.finish(Some(Freeze { processes }))?;
    Ok(reply(StatusCode::OK, &stop(&agent, wanted).await?))
}

/// `POST /control/thaw`.
pub async fn thaw(call: Call) -> Result<Answer> {
    let_go(&call.agent).await?;
    Ok(nothing())
}

async fn stop(agent: &Arc<Agent>, wanted: Freeze) -> Result<Frozen> {
    agent.place()?;
    let mut frozen = agent.freezer.file_system.lock().await;
    let processes = wanted.processes && agent.freezer.stop_processes().await?;
    if *frozen {
        return Ok(Frozen { processes, file_system: Stillness::Frozen });
    }
    let pool = agent.pool.clone();
    let place = agent.place()?.clone();
    let sync = move || {
        let still = pool.hold(PATIENCE);
        // A handle that only names the directory cannot be synced.
        let root = rustix::fs::open(&place.workspace, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::syncfs(&root).map(|()| still)
    };
    let still = tokio::task::spawn_blocking(sync).await.map_err(Refusal::internal)?.map_err(Refusal::internal)?;
    let file_system = if processes && still {
        Stillness::Still
    } else if agent.machine && freeze_root(true) {
        *frozen = true;
        Stillness::Frozen
    } else {
        Stillness::Synced
    };
    Ok(Frozen { processes, file_system })
}

/// Lets the file system be written to again.
pub async fn let_file_system_go(agent: &Arc<Agent>) -> Result<()> {
    let mut frozen = agent.freezer.file_system.lock().await;
    if *frozen {
        if !freeze_root(false) {
            // The kernel's own way out, for every file system at once.
            std::fs::write("/proc/sysrq-trigger", "j").map_err(Refusal::internal)?;
        }
        *frozen = false;
    }
    agent.pool.release();
    Ok(())
}

/// Lets everything go on.
pub async fn let_go(agent: &Arc<Agent>) -> Result<()> {
    let_file_system_go(agent).await?;
    agent.freezer.let_processes_go()
}

/// Stops or lets go of every write to the root file system; whether the kernel did (fsfreeze(8), without a program).
fn freeze_root(stop: bool) -> bool {
    const FREEZE: Opcode = opcode::read_write::<i32>(b'X', 119);
    const THAW: Opcode = opcode::read_write::<i32>(b'X', 120);
    let Ok(root) = rustix::fs::open("/", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    #[expect(unsafe_code, reason = "no library offers these two calls")]
    // SAFETY: neither call reads or writes memory of ours; both act on the file system of an open directory.
    let done = unsafe {
        if stop {
            ioctl(&root, IntegerSetter::<FREEZE>::new_usize(0))
        } else {
            ioctl(&root, IntegerSetter::<THAW>::new_usize(0))
        }
    };
    done.is_ok()
}
