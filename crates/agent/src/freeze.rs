//! Stops all writes while the host takes a snapshot.
//!
//! The cgroup stops user processes, and a gate stops the agent's own file work. If both succeed, a sync brings
//! everything to the disk, and nothing writes any more. Otherwise the agent asks the kernel to freeze the file system;
//! if that fails, the file system is only synced, and the answer says so.

use std::sync::Arc;
use std::time::Duration;

use berth_domain::agent::control::{Freeze, Frozen, Stillness};
use berth_domain::fields::{Fields, boolean};
use http::StatusCode;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Opcode, ioctl, opcode};

use crate::agent::Agent;
use crate::body::{Answer, nothing, reply};
use crate::call::Call;
use crate::error::{Refusal, Result};

/// How long user processes, and file work, may take to stop.
const PATIENCE: Duration = Duration::from_secs(2);

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
    let processes = wanted.processes && agent.freezer.stop_processes(PATIENCE).await?;
    if *frozen {
        return Ok(Frozen { processes, file_system: Stillness::Frozen });
    }
    let pool = agent.pool.clone();
    let place = agent.place()?.clone();
    let sync = move || {
        let still = pool.hold(PATIENCE);
        // This handle was opened only as a path, which cannot be synced.
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

/// Allows writes to the file system again.
pub async fn let_file_system_go(agent: &Arc<Agent>) -> Result<()> {
    let mut frozen = agent.freezer.file_system.lock().await;
    if *frozen {
        if !freeze_root(false) {
            // The kernel's own way to thaw every file system at once.
            std::fs::write("/proc/sysrq-trigger", "j").map_err(Refusal::internal)?;
        }
        *frozen = false;
    }
    agent.pool.release();
    Ok(())
}

/// Lets processes and writes go on.
pub async fn let_go(agent: &Arc<Agent>) -> Result<()> {
    let_file_system_go(agent).await?;
    agent.freezer.let_processes_go()
}

/// Freezes or thaws the root file system; returns whether the kernel did (fsfreeze(8), without a program).
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
