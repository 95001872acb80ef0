//! Standing still for the moment of a cut.
//!
//! User processes stand still by their cgroup, the agent's own file work by its gate. If both do, everything written is
//! on the disk after a sync and nobody writes any more. Otherwise the kernel is asked to keep writers off the file
//! system; where it does not, that is synced only, and the answer says so.

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

/// How long user processes, and file work, may take to stand still.
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
