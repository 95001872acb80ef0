//! Capturing a running machine: its disk by a checkpoint, its memory by what it wrote.
//!
//! The machine stands still while the devices' state is saved and the pages are read; both together take
//! some 20 ms for 5 MiB of pages, and neither depends on the sizes of the disk or the memory. The rest
//! (the copy of the memory it began with) is done before. A disk alone is checkpointed without stopping at all.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use uuid::Uuid;

use super::{Layer, MEMORY, layer, memory, node_in_use};
use crate::error::at;
use crate::machine::{COMMANDS, find};
use crate::qmp::Qmp;
use crate::{Error, Result};

/// Numbers of the sets in which QEMU gets files. They are given back at once.
const LAYER_SET: u32 = 101;
const STATE_SET: u32 = 102;
/// Bits of an entry of /proc/PID/pagemap.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;
/// Bytes of an entry.
const ENTRY: u64 = 8;
/// Pages that are read at a time.
const RUN: usize = 256;
/// Most bytes of a process' list of mappings.
const MOST_MAPS: u64 = 16 << 20;

/// What is to be captured.
#[derive(Clone, Debug)]
pub struct Capture {
    /// The empty layer that the machine goes on with, its present one staying as it is from then on; none for
    /// a machine that ends here.
    pub next: Option<Layer>,
    /// Where the memory and the devices' state go, if they are wanted.
    pub memory: Option<(PathBuf, PathBuf)>,
    /// Memory of the machine, in MiB: its process may claim another one.
    pub memory_mb: u32,
    /// Whether the machine goes on.
    pub resume: bool,
}

/// What a capture cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How long the machine stood still; nothing where only its disk was checkpointed.
    pub stopped: Duration,
    /// Memory that was its own, in bytes.
    pub written: u64,
}

/// Captures a machine. Repeating it after a crash is fine: the checkpoint comes last, so where it was made, the
/// memory is whole, too.
pub async fn capture(dir: &Path, id: Uuid, capture: &Capture) -> Result<Report> {
    let mut qmp = Qmp::connect(dir, COMMANDS).await?;
    if let Some(next) = &capture.next {
        if node_in_use(&mut qmp).await? == layer::node(next.id) {
            return Ok(Report::default());
        }
        add_layer(&mut qmp, next).await?;
    }
    match &capture.memory {
        None => {
            checkpoint(&mut qmp, capture).await?;
            Ok(Report::default())
        }
        Some((memory, state)) => with_memory(&mut qmp, dir, id, capture, (memory, state)).await,
    }
}

async fn add_layer(qmp: &mut Qmp, next: &Layer) -> Result<()> {
    let node = layer::node(next.id);
    // One that an interrupted capture left would be in the way; usually there is none.
    let _ = qmp.execute("blockdev-del", json!({"node-name": node})).await;
    let file = File::options().read(true).write(true).open(&next.path).map_err(at("cannot open", &next.path))?;
    qmp.give_set(LAYER_SET, &file).await?;
    let arguments = json!({
        "driver": "qcow2", "node-name": node, "discard": "unmap", "backing": null,
        "file": {
            "driver": "file", "filename": format!("/dev/fdset/{LAYER_SET}"), "node-name": format!("f{node}"),
            "discard": "unmap", "locking": "off", "cache": {"direct": false, "no-flush": true},
        },
    });
    let added = qmp.execute("blockdev-add", arguments).await;
    // QEMU holds a copy of its own.
    qmp.execute("remove-fd", json!({"fdset-id": LAYER_SET})).await?;
    added.map(drop)
}

async fn checkpoint(qmp: &mut Qmp, capture: &Capture) -> Result<()> {
    let Some(next) = &capture.next else {
        return Ok(());
    };
    let top = node_in_use(qmp).await?;
    qmp.execute("blockdev-snapshot", json!({"node": top, "overlay": layer::node(next.id)})).await.map(drop)
}

async fn with_memory(qmp: &mut Qmp, dir: &Path, id: Uuid, capture: &Capture, to: (&Path, &Path)) -> Result<Report> {
    let pid = find(dir, id).ok_or_else(|| Error::Qemu("the machine is gone".into()))?;
    let (origin, copy_to, most) = (dir.join(MEMORY), to.0.to_path_buf(), bytes_of(capture));
    let copy = blocking(move || memory::copy(&origin, &copy_to, most)).await?;
    qmp.execute("stop", json!({})).await?;
    let stop = Instant::now();
    let outcome = still(qmp, dir, pid, capture, to.1, copy).await;
    if capture.resume || outcome.is_err() {
        qmp.execute("cont", json!({})).await?;
    }
    Ok(Report { stopped: stop.elapsed(), written: outcome? })
}

/// What has to be done while the machine stands still.
async fn still(qmp: &mut Qmp, dir: &Path, pid: i32, capture: &Capture, state: &Path, copy: File) -> Result<u64> {
    save_state(qmp, state).await?;
    let dir = dir.to_path_buf();
    let most = bytes_of(capture);
    let written = blocking(move || own_pages(pid, &dir, &copy, most)).await?;
    // Last, because it is what a later look finds.
    checkpoint(qmp, capture).await?;
    Ok(written)
}

async fn save_state(qmp: &mut Qmp, state: &Path) -> Result<()> {
    let file = File::create(state).map_err(at("cannot create", state))?;
    qmp.give_set(STATE_SET, &file).await?;
    let arguments = json!({"filename": format!("/dev/fdset/{STATE_SET}"), "live": false});
    let saved = qmp.execute("xen-save-devices-state", arguments).await;
    qmp.execute("remove-fd", json!({"fdset-id": STATE_SET})).await?;
    saved.map(drop)
}

/// Writes the pages that are the process' own onto the copy of the memory it began with.
fn own_pages(pid: i32, dir: &Path, copy: &File, most: u64) -> Result<u64> {
    let failed = |what: &'static str| move |e| Error::io(what, e);
    let (start, end) = bounded(mapping(pid, dir)?, most)?;
    let page = rustix::param::page_size() as u64;
    let memory = File::open(format!("/proc/{pid}/mem")).map_err(failed("cannot read the machine's memory"))?;
    let mut entries = vec![0; usize::try_from((end - start) / page * ENTRY).unwrap_or(0)];
    let map = File::open(format!("/proc/{pid}/pagemap")).map_err(failed("cannot read the machine's pages"))?;
    map.read_exact_at(&mut entries, start / page * ENTRY).map_err(failed("cannot read the machine's pages"))?;
    let mut buffer = vec![0; RUN * usize::try_from(page).unwrap_or(4096)];
    let mut written = 0;
    for (first, count) in runs(&entries) {
        let (offset, length) = (first as u64 * page, count * usize::try_from(page).unwrap_or(4096));
        let piece = &mut buffer[..length];
        memory.read_exact_at(piece, start + offset).map_err(failed("cannot read the machine's memory"))?;
        copy.write_all_at(piece, offset).map_err(failed("cannot write the memory"))?;
        written += length as u64;
    }
    Ok(written)
}

/// Bytes of the machine's memory.
fn bytes_of(capture: &Capture) -> u64 {
    u64::from(capture.memory_mb) << 20
}

/// A mapping that is no larger than the machine's memory. The process says where it is, and may be hostile: what is
/// read of it is sized by that.
fn bounded((start, end): (u64, u64), most: u64) -> Result<(u64, u64)> {
    match end.checked_sub(start) {
        Some(length) if length <= most => Ok((start, end)),
        _ => Err(Error::Qemu("it maps another memory than its own".into())),
    }
}

/// Where the guest's memory lies in the process.
fn mapping(pid: i32, dir: &Path) -> Result<(u64, u64)> {
    let mut text = String::new();
    let maps = File::open(format!("/proc/{pid}/maps")).and_then(|file| file.take(MOST_MAPS).read_to_string(&mut text));
    maps.map_err(|e| Error::io("cannot read the machine's mappings", e))?;
    // In a root folder of its own the process sees its memory directly below it; we see the whole path, of a tree of
    // its own the path that its folder was given by.
    let name = format!("/{MEMORY}");
    let folder = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let is_ours =
        |path: &str| Path::new(path) == folder.join(MEMORY) || Path::new(path) == dir.join(MEMORY) || path == name;
    text.lines()
        .find_map(|line| mapping_of(line, is_ours))
        .ok_or_else(|| Error::Qemu("its memory is not mapped".into()))
}

fn mapping_of(line: &str, is_ours: impl Fn(&str) -> bool) -> Option<(u64, u64)> {
    let (range, rest) = line.split_once(' ')?;
    let path = &rest[rest.find('/')?..];
    let (start, end) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    is_ours(path).then_some((number(start)?, number(end)?))
}

/// Stretches of pages that are the process' own, none longer than [`RUN`].
fn runs(entries: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    let values = entries.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().unwrap_or_default()));
    for (index, value) in values.enumerate() {
        let own = value & SWAPPED != 0 || value & PRESENT != 0 && value & OF_FILE == 0;
        match runs.last_mut() {
            Some((first, count)) if own && *first + *count == index && *count < RUN => *count += 1,
            _ if own => runs.push((index, 1)),
            _ => {}
        }
    }
    runs
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Invalid("the capture was interrupted".into()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_own_pages() {
        let page = |bits: u64| bits.to_ne_bytes();
        let own = page(PRESENT);
        let mut entries = Vec::new();
        for bits in [own, own, page(PRESENT | OF_FILE), page(0), page(SWAPPED), own] {
            entries.extend_from_slice(&bits);
        }
        assert_eq!(runs(&entries), [(0, 2), (4, 2)]);
        let long: Vec<u8> = std::iter::repeat_n(own, RUN + 1).flatten().collect();
        assert_eq!(runs(&long), [(0, RUN), (RUN, 1)]);
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn a_mapping_is_no_larger_than_the_memory() {
        let most = 256 << 20;
        assert_eq!(bounded((4096, 4096 + most), most).unwrap(), (4096, 4096 + most));
        for (start, end) in [(0, most + 4096), (0, 64 << 40), (8192, 4096)] {
            assert!(bounded((start, end), most).is_err(), "{start} {end}");
        }
    }

    #[test]
    fn mappings_are_found_by_their_file() {
        let line = "7f00-7fff rw-p 00000000 fe:00 12 /data/a b/memory";
        assert_eq!(mapping_of(line, |path| path == "/data/a b/memory"), Some((0x7f00, 0x7fff)));
        assert_eq!(mapping_of(line, |path| path == "/memory"), None);
        assert_eq!(mapping_of("7f00-7fff rw-p 00000000 00:00 0", |_| true), None);
    }
}
