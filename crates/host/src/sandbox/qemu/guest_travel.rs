//! The guest as it goes to other hosts, and comes from them.
//!
//! ```text
//! sandbox/.guest.<travel>.travelling/   what has come so far; a file bears its name once it hashes to what it is to. Then
//!                                       that which was there before, until it is removed
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use berth_domain::host::guest::MANIFEST;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use uuid::Uuid;

use super::guest::Guest;
use super::travelling::{self, TRAVELLING, under_way};
use super::{QemuSandboxes, remove};
use crate::error::transient;
use crate::received::{receive, superseded};
use crate::sandbox::{GuestArrival, ImageFile, SandboxEngine};
use crate::vm::Content;
use crate::{EngineError, Result, fault};

/// How the names of the folders begin of what is under way.
const GUEST: &str = ".guest.";
/// Most bytes of a file: a kernel and an initrd take some ten MiB.
const MOST_BYTES: u64 = 1 << 30;

impl QemuSandboxes {
    fn travelling(&self, travel: Uuid) -> PathBuf {
        self.places.root().join(format!("{GUEST}{travel}{TRAVELLING}"))
    }

    /// What machines boot, if it is this.
    fn guest_of(&self, version: &str) -> Result<Arc<Guest>> {
        let other = || EngineError::Transient("the host has another guest by now".into());
        Some(self.guest()?).filter(|guest| guest.hash() == version && guest.vouches()).ok_or_else(other)
    }

    /// The files of a guest, each with its length and hash.
    pub(super) fn files_of_guest(&self, version: &str) -> Result<Vec<ImageFile>> {
        let guest = self.guest_of(version)?;
        // The manifest comes last: a target that has it has everything.
        let named = guest.files().iter().map(|(name, sha256)| (name.as_str(), sha256.as_str()));
        let file = |(name, sha256): (&str, &str)| {
            let bytes = guest.file(name).metadata().map_err(transient)?.len();
            Ok(ImageFile { name: name.to_owned(), bytes, sha256: sha256.to_owned() })
        };
        named.chain([(MANIFEST, version)]).map(file).collect()
    }

    /// Opens a file of a guest.
    pub(super) async fn open_guest_file(&self, version: &str, name: &str) -> Result<Box<dyn Content>> {
        let guest = self.guest_of(version)?;
        if name != MANIFEST && !guest.files().contains_key(name) {
            return Err(EngineError::Permanent("the guest has no such file".into()));
        }
        Ok(Box::new(tokio::fs::File::open(guest.file(name)).await.map_err(transient)?))
    }

    /// Makes room for a guest: nothing of another try is left, and the host's disk has room for all of it.
    pub(super) async fn make_room_for_guest(&self, arrival: &GuestArrival) -> Result<()> {
        arrival.check().map_err(EngineError::Permanent)?;
        for dir in under_way(self.places.root(), GUEST) {
            remove(&dir).await?;
        }
        let free = self.capacity().await?.disk_bytes;
        if i64::try_from(arrival.bytes()).map_or(true, |bytes| bytes > free) {
            return Err(EngineError::NoCapacity("the host's disk has no room for what sandboxes boot".into()));
        }
        tokio::fs::create_dir_all(self.travelling(arrival.travel)).await.map_err(transient)
    }

    /// Receives a file of a guest that is expected.
    pub(super) async fn receive_guest_file(
        &self,
        travel: Uuid,
        file: &ImageFile,
        content: Box<dyn Content>,
    ) -> Result<()> {
        if !file.is_plain() || file.bytes > MOST_BYTES {
            return Err(EngineError::Permanent("this is no file of a guest".into()));
        }
        let dir = self.travelling(travel);
        let part = dir.join(format!(".{}", file.name));
        let received = receive(&part, file, content).await;
        if received.is_err() {
            // What stays goes with the next try.
            let _ = tokio::fs::remove_file(&part).await;
        }
        received?;
        fault::point("guest.travel.received").await.map_err(transient)?;
        tokio::fs::rename(&part, dir.join(&file.name)).await.map_err(|_| superseded())
    }

    /// Puts what came into the guest's place, where at each moment a whole one is.
    pub(super) async fn place_guest(&self, arrival: &GuestArrival) -> Result<()> {
        arrival.check().map_err(EngineError::Permanent)?;
        let dir = self.travelling(arrival.travel);
        if self.guest().is_ok_and(|guest| guest.hash() == arrival.version) {
            // It came before, or was put here meanwhile.
            return remove(&dir).await;
        }
        if !dir.join(MANIFEST).exists() {
            return Err(superseded());
        }
        let came = dir.clone();
        let found = tokio::task::spawn_blocking(move || Guest::load(&came)).await.map_err(transient)?;
        // What the manifest names is there, and hashes to what it says.
        if !found.is_ok_and(|found| found.hash() == arrival.version && found.vouches()) {
            return Err(EngineError::Permanent("what came is not the guest that was expected".into()));
        }
        std::fs::File::open(&dir).and_then(|dir| dir.sync_all()).map_err(transient)?;
        fault::point("guest.travel.half").await.map_err(transient)?;
        self.swap_guest(&dir).await
    }

    async fn swap_guest(&self, dir: &Path) -> Result<()> {
        let whole = self.places.guest();
        // Whoever has begun to boot what was there has opened its files first.
        let moves = self.guests.moves().await;
        match renameat_with(CWD, dir, CWD, &whole, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // There was none.
            Err(Errno::NOENT) => tokio::fs::rename(dir, &whole).await.map_err(transient)?,
            Err(error) => {
                return Err(EngineError::Permanent(format!("{} cannot be replaced: {error}", whole.display())));
            }
        }
        drop(moves);
        fault::point("guest.travel.whole").await.map_err(transient)?;
        // What was there before.
        remove(dir).await
    }

    /// Removes what nobody brings any more.
    pub(super) fn forget_guest_travels(&self) {
        travelling::forget(self.places.root(), GUEST);
    }
}

#[cfg(test)]
pub(super) mod tests;
