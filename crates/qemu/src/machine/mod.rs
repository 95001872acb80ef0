//! The life of a machine's process.
//!
//! ```text
//!   (folder) ── start ──► Running ── power button ──► PoweredOff ── end ──► Absent
//!                            │                             ▲
//!                            ├── the guest powers off ─────┘
//!                            └── SIGKILL, crash ──► Absent
//! ```
//!
//! A guest that powers itself off leaves its process behind in QEMU's run state `shutdown`, so that it
//! can be told from a machine that died. One that is suspended ends with its memory on the disk ([`memory`]), and goes on
//! with that. A process is known by what was noted of it in its folder before it became
//! QEMU ([`berth_process`]), never by what it says of itself.

mod adopt;
pub(crate) mod arguments;
mod captured;
mod card;
mod console;
pub(crate) mod devices;
mod drive;
mod files;
mod filled;
pub mod freeze;
pub mod guest;
pub(crate) mod jail;
mod link;
mod lock;
pub mod memory;
pub mod migration;
mod plug;
pub(crate) mod process;
pub mod screen;
pub mod snapshot;
mod spec;
pub mod user_network;

use std::path::Path;
use std::time::{Duration, Instant};

use berth_process::Process;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use uuid::Uuid;

pub use arguments::arguments;
pub use captured::{capture, waits};
pub use console::{bound_logs, console_connect, console_tail, is_ready};
pub use drive::{SERVED, checked as size, grow, grow_file};
pub(crate) use files::{COMMANDS, NETWORK, QEMU_LOG};
use files::{CONSOLE, EVENTS, FILLED, GUEST, MAPPED, PID, READY_LOG, SCREEN};
use jail::Needs;
pub use link::{Link, Tap};
pub(crate) use lock::Lock;
pub use plug::{attach, detach, has_disk};
pub(crate) use process::hold;
pub use process::{Found, Usage, ended, find, scan, usage};
pub use spec::{Accel, Assigned, Boot, Captured, Drive, Fits, HostDevice, Jail, Mapped, Spec, TRANSLATED_MB};

use crate::error::at;
use crate::groups::Limits;
use crate::launch::Order;
use crate::qmp::{Qmp, connect_in};
use crate::{Error, Result, groups, host};

/// What QEMU needs beside a guest's memory, in MiB: itself, its buffers, and room for what the host keeps of its disks.
const BESIDE_MB: u64 = 512;
/// A disk that grows to so many bytes while a machine has it, the machine may write to. What bounds its files cannot be raised
/// later: that takes a right which a root in a container does not have.
const MOST_DISK_BYTES: u64 = 2 << 40;
/// How QEMU says that a memory is none that it can load.
const REFUSED: &str = "load of migration failed";
/// How long QEMU may take from its start to its first answer.
pub(crate) const START: Duration = Duration::from_secs(20);
/// How long a process may take to end after it was told to.
const END: Duration = Duration::from_secs(10);
/// Between two looks at something that takes milliseconds.
const TICK: Duration = Duration::from_millis(2);

/// A machine as it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// There is no process.
    Absent,
    /// It executes.
    Running,
    /// It is paused.
    Paused,
    /// It stands still since the host had no room for what its guest wrote.
    Stalled,
    /// The guest powered itself off.
    PoweredOff,
    /// The guest's kernel gave up.
    Panicked,
    /// The process does not answer.
    Unresponsive,
}

/// Starts a machine and waits until it executes. A machine that runs already is left as it is.
pub async fn start(spec: &Spec) -> Result<()> {
    let Some(mut qmp) = begin(spec).await? else { return Ok(()) };
    let loaded = match (&spec.memory, &spec.mapped) {
        (Some(fits), _) => memory::load(&mut qmp, &spec.dir, fits).await.inspect_err(|_| drop(qmp)),
        (None, Some(Mapped::Captured(captured))) => captured::load(qmp, spec, captured).await,
        (None, _) => return Ok(()),
    };
    let Err(error) = loaded else { return Ok(()) };
    // Half loaded is nothing. What is wrong with a memory QEMU says in its log, and ends.
    end(&spec.dir, spec.id).await?;
    let reason = process::reason(&spec.dir).to_string();
    Err(if reason.contains(REFUSED) { Error::Unloadable(reason) } else { error })
}

/// Makes a machine's process, which answers; none where there is one already.
async fn begin(spec: &Spec) -> Result<Option<Qmp>> {
    let lock = locked(&spec.dir).await?;
    if process::noted(&spec.dir, spec.id)?.is_some() {
        return Ok(None);
    }
    clear(&spec.dir)?;
    if spec.memory.is_none() {
        freeze::forget(&spec.dir)?;
    }
    captured::place(spec)?;
    let order = order_of(spec).await?;
    let given = [spec.link.given(), spec.served.clone()].concat();
    let ended = process::spawn(&order, &given, spec.id, &lock).await?;
    drop(lock);
    let patience = START + devices::patience(&spec.assigned, spec.memory_mb);
    wait_started(&spec.dir, ended, patience).await.map(Some)
}

/// What a machine's launcher is told.
async fn order_of(spec: &Spec) -> Result<Order> {
    let release = host::release_of(&spec.qemu).await?;
    let arguments = arguments(spec, release);
    let mut read = vec![spec.seed.clone()];
    read.extend(spec.assigned.folders.clone());
    if let Boot::Kernel { kernel, initrd, .. } = &spec.boot {
        read.extend([kernel.clone(), initrd.clone()]);
    }
    let (mut write, mut disk_bytes) = (Vec::new(), MOST_DISK_BYTES);
    for drive in std::iter::once(&spec.root).chain(&spec.drives) {
        disk_bytes = disk_bytes.max(drive::checked(drive)?);
        if drive.format != SERVED {
            write.push(drive.path.clone());
        }
        read.extend(drive.bases.iter().cloned());
    }
    let beside = BESIDE_MB + if spec.accel == Accel::Tcg { u64::from(spec.translated_mb) } else { 0 };
    let limits = Limits { memory_mb: u64::from(spec.memory_mb) + beside, vcpus: spec.vcpus };
    let (program, dir) = (spec.qemu.as_path(), spec.dir.as_path());
    let (devices, locked_bytes) = (spec.assigned.files.clone(), devices::locked_bytes(&spec.assigned, spec.memory_mb));
    let (mut lend, given) = (None, spec.link.given().len() + spec.served.len());
    if matches!(spec.mapped, Some(Mapped::Captured(_))) {
        if arguments::reads(release) { read.push(dir.join(MAPPED)) } else { lend = Some(MAPPED.into()) }
    }
    let needs = Needs { program, arguments, dir, read, write, lend, given, devices, locked_bytes, limits, disk_bytes };
    jail::order(spec.id, spec.jail, needs).await
}

/// The right to start a machine in a folder, which must exist.
pub(crate) async fn locked(dir: &Path) -> Result<Lock> {
    Lock::take(dir).await?.ok_or_else(|| Error::Invalid("the machine's folder is gone".into()))
}

/// Does something while a machine has no process and nobody gives it one; none where it has one, or somebody is just
/// starting or ending it.
///
/// # Errors
/// It cannot be told.
pub async fn while_absent<T>(dir: &Path, id: Uuid, work: impl Future<Output = T>) -> Result<Option<T>> {
    let _lock = match Lock::take_within(dir, Duration::ZERO).await {
        Err(Error::Timeout(_)) => return Ok(None),
        lock => lock?,
    };
    if process::noted(dir, id)?.is_some() { Ok(None) } else { Ok(Some(work.await)) }
}

/// Removes what an earlier process of this folder left, so that nothing of it counts for the next.
pub(crate) fn clear(dir: &Path) -> Result<()> {
    for name in [COMMANDS, EVENTS, CONSOLE, SCREEN, GUEST, NETWORK, FILLED, PID, READY_LOG, QEMU_LOG, MAPPED] {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(at("cannot remove", &path)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Waits until a process that was just made answers, and hands over the connection.
pub(crate) async fn wait_started(
    dir: &Path,
    ended: tokio::sync::watch::Receiver<bool>,
    patience: Duration,
) -> Result<Qmp> {
    let deadline = Instant::now() + patience;
    loop {
        if *ended.borrow() {
            return Err(process::reason(dir));
        }
        if let Ok(mut qmp) = Qmp::connect(dir, COMMANDS).await
            && qmp.execute("query-status", json!({})).await.is_ok()
        {
            return Ok(qmp);
        }
        if Instant::now() > deadline {
            return Err(Error::Timeout("the machine"));
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Looks at a machine; takes no longer than QEMU's patience.
pub async fn observe(dir: &Path, id: Uuid) -> Observed {
    let is_there = || process::noted(dir, id).map_or(true, |note| note.is_some());
    if !is_there() {
        return Observed::Absent;
    }
    match status(dir).await {
        Ok(status) => state(&status),
        // It may have ended meanwhile.
        Err(_) if !is_there() => Observed::Absent,
        Err(_) => Observed::Unresponsive,
    }
}

async fn status(dir: &Path) -> Result<String> {
    let answer = Qmp::connect(dir, COMMANDS).await?.execute("query-status", json!({})).await?;
    Ok(answer.get("status").and_then(Value::as_str).unwrap_or_default().to_owned())
}

fn state(status: &str) -> Observed {
    match status {
        "running" => Observed::Running,
        "shutdown" => Observed::PoweredOff,
        "guest-panicked" | "internal-error" => Observed::Panicked,
        // Of the errors of a disk only a lack of room stops a machine (QEMU's `werror=enospc`, its default); others are
        // told to the guest.
        "io-error" => Observed::Stalled,
        _ => Observed::Paused,
    }
}

/// Presses the power button.
pub async fn press_power(dir: &Path) -> Result<()> {
    Qmp::connect(dir, COMMANDS).await?.execute("system_powerdown", json!({})).await.map(drop)
}

/// Lets a paused machine go on that was never suspended ([`memory::resume`]).
pub async fn resume(dir: &Path) -> Result<()> {
    Qmp::connect(dir, COMMANDS).await?.execute("cont", json!({})).await.map(drop)
}

/// Lets a machine go on if it stands still for lack of room on the host's disk; whether it did.
pub async fn go_on_where_stalled(dir: &Path, id: Uuid) -> Result<bool> {
    let stalled = observe(dir, id).await == Observed::Stalled;
    if stalled {
        resume(dir).await?;
    }
    Ok(stalled)
}

/// Ends a machine's process: by word, then by force. Fine where there is none. When this returns without an error, the
/// process that was noted is gone, and nobody is left in its control groups.
pub async fn end(dir: &Path, id: Uuid) -> Result<()> {
    let lock = match Lock::take_within(dir, END / 5).await {
        // Who holds the folder is a launcher of this machine that does not come to an end, and is in its groups.
        Err(Error::Timeout(_)) => {
            groups::kill(&groups::name(dir, id));
            groups::kill(&id.to_string());
            Lock::take(dir).await?
        }
        outcome => outcome?,
    };
    let earlier = process::noted(dir, id)?.and_then(|note| groups::of_process(note.pid, id));
    if lock.is_some()
        && let Some(process) = hold(dir, id)?
    {
        end_process(dir, &process).await?;
    }
    // Whatever it started ends with it.
    let own = groups::name(dir, id);
    if let Some(earlier) = earlier.filter(|name| *name != own) {
        groups::end(&earlier).await?;
    }
    groups::end(&own).await
}

async fn end_process(dir: &Path, process: &Process) -> Result<()> {
    if let Ok(mut qmp) = Qmp::connect(dir, COMMANDS).await {
        // `quit` flushes the disks; its answer may be cut off by the end itself.
        let _ = qmp.execute("quit", json!({})).await;
        if gone(process, END / 5).await? {
            return Ok(());
        }
    }
    process.kill().map_err(|e| Error::io("cannot end the machine's process", e))?;
    if gone(process, END).await? { Ok(()) } else { Err(Error::Timeout("the machine's process")) }
}

async fn gone(process: &Process, patience: Duration) -> Result<bool> {
    match tokio::time::timeout(patience, process.ended()).await {
        Ok(ended) => ended.map(|()| true).map_err(|e| Error::io("cannot wait for the machine's end", e)),
        Err(_) => Ok(false),
    }
}

/// Connects to the network card of a running machine. One connection at a time.
pub async fn connect_network(dir: &Path) -> Result<UnixStream> {
    connect_in(dir, NETWORK).await
}

/// Waits until something happens to a machine: it powers off, panics, pauses, goes on, or its process
/// ends. The connection is kept from call to call, and costs nothing while nothing happens.
#[derive(Debug)]
pub struct Watch {
    qmp: Qmp,
}

impl Watch {
    /// Begins to watch a running machine.
    pub async fn begin(dir: &Path) -> Result<Self> {
        Ok(Self { qmp: Qmp::connect(dir, EVENTS).await? })
    }

    /// Waits for the next happening; `false` when the process ended.
    pub async fn next(&mut self) -> bool {
        loop {
            match self.qmp.event().await.as_deref() {
                Ok("SHUTDOWN" | "GUEST_PANICKED" | "STOP" | "RESUME" | "RESET" | "BLOCK_IO_ERROR") => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
