//! Machines that go to another host while they run.
//!
//! ```text
//!   here                                            there
//!   running                                         waits, with empty disks            (incoming)
//!   each disk ── NBD ──────────────────────────────► its export
//!   memory ── QEMU's own stream ───────────────────► its incoming migration
//!   stands still, mirrors end, the rest goes ──────► has all, stands still, goes on
//! ```
//!
//! QEMU knows no address: on either side it is given one end of a pair of sockets for each of these ways, and whoever asks
//! carries what comes out of the other. A disk is mirrored so that a write of the guest is done once it is on both sides
//! (QEMU, `copy-mode` `write-blocking`), so both are the same from the moment at which the mirror is ready. The machine halts
//! before the last part of its memory goes (`pause-before-switchover`), which is when the mirrors end. An emulated one halts
//! before any of it goes where its QEMU would lose writes otherwise.
//!
//! What is done to a machine that is sent is asked of QEMU and bears names of its own, so that whoever comes after a crash
//! finds it ([`call_off`]).

mod incoming;
mod outgoing;
mod relay;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;

use serde_json::{Value, json};
use tokio::net::UnixStream;

pub use incoming::{expect, fill_disk, fill_memory, taken, waits};
pub use outgoing::{call_off, hand_over, mirrored, send_disk, send_memory};

use super::files::COMMANDS;
use super::memory::{made, release, run_state};
use super::spec::Fits;
use super::{card, guest, plug};
use crate::qmp::Qmp;
use crate::{Error, Result};

/// What a running machine is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alike {
    /// What one that takes it up has to be like. Of its disks it says nothing.
    pub fits: Fits,
    /// The size of each disk that it writes to, in bytes, by what the guest knows the disk by.
    pub disks: BTreeMap<String, u64>,
    /// For how many data disks it has places.
    pub places: usize,
}

/// What a running machine with such a processor is like.
///
/// # Errors
/// It does not run, or is busy with its disks.
pub async fn look(dir: &Path, processor: &str) -> Result<Alike> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    require_running(&mut qmp).await?;
    let jobs = qmp.execute("query-jobs", json!({})).await?;
    if jobs.as_array().into_iter().flatten().any(|job| !names(job, "id").starts_with(SENT)) {
        return Err(Error::Qemu("a disk of the machine is being copied".into()));
    }
    let fits = Fits {
        processor: made(&mut qmp, processor).await?,
        qemu: release(&mut qmp).await?,
        places: plug::places(&mut qmp).await?,
        has_screen: plug::has(&mut qmp, card::CARD).await?,
        has_guest_port: plug::has(&mut qmp, guest::CARD).await?,
        disks: BTreeMap::new(),
    };
    let disks = written(&mut qmp).await?.into_iter().map(|(serial, disk)| (serial, disk.bytes)).collect();
    Ok(Alike { fits, disks, places: plug::count(&mut qmp).await? })
}

/// What the names begin with of all that belongs to a disk that is sent: its job, its node, and the socket's.
const SENT: &str = "move-";

fn name_of(serial: &str) -> String {
    format!("{SENT}{serial}")
}

/// A text of an object that QEMU tells of.
fn names<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The disks that a machine may write to, by what the guest knows them by.
async fn written(qmp: &mut Qmp) -> Result<BTreeMap<String, super::drive::Held>> {
    let mut disks = super::drive::all(qmp).await?;
    disks.retain(|_, disk| disk.is_written);
    Ok(disks)
}

async fn require_running(qmp: &mut Qmp) -> Result<()> {
    match run_state(qmp).await?.as_str() {
        "running" => Ok(()),
        state => Err(Error::Qemu(format!("only a machine that runs goes to another host; this one is {state}"))),
    }
}

/// Gives QEMU one end of a pair of sockets under a name; the other one.
async fn give_end(qmp: &mut Qmp, name: &str) -> Result<UnixStream> {
    let failed = |e| Error::io("cannot make sockets", e);
    let (ours, its) = StdStream::pair().map_err(failed)?;
    qmp.give(name, &File::from(OwnedFd::from(its))).await?;
    ours.set_nonblocking(true).map_err(failed)?;
    UnixStream::from_std(ours).map_err(failed)
}
