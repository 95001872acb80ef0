//! A machine that goes: its disks are mirrored, its memory follows, and it stands still at last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::super::files::{COMMANDS, MAPPED, MEMORY, NEW_MEMORY};
use super::super::filled::is_filled;
use super::super::memory::{UNBOUNDED, is_busy, release, run_state};
use super::{SENT, give_end, name_of, names, relay, require_running, written};
use crate::host::Release;
use crate::qmp::Qmp;
use crate::{Error, Result};

/// How long the guest may stand still for the last part, in milliseconds, as far as QEMU can tell. Its own default.
const DOWNTIME_MILLIS: u64 = 300;
/// The first release that knows of each write of an emulated processor to a memory that is sent.
const KEEPS_WRITES: Release = (9, 0);
/// How long nothing of the memory may go.
const SILENCE: Duration = relay::SILENCE;
/// How long nothing of any disk may go that is not on the other side yet.
const STANDSTILL: Duration = Duration::from_mins(1);
/// How long QEMU may take to connect to a disk elsewhere, and to begin or end a job.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what takes seconds, and at what the guest stands still for.
const LOOK: Duration = Duration::from_millis(50);
const TICK: Duration = Duration::from_millis(5);
/// How long a connection is kept from others who look at the machine.
const HELD: Duration = Duration::from_millis(500);
/// What QEMU calls the socket that it gets for the memory.
const SOCKET: &str = "moved-memory";

/// Has a running machine mirror a disk to the export of that name elsewhere, as soon as that is heard at the other end of what
/// this returns. What an earlier try for the disk left is removed first. Where it fails, the way ends.
///
/// # Errors
/// The machine does not run, or has no such disk.
pub async fn send_disk(dir: &Path, serial: &str) -> Result<UnixStream> {
    let mut qmp = connect(dir).await?;
    require_running(&mut qmp).await?;
    end_mirrors(&mut qmp, Some(&name_of(serial))).await?;
    let disk = written(&mut qmp).await?.remove(serial);
    let disk = disk.ok_or_else(|| Error::Invalid("the machine does not have the disk".into()))?;
    let (mut near, far) = relay::ends()?;
    let (dir, serial) = (dir.to_path_buf(), serial.to_owned());
    tokio::spawn(async move {
        // QEMU does nothing else while it waits for an export's first words, so that they have to be there.
        let Some(greeting) = relay::greeting(&mut near).await else { return };
        if let Err(error) = mirror(&dir, &disk.node, &serial, (near, greeting)).await {
            tracing::warn!(dir = %dir.display(), serial, %error, "a disk of a machine cannot be sent");
        }
    });
    Ok(far)
}

async fn mirror(dir: &Path, disk: &str, serial: &str, (near, greeting): (UnixStream, Vec<u8>)) -> Result<()> {
    let name = name_of(serial);
    let mut qmp = connect(dir).await?;
    let qemu = give_end(&mut qmp, &name).await?;
    let what = format!("{} {serial}", dir.display());
    tokio::spawn(async move { relay::carry(&what, (qemu, near), &greeting, true, SILENCE).await });
    // What is not written on this side is made empty on the other, and takes no room there.
    let node = json!({
        "driver": "nbd", "node-name": name, "export": serial, "server": {"type": "fd", "str": name}, "discard": "unmap",
    });
    qmp.execute("blockdev-add", node).await?;
    let job = json!({
        "job-id": name, "device": disk, "target": name, "sync": "full", "copy-mode": "write-blocking",
        "on-source-error": "report", "on-target-error": "report", "auto-dismiss": false,
    });
    let begun = qmp.execute("blockdev-mirror", job).await;
    if begun.is_err() {
        end_mirrors(&mut qmp, Some(&name)).await?;
    }
    begun.map(drop)
}

/// Has a running machine be about to send its memory and the state of its devices, at the other end of what this returns: it
/// does once it is [handed over](hand_over). An earlier try is given up first.
///
/// # Errors
/// The machine does not run.
pub async fn send_memory(dir: &Path) -> Result<UnixStream> {
    let mut qmp = connect(dir).await?;
    stop_sending(&mut qmp).await?;
    require_running(&mut qmp).await?;
    let qemu = give_end(&mut qmp, SOCKET).await?;
    let (near, far) = relay::ends()?;
    let what = dir.display().to_string();
    tokio::spawn(async move { relay::carry(&what, (qemu, near), &[], false, SILENCE).await });
    Ok(far)
}

/// Waits until the other side has all of every disk that a machine writes to.
///
/// # Errors
/// One is not sent any more, or was not begun to be.
pub async fn mirrored(dir: &Path) -> Result<()> {
    let (began, mut last, mut since) = (Instant::now(), None, Instant::now());
    loop {
        let mut qmp = connect(dir).await?;
        let (disks, jobs) = (written(&mut qmp).await?, mirrors(&mut qmp).await?);
        drop(qmp);
        if let Some(reason) = jobs.values().find_map(|job| job.failed.clone()) {
            return Err(Error::Qemu(format!("a disk is not sent any more: {reason}")));
        }
        let found: Vec<_> = disks.keys().map(|serial| jobs.get(&name_of(serial))).collect();
        if found.iter().all(|job| job.is_some_and(|job| job.is_ready)) {
            return Ok(());
        }
        let done = Some(jobs.values().map(|job| job.done).sum::<u64>());
        if done != last {
            (last, since) = (done, Instant::now());
        }
        if since.elapsed() > STANDSTILL || began.elapsed() > PATIENCE && found.contains(&None) {
            return Err(Error::Timeout("who takes a disk of the machine"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends a machine's memory, waits until all of it has gone, has the mirrors of its disks end, and has it stand still.
///
/// # Errors
/// Not all can be sent. The machine goes on, as it does where nobody waits for this any more.
pub async fn hand_over(dir: &Path) -> Result<()> {
    let undo = Undo(Some(dir.to_path_buf()));
    let handed = send_rest(dir).await;
    if handed.is_err() {
        call_off(dir).await?;
    }
    undo.forget();
    handed
}

/// Has a machine go on where this is dropped.
struct Undo(Option<PathBuf>);

impl Undo {
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let (Some(dir), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else { return };
        runtime.spawn(async move {
            if let Err(error) = call_off(&dir).await {
                tracing::warn!(dir = %dir.display(), %error, "a machine that was being sent does not go on yet");
            }
        });
    }
}

/// Begins to send the memory of a machine.
async fn begin(dir: &Path) -> Result<()> {
    let mut qmp = connect(dir).await?;
    require_running(&mut qmp).await?;
    stop_before_the_rest(&mut qmp, true).await?;
    let parameters = json!({"max-bandwidth": UNBOUNDED, "downtime-limit": DOWNTIME_MILLIS});
    qmp.execute("migrate-set-parameters", parameters).await?;
    if loses_writes(&mut qmp).await? {
        tracing::info!(machine = %dir.display(), "an emulated machine stands still while its memory is sent, as QEMU before 9.0 wants it");
        qmp.execute("stop", json!({})).await?;
    }
    qmp.execute("migrate", json!({"uri": format!("fd:{SOCKET}")})).await.map(drop)
}

/// Whether QEMU may lose what a guest writes to its memory while that is sent, so that nothing of it goes unless the machine
/// stands still: an emulated processor's writes, before a release that mended that (QEMU, commit "physmem: Fix migration dirty
/// bitmap coherency with TCG memory access"). With 7.2 two of five guests that had just begun did not survive it.
async fn loses_writes(qmp: &mut Qmp) -> Result<bool> {
    let kvm = qmp.execute("query-kvm", json!({})).await?;
    let is_real = kvm.get("enabled").and_then(Value::as_bool).unwrap_or_default();
    Ok(!is_real && release(qmp).await? < KEEPS_WRITES)
}

async fn send_rest(dir: &Path) -> Result<()> {
    begin(dir).await?;
    let mut pace = Pace::new();
    loop {
        let mut qmp = connect(dir).await?;
        let held = Instant::now();
        while held.elapsed() < HELD {
            let about = qmp.execute("query-migrate", json!({})).await?;
            match names(&about, "status") {
                "pre-switchover" => return switch_over(&mut qmp, dir).await,
                "setup" | "active" => pace.check(&about)?,
                _ => return Err(ended(&about)),
            }
            // One that powers itself off would neither go on here afterwards nor there.
            match run_state(&mut qmp).await?.as_str() {
                "running" | "paused" | "finish-migrate" => tokio::time::sleep(TICK).await,
                state => return Err(Error::Qemu(format!("the machine does not run any more: it is {state}"))),
            }
        }
    }
}

/// What is done while the guest stands still.
async fn switch_over(qmp: &mut Qmp, dir: &Path) -> Result<()> {
    let disks: BTreeSet<_> = written(qmp).await?.keys().map(|serial| name_of(serial)).collect();
    let ready: BTreeSet<_> =
        mirrors(qmp).await?.into_iter().filter(|(_, job)| job.is_ready).map(|(name, _)| name).collect();
    if let Some(name) = disks.difference(&ready).next() {
        return Err(Error::Qemu(format!("the disk {name} is not on both sides")));
    }
    for name in &disks {
        qmp.execute("block-job-cancel", json!({"device": name})).await?;
    }
    for name in &disks {
        wait_ended(qmp, name).await?;
    }
    qmp.execute("migrate-continue", json!({"state": "pre-switchover"})).await?;
    let mut pace = Pace::new();
    loop {
        let about = qmp.execute("query-migrate", json!({})).await?;
        match names(&about, "status") {
            "completed" if run_state(qmp).await? == "postmigrate" => break,
            "pre-switchover" | "device" | "active" | "completed" => pace.check(&about)?,
            _ => return Err(ended(&about)),
        }
        tokio::time::sleep(TICK).await;
    }
    let about = qmp.execute("query-migrate", json!({})).await?;
    let (downtime, total, bytes) = (about.get("downtime"), about.get("total-time"), about.pointer("/ram/transferred"));
    tracing::info!(machine = %dir.display(), ?downtime, ?total, ?bytes, "a machine was sent");
    // The other side has it. What is left here goes with the process, or when that is to go on after all.
    let _ = end_mirrors(qmp, None).await;
    Ok(())
}

/// Waits until a mirror has ended as it should.
async fn wait_ended(qmp: &mut Qmp, name: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let mut jobs = mirrors(qmp).await?;
        match jobs.remove(name) {
            Some(Mirror { failed: Some(reason), .. }) => {
                return Err(Error::Qemu(format!("a disk is not sent: {reason}")));
            }
            Some(Mirror { has_ended: true, .. }) => {
                return qmp.execute("job-dismiss", json!({"id": name})).await.map(drop);
            }
            None => return Err(Error::Qemu("a disk is not sent any more".into())),
            Some(_) if began.elapsed() > PATIENCE => return Err(Error::Timeout("who takes a disk of the machine")),
            Some(_) => tokio::time::sleep(TICK).await,
        }
    }
}

/// Has a machine go on that is being sent, or that was: nothing of it is sent any more. One that runs, and one that waits for
/// another host, stays as it is.
///
/// # Errors
/// It is gone, or does not answer.
pub async fn call_off(dir: &Path) -> Result<()> {
    // One whose memory is written to the disk, or read from there, is none that is sent.
    if [MEMORY, NEW_MEMORY, MAPPED].iter().any(|name| dir.join(name).exists()) {
        return Ok(());
    }
    let mut qmp = connect(dir).await?;
    if matches!(run_state(&mut qmp).await?.as_str(), "inmigrate" | "prelaunch") || is_filled(dir) {
        return Ok(());
    }
    stop_sending(&mut qmp).await?;
    end_mirrors(&mut qmp, None).await?;
    let began = Instant::now();
    loop {
        match run_state(&mut qmp).await?.as_str() {
            "postmigrate" | "paused" => return qmp.execute("cont", json!({})).await.map(drop),
            "finish-migrate" if began.elapsed() > PATIENCE => return Err(Error::Timeout("the machine")),
            "finish-migrate" => tokio::time::sleep(TICK).await,
            _ => return Ok(()),
        }
    }
}

/// Gives up what is sent of a memory, and has a later one of the machine be written without a halt.
async fn stop_sending(qmp: &mut Qmp) -> Result<()> {
    if is_busy(qmp).await? {
        qmp.execute("migrate_cancel", json!({})).await?;
        let began = Instant::now();
        while is_busy(qmp).await? {
            if began.elapsed() > PATIENCE {
                return Err(Error::Timeout("the machine's memory"));
            }
            tokio::time::sleep(TICK).await;
        }
    }
    stop_before_the_rest(qmp, false).await
}

/// Whether a machine halts before the last part of its memory goes, and its guest is slowed down where it writes more than
/// goes.
async fn stop_before_the_rest(qmp: &mut Qmp, does: bool) -> Result<()> {
    let capability = |name| json!({"capability": name, "state": does});
    let capabilities = ["pause-before-switchover", "auto-converge"].map(capability);
    qmp.execute("migrate-set-capabilities", json!({"capabilities": capabilities})).await.map(drop)
}

/// Ends the mirror of this name, or all, with what belongs to them. What the other side has then is of no use.
async fn end_mirrors(qmp: &mut Qmp, only: Option<&str>) -> Result<()> {
    let nodes = qmp.execute("query-named-block-nodes", json!({"flat": true})).await?;
    let nodes = nodes.as_array().into_iter().flatten().map(|node| names(node, "node-name").to_owned());
    let nodes: Vec<_> = nodes.filter(|name| name.starts_with(SENT) && only.is_none_or(|only| only == name)).collect();
    for name in &nodes {
        // What waits for the other side fails at once.
        let instance = json!({"type": "block-node", "node-name": name});
        let _ = qmp.execute("yank", json!({"instances": [instance]})).await;
    }
    let began = Instant::now();
    loop {
        let jobs: Vec<_> =
            mirrors(qmp).await?.into_iter().filter(|(name, _)| only.is_none_or(|only| only == name)).collect();
        if jobs.is_empty() {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(Error::Timeout("the end of a disk's mirror"));
        }
        for (name, job) in jobs {
            // One that ends at this moment cannot be ended: the next look says so.
            let _ = if job.has_ended {
                qmp.execute("job-dismiss", json!({"id": name})).await
            } else {
                qmp.execute("block-job-cancel", json!({"device": name, "force": true})).await
            };
        }
        tokio::time::sleep(TICK).await;
    }
    for name in nodes {
        qmp.execute("blockdev-del", json!({"node-name": name})).await?;
    }
    Ok(())
}

/// How far a disk is that is sent.
#[derive(Debug, PartialEq, Eq)]
struct Mirror {
    /// Whether the other side has all, and gets each further write.
    is_ready: bool,
    /// How far it is: a number that grows.
    done: u64,
    /// Whether it has ended.
    has_ended: bool,
    /// Why it ended before it should.
    failed: Option<String>,
}

/// The disks that are sent, by the names of their jobs.
async fn mirrors(qmp: &mut Qmp) -> Result<BTreeMap<String, Mirror>> {
    let jobs = qmp.execute("query-jobs", json!({})).await?;
    let jobs = jobs.as_array().into_iter().flatten().filter(|job| names(job, "id").starts_with(SENT));
    let mirror = |job: &Value| Mirror {
        is_ready: names(job, "status") == "ready",
        done: job.get("current-progress").and_then(Value::as_u64).unwrap_or_default(),
        has_ended: names(job, "status") == "concluded",
        failed: job.get("error").and_then(Value::as_str).map(str::to_owned),
    };
    Ok(jobs.map(|job| (names(job, "id").to_owned(), mirror(job))).collect())
}

/// Whether a memory gets on.
struct Pace {
    sent: Option<Value>,
    since: Instant,
}

impl Pace {
    fn new() -> Self {
        Self { sent: None, since: Instant::now() }
    }

    fn check(&mut self, about: &Value) -> Result<()> {
        let sent = about.pointer("/ram/transferred").cloned();
        if sent != self.sent {
            (self.sent, self.since) = (sent, Instant::now());
        }
        if self.since.elapsed() > SILENCE { Err(Error::Timeout("who takes the machine's memory")) } else { Ok(()) }
    }
}

/// Why a memory is not sent any more.
fn ended(about: &Value) -> Error {
    let reason = match (names(about, "status"), names(about, "error-desc")) {
        ("none" | "completed", _) => "nobody takes it",
        (_, "") => "no reason was given",
        (_, reason) => reason,
    };
    Error::Qemu(format!("the machine's memory is not sent any more: {reason}"))
}

async fn connect(dir: &Path) -> Result<Qmp> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    qmp.wait_longer(PATIENCE);
    Ok(qmp)
}
