//! Machines that begin with the memory of another one: one that booted, and waited for its owner when it was captured.
//!
//! ```text
//!   boot, its memory in a file ─► the guest waits ─► capture: that file, and the devices' state ─► load: any number of
//!   machines, each of which maps the file privately
//! ```
//!
//! The file is never written again: what a machine writes to its memory stays in its process, and machines that do little
//! share most of it. A machine that loads has the devices of the one that was captured, with the same places. What differs
//! (the size of its root disk, its data disks) comes to it before it runs, as to any machine that runs.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use berth_process::folder;
use serde_json::json;

use super::files::{COMMANDS, MAPPED};
use super::memory::{UNBOUNDED, give, take_back, wait};
use super::spec::{Captured, Mapped, Spec};
use super::{console, drive, plug};
use crate::error::at;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// How long QEMU may be busy between two of its answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Puts the file that a machine's memory is into its folder.
pub(super) fn place(spec: &Spec) -> Result<()> {
    let memory = spec.dir.join(MAPPED);
    match &spec.mapped {
        None => Ok(()),
        Some(Mapped::Written) => {
            let file = folder::create_blank(&memory).map_err(at("cannot create", &memory))?;
            file.set_len(u64::from(spec.memory_mb) << 20).map_err(at("cannot size", &memory))
        }
        Some(Mapped::Captured(captured)) => {
            std::fs::hard_link(&captured.memory, &memory).map_err(at("cannot link", &captured.memory))
        }
    }
}

/// Captures a machine whose guest waits, and whose memory is a file: the devices' state goes into this one. The machine
/// stands still afterwards, and must not go on.
///
/// # Errors
/// It is gone, or cannot be captured.
pub async fn capture(dir: &Path, state: &Path) -> Result<()> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    qmp.wait_longer(PATIENCE);
    qmp.execute("stop", json!({})).await?;
    leave_out_memory(&mut qmp, true).await?;
    qmp.execute("migrate-set-parameters", json!({"max-bandwidth": UNBOUNDED})).await?;
    let file = folder::create_blank(state).map_err(at("cannot create", state))?;
    let uri = give(&mut qmp, &file).await?;
    qmp.execute("migrate", json!({"uri": uri})).await?;
    wait(&mut qmp, "postmigrate").await?;
    take_back(&mut qmp).await;
    let memory = dir.join(MAPPED);
    let synced = tokio::task::spawn_blocking(move || {
        file.sync_all()?;
        folder::open(&memory)?.sync_all()
    });
    let synced = synced.await.map_err(|_| Error::Invalid("the memory was not waited for".into()))?;
    synced.map_err(at("cannot write", state))
}

/// Has a machine go on that waits for what was captured, as the machine that it is to be.
pub(super) async fn load(mut qmp: Qmp, spec: &Spec, captured: &Captured) -> Result<()> {
    let file = File::open(&captured.state).map_err(at("cannot open", &captured.state))?;
    qmp.wait_longer(PATIENCE);
    leave_out_memory(&mut qmp, true).await?;
    let uri = give(&mut qmp, &file).await?;
    qmp.execute("migrate-incoming", json!({"uri": uri})).await?;
    wait(&mut qmp, "paused").await?;
    take_back(&mut qmp).await;
    // Whoever saves its memory one day wants all of it.
    leave_out_memory(&mut qmp, false).await?;
    drop(qmp);
    drive::grow(&spec.dir, spec.id, &spec.root.serial, captured.root_bytes).await?;
    for data in &spec.drives {
        plug::attach(&spec.dir, spec.id, data, None).await?;
    }
    // From here on it is like any other.
    let memory = spec.dir.join(MAPPED);
    std::fs::remove_file(&memory).map_err(at("cannot remove", &memory))?;
    Qmp::connect(&spec.dir, COMMANDS).await?.execute("cont", json!({})).await.map(drop)
}

/// Whether a memory that is a file stays out of what is written and read of a machine.
async fn leave_out_memory(qmp: &mut Qmp, is_left_out: bool) -> Result<()> {
    let capability = json!({"capability": "x-ignore-shared", "state": is_left_out});
    qmp.execute("migrate-set-capabilities", json!({"capabilities": [capability]})).await.map(drop)
}

/// Whether the guest waits for its owner.
pub fn waits(dir: &Path) -> bool {
    console::says(dir, "berth waits")
}
