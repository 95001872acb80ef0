//! Captured memories as they go to other hosts, and come from them.
//!
//! ```text
//! sandbox/memories/.<id>.<try>.travelling   what has come so far of one, and the folder that is made of it
//! ```
//!
//! A memory travels as one file, an archive of its folder that is made while it is read: most of a memory is zeros, which take
//! nothing then, and become holes again where it arrives. The archive says on which processor the memory was captured: QEMU
//! loads it onto any other one without a word, and the guest fails later.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use berth_domain::hex;
use berth_domain::ids::MemoryId;
use berth_qemu::accel;
use berth_qemu::machine::Accel;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::captured::About;
use super::places::Captured;
use super::travelling::{self, TRAVELLING, under_way};
use super::{QemuSandboxes, remove};
use crate::error::transient;
use crate::received::{receive, superseded};
use crate::sandbox::{DISK_FULL, ImageFile, SandboxEngine};
use crate::vm::Content;
use crate::{EngineError, Result, fault};

/// The level of compression: zeros are what counts.
const LEVEL: i32 = 1;
/// What is looked at at a time, to leave out what is zero.
const PIECE: usize = 64 << 10;
/// After how many bytes the disk is made to have them, so that the last time takes no longer.
const SYNCED: u64 = 64 << 20;
/// Most bytes of what is said of a memory, and of the state of its devices: some MiB.
const SAID: u64 = 64 << 10;
const STATE: u64 = 256 << 20;

/// The parts of an archive, in order.
const ABOUT: &str = "about.json";
const PROCESSOR: &str = "processor";
const PARTS: [&str; 4] = [ABOUT, PROCESSOR, "state", "memory"];

/// Counts and hashes what is written.
#[derive(Default)]
struct Hashed {
    hasher: Sha256,
    bytes: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the archive of a memory that was captured on such a processor; the same bytes each time.
fn pack(captured: &Captured, processor: &str, into: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(zstd::Encoder::new(into, LEVEL)?);
    let mut append = |name: &str, length: u64, content: &mut dyn Read| {
        let mut header = tar::Header::new_gnu();
        header.set_size(length);
        header.set_mode(0o600);
        archive.append_data(&mut header, name, content)
    };
    for name in PARTS {
        if name == PROCESSOR {
            append(name, processor.len() as u64, &mut processor.as_bytes())?;
        } else {
            let mut file = File::open(captured.dir.join(name))?;
            append(name, file.metadata()?.len(), &mut file)?;
        }
    }
    archive.into_inner()?.finish()?.flush()
}

/// What an archive says of the memory in it, before its larger parts.
struct Said {
    about: About,
    processor: String,
}

/// Makes the folder of a memory of its archive; whether it may be is asked before what is large.
fn unpack(archive: &Path, into: &Path, may: impl FnOnce(&Said) -> Result<()>) -> Result<()> {
    let bad = |why: &str| EngineError::Transient(format!("what came is no memory: {why}"));
    let mut archive =
        tar::Archive::new(zstd::Decoder::new(File::open(archive).map_err(transient)?).map_err(transient)?);
    // Raw: what the library itself reads of an entry, as a name that is long, is bounded by nothing.
    let mut entries = archive.entries().map_err(transient)?.raw(true);
    let mut next = |name: &str, most: u64| {
        let entry = entries.next().ok_or_else(|| bad("it ends too early"))?.map_err(transient)?;
        let is_it = entry.header().entry_type().is_file() && &*entry.path_bytes() == name.as_bytes();
        if is_it && entry.size() <= most { Ok(entry) } else { Err(bad(name)) }
    };
    std::fs::create_dir(into).map_err(transient)?;
    let (mut about, mut processor) = (Vec::new(), String::new());
    next(ABOUT, SAID)?.read_to_end(&mut about).map_err(transient)?;
    next(PROCESSOR, SAID)?.read_to_string(&mut processor).map_err(transient)?;
    let said = Said { about: serde_json::from_slice(&about).map_err(|error| bad(&error.to_string()))?, processor };
    may(&said)?;
    let memory = u64::try_from(said.about.memory_mb).unwrap_or(0) << 20;
    for (name, most) in [("state", STATE), ("memory", memory)] {
        let mut entry = next(name, most)?;
        write_sparse(&mut entry, &into.join(name)).map_err(transient)?;
    }
    said.about.write(&Captured { dir: into.to_path_buf() })?;
    File::open(into).and_then(|dir| dir.sync_all()).map_err(transient)
}

/// Writes a file with a hole wherever a piece of it is zero.
fn write_sparse(content: &mut impl Read, path: &Path) -> io::Result<()> {
    let (mut file, mut piece, mut length) = (File::create_new(path)?, vec![0; PIECE], 0);
    loop {
        let read = fill(content, &mut piece)?;
        if piece[..read].iter().any(|byte| *byte != 0) {
            file.seek(SeekFrom::Start(length))?;
            file.write_all(&piece[..read])?;
        }
        length += read as u64;
        if length % SYNCED == 0 {
            file.sync_data()?;
        }
        if read < PIECE {
            file.set_len(length)?;
            return file.sync_all();
        }
    }
}

/// Reads until a piece is full or nothing follows.
fn fill(content: &mut impl Read, piece: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < piece.len() {
        match content.read(&mut piece[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

impl QemuSandboxes {
    /// The archive of a memory: its length and what it hashes to.
    pub(super) async fn file_of_memory(&self, id: MemoryId) -> Result<ImageFile> {
        let captured = self.whole_memory(id)?;
        let processor = self.processor().await?;
        let (fingerprint, here) = (About::read(&captured).map(|about| about.fingerprint), processor.clone());
        let fingerprint = fingerprint.unwrap_or_default();
        let hashed = tokio::task::spawn_blocking(move || {
            let mut hashed = Hashed::default();
            pack(&captured, &processor, &mut hashed)?;
            Ok::<_, io::Error>((hashed.bytes, hex::encode(&hashed.hasher.finalize())))
        });
        let (bytes, sha256) = hashed.await.map_err(transient)?.map_err(transient)?;
        Ok(ImageFile { name: label(&fingerprint, &here), bytes, sha256 })
    }

    /// The archive of a memory, as it is made.
    pub(super) async fn pack_memory(&self, id: MemoryId) -> Result<Box<dyn Content>> {
        let captured = self.whole_memory(id)?;
        let processor = self.processor().await?;
        let (read, write) = io::pipe().map_err(transient)?;
        tokio::task::spawn_blocking(move || {
            if let Err(error) = pack(&captured, &processor, write) {
                // Whoever reads less than was said knows that it broke off.
                tracing::debug!(memory = %id, %error, "a memory is not sent to its end");
            }
        });
        Ok(Box::new(tokio::fs::File::from_std(File::from(OwnedFd::from(read)))))
    }

    /// Makes room for a memory: nothing of another try is left, and the host's disk has room for it.
    pub(super) async fn make_room_for_memory(&self, id: MemoryId, file: &ImageFile) -> Result<bool> {
        if self.whole_memory(id).is_ok() {
            return Ok(false);
        }
        // Nobody carries what is refused in the end.
        loads(&file.name, &label(&self.fingerprint().await?, &self.processor().await?))?;
        // What is there and not whole is nobody's.
        remove(&self.places.memory(id).dir).await?;
        for path in under_way(&self.places.memories(), &format!(".{id}.")) {
            remove(&path).await?;
        }
        let free = self.capacity().await?.disk_bytes;
        if i64::try_from(file.bytes).map_or(true, |bytes| bytes > free) {
            return Err(EngineError::NoCapacity(DISK_FULL.into()));
        }
        tokio::fs::create_dir_all(self.places.memories()).await.map_err(transient)?;
        Ok(true)
    }

    /// Receives a memory that its machines can load.
    pub(super) async fn receive_memory(&self, id: MemoryId, file: &ImageFile, content: Box<dyn Content>) -> Result<()> {
        let memories = self.places.memories();
        let [part, folder] = [(); 2].map(|()| memories.join(format!(".{id}.{}{TRAVELLING}", Uuid::now_v7())));
        let received = async {
            receive(&part, file, content).await?;
            fault::point("memory.travel.received").await.map_err(transient)?;
            self.open_memory(&part, &folder).await
        };
        let received = received.await;
        // What stays goes with the next try.
        let _ = tokio::fs::remove_file(&part).await;
        if received.is_err() {
            let _ = tokio::fs::remove_dir_all(&folder).await;
        }
        received?;
        tokio::fs::rename(&folder, &self.places.memory(id).dir).await.map_err(|_| superseded())?;
        File::open(&memories).and_then(|dir| dir.sync_all()).map_err(transient)
    }

    async fn open_memory(&self, archive: &Path, folder: &Path) -> Result<()> {
        let (fingerprint, here) = (self.fingerprint().await?, self.processor().await?);
        let free = self.capacity().await?.disk_bytes;
        let (archive, folder) = (archive.to_path_buf(), folder.to_path_buf());
        let may = move |said: &Said| fits(said, &fingerprint, &here, free);
        tokio::task::spawn_blocking(move || unpack(&archive, &folder, may)).await.map_err(transient)?
    }

    /// The memory that was captured whole, or travelled whole.
    fn whole_memory(&self, id: MemoryId) -> Result<Captured> {
        let captured = self.places.memory(id);
        match About::read(&captured) {
            Some(_) => Ok(captured),
            None => Err(EngineError::Transient("there is no such memory".into())),
        }
    }

    /// On what its machines run: emulated ones have the same processor everywhere.
    async fn processor(&self) -> Result<String> {
        Ok(match self.accel().await? {
            Accel::Tcg => "emulated".to_owned(),
            Accel::Kvm => accel::processor(),
        })
    }

    /// Removes what nobody brings any more.
    pub(super) fn forget_memory_travels(&self) {
        travelling::forget(&self.places.memories(), ".");
    }
}

/// Names the machines that a memory loads into: what they boot, in which QEMU, on which processor.
fn label(fingerprint: &str, processor: &str) -> String {
    format!("{fingerprint}.{}", &hex::encode(&Sha256::digest(processor))[..16])
}

/// Whether a memory with this label loads into machines with that one.
fn loads(memory: &str, here: &str) -> Result<()> {
    let ((fingerprint, processor), here) = (memory.split_once('.').unwrap_or_default(), here.split_once('.'));
    match here.unwrap_or_default() {
        (other, _) if other != fingerprint => {
            Err(EngineError::Permanent("the other host's sandboxes boot something else, or in another QEMU".into()))
        }
        (_, other) if other != processor => Err(EngineError::Permanent("the other host has another processor".into())),
        _ => Ok(()),
    }
}

/// Whether a memory that is said to be so loads into machines of this host, and has room.
fn fits(said: &Said, fingerprint: &str, processor: &str, free: i64) -> Result<()> {
    loads(&label(&said.about.fingerprint, &said.processor), &label(fingerprint, processor))?;
    if said.about.memory_mb.saturating_mul(1 << 20) > free {
        return Err(EngineError::NoCapacity(DISK_FULL.into()));
    }
    Ok(())
}

#[cfg(test)]
#[path = "memory_travel/tests.rs"]
mod tests;
