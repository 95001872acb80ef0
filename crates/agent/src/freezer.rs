//! What the agent stops while the host takes a snapshot: the cgroup of users' processes, and the root file system.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use tokio::time::{Instant, sleep};

use crate::error::{Refusal, Result};

/// Time between two checks whether all processes are stopped.
const LOOK: Duration = Duration::from_millis(2);

/// The cgroup of everything that users run.
struct Group {
    path: PathBuf,
    procs: Arc<OwnedFd>,
}

/// What is stopped.
#[derive(Default)]
pub struct Freezer {
    group: OnceLock<Group>,
    /// Whether the file system is frozen; locked during changes.
    pub file_system: tokio::sync::Mutex<bool>,
}

impl Freezer {
    /// Makes the cgroup, or takes an existing one.
    pub fn set_up(&self, path: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(path)?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let procs = Arc::new(rustix::fs::open(path.join("cgroup.procs"), flags, Mode::empty())?);
        let _ = self.group.set(Group { path: path.to_owned(), procs });
        Ok(())
    }

    /// The file through which a command joins the cgroup.
    pub fn cgroup(&self) -> Option<Arc<OwnedFd>> {
        self.group.get().map(|group| group.procs.clone())
    }

    /// Processes and threads in the cgroup, where the kernel counts them.
    pub fn processes(&self) -> Option<u64> {
        let path = self.group.get()?.path.join("pids.current");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Stops user processes; returns whether all of them stopped within `patience`.
    pub async fn stop_processes(&self, patience: Duration) -> Result<bool> {
        let Some(group) = self.group.get() else { return Ok(false) };
        std::fs::write(group.path.join("cgroup.freeze"), "1").map_err(Refusal::internal)?;
        let deadline = Instant::now() + patience;
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

    /// Lets user processes go on.
    pub fn let_processes_go(&self) -> Result<()> {
        let Some(group) = self.group.get() else { return Ok(()) };
        std::fs::write(group.path.join("cgroup.freeze"), "0").map_err(Refusal::internal)
    }
}
