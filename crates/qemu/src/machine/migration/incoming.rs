//! A machine that comes: it waits with empty disks, is filled, and stands still until it is told to go on.

use std::fs::{File, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::UnixStream;
use uuid::Uuid;

use super::super::files::{COMMANDS, FILLED};
use super::super::filled::is_filled;
use super::super::spec::Spec;
use super::super::{freeze, process};
use super::{SENT, give_end, names, written};
use crate::error::at;
use crate::machine::memory::run_state;
use crate::qmp::{Qmp, connect_in};
use crate::{Error, Result};

/// How long the rest may take that was sent already.
const REST: Duration = Duration::from_secs(30);
/// Between two looks at it.
const TICK: Duration = Duration::from_millis(5);
/// How long QEMU may be busy between two of its answers while it loads.
const PATIENCE: Duration = Duration::from_secs(20);
/// What QEMU calls the sockets that it gets.
const DISKS: &str = "disks";
const MEMORY: &str = "memory";

/// Starts a machine that waits for all that another host sends of it, and that has what its memory fits noted
/// ([`Spec::memory`]).
///
/// # Errors
/// There is a machine in that folder, or it cannot be started.
pub async fn expect(spec: &Spec) -> Result<()> {
    let Some(mut qmp) = super::super::begin(spec).await? else {
        return Err(Error::Invalid("the machine runs on this host already".into()));
    };
    // Whoever sends it has its guest's file systems thawed before.
    let exported = match freeze::forget(&spec.dir) {
        Ok(()) => export(&mut qmp, &spec.dir).await,
        failed => failed,
    };
    drop(qmp);
    if exported.is_err() {
        super::super::end(&spec.dir, spec.id).await?;
    }
    exported
}

/// Has QEMU take what somebody writes to the disks, at a socket of the machine's folder.
async fn export(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    let listener = listen(dir)?;
    qmp.give(DISKS, &File::from(OwnedFd::from(listener))).await?;
    let address = json!({"type": "fd", "data": {"str": DISKS}});
    qmp.execute("nbd-server-start", json!({"addr": address})).await?;
    for (serial, disk) in written(qmp).await? {
        let (id, node) = (super::name_of(&serial), disk.node);
        let arguments = json!({"type": "nbd", "id": id, "node-name": node, "name": serial, "writable": true});
        qmp.execute("block-export-add", arguments).await?;
    }
    Ok(())
}

/// Listens in a folder, however long its path is.
fn listen(dir: &Path) -> Result<UnixListener> {
    let failed = || at("cannot listen in", dir);
    let folder = File::open(dir).map_err(failed())?;
    let listener = UnixListener::bind(format!("/proc/self/fd/{}/{FILLED}", folder.as_raw_fd())).map_err(failed())?;
    std::fs::set_permissions(dir.join(FILLED), Permissions::from_mode(0o600)).map_err(failed())?;
    Ok(listener)
}

/// Whether the machine of a folder waits for another host, or has come from one and does not go on yet.
pub async fn waits(dir: &Path) -> Result<bool> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    Ok(match run_state(&mut qmp).await?.as_str() {
        "inmigrate" | "prelaunch" => true,
        // One that stands still for another reason was not filled.
        "paused" => is_filled(dir),
        _ => false,
    })
}

/// A connection to what takes a disk's content.
pub async fn fill_disk(dir: &Path) -> Result<UnixStream> {
    connect_in(dir, FILLED).await
}

/// A connection to what takes the memory. There is one try.
pub async fn fill_memory(dir: &Path) -> Result<UnixStream> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    let ours = give_end(&mut qmp, MEMORY).await?;
    qmp.execute("migrate-incoming", json!({"uri": format!("fd:{MEMORY}")})).await?;
    Ok(ours)
}

/// Waits until a machine has all of its memory that was sent; nobody fills its disks any more then.
///
/// # Errors
/// Something is missing: it does not go on here.
pub async fn taken(dir: &Path, id: Uuid) -> Result<()> {
    let deadline = Instant::now() + REST;
    loop {
        if process::find(dir, id).is_none() {
            return Err(process::reason(dir));
        }
        // One that ends at this moment says why.
        if let Ok(mut qmp) = Qmp::connect(dir, COMMANDS).await {
            qmp.wait_longer(PATIENCE);
            match run_state(&mut qmp).await {
                Ok(state) if state == "paused" => return shut(&mut qmp).await,
                Ok(state) if state != "inmigrate" => {
                    return Err(Error::Invalid(format!("the machine is {state}, and waits for nothing")));
                }
                _ => {}
            }
        }
        if Instant::now() > deadline {
            return Err(Error::Timeout("what sends the machine"));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Has QEMU take nothing more for the disks: from now on they are its guest's.
async fn shut(qmp: &mut Qmp) -> Result<()> {
    let exports = qmp.execute("query-block-exports", json!({})).await?;
    let exports = exports.as_array().into_iter().flatten();
    if exports.filter(|export| names(export, "id").starts_with(SENT)).count() > 0 {
        qmp.execute("nbd-server-stop", json!({})).await?;
    }
    Ok(())
}
