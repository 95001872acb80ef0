//! What root disks of a store boot with: the manifest, the kernel and the initrd of the image that each was made of.
//!
//! A root disk keeps the kernel that it was made with, because the modules on it belong to that. A host that starts its machine
//! may never have had that edition of the image. So these files lie beside the disk, as `<disk id>.boot`: an archive of some
//! MB, as an image of RBD. A host keeps what it fetched among its bases, for as long as it uses it.

use std::fmt::Display;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result as IoResult};
use std::path::{Path, PathBuf};

use berth_domain::ids::DiskId;
use berth_qemu::image::{MANIFEST, MOST_OF_MANIFEST, Manifest};
use berth_qemu::rbd::Pool;
use berth_qemu::{Error as QemuError, disk};

use super::QemuEngine;
use super::bases::{NO_DISK, is_whole};
use super::shared::pool_of;
use crate::error::{qemu_failed, transient};
use crate::generation::remove_folder;
use crate::vm::{DiskSnapshotSpec, Store};
use crate::{EngineError, Result};

/// Most files of an archive.
const MOST: usize = 8;
/// Most bytes of one: who has the pool's key may have written it.
const MOST_BYTES: u64 = 512 << 20;

impl QemuEngine {
    /// Lays beside a root disk what its image boots with, as that is now.
    pub(super) async fn send_boot(&self, pool: &Pool, id: DiskId, base: &Path, manifest: &Manifest) -> Result<()> {
        let file = self.staged(id, "boot")?;
        let (from, to, manifest) = (base.to_path_buf(), file.clone(), manifest.clone());
        let packed = tokio::task::spawn_blocking(move || pack(&from, manifest, &to));
        packed.await.map_err(transient)?.map_err(of_archive)?;
        pool.import(&file, &boot_of(id)).await.map_err(qemu_failed)?;
        disk::remove(&file).await.map_err(qemu_failed)
    }

    /// The folder of what a root disk boots with, fetched if this host does not have it.
    pub(super) async fn shared_base(&self, id: DiskId, store: &Store) -> Result<PathBuf> {
        self.fetch_boot(id, self.staged(id, "boot")?, &id.to_string(), store).await
    }

    /// The same for a copy of a root disk, which may outlive that.
    pub(super) async fn base_of_copy(&self, copy: &DiskSnapshotSpec, store: &Store) -> Result<PathBuf> {
        self.fetch_boot(copy.disk, self.staged(copy.id, "boot")?, &boot_of(copy.id), store).await
    }

    async fn fetch_boot(&self, id: DiskId, file: PathBuf, folder: &str, store: &Store) -> Result<PathBuf> {
        let base = self.bases().join(folder);
        if is_whole(&base) {
            return Ok(base);
        }
        let coming = self.bases().join(format!("{folder}.coming"));
        disk::remove(&file).await.map_err(qemu_failed)?;
        pool_of(store)?.export(&boot_of(id), &file, MOST_BYTES).await.map_err(qemu_failed)?;
        let (from, to) = (file.clone(), base.clone());
        let unpacked = tokio::task::spawn_blocking(move || unpack(&from, &coming, &to, MOST_BYTES));
        unpacked.await.map_err(transient)?.map_err(of_archive)?;
        disk::remove(&file).await.map_err(qemu_failed)?;
        Ok(base)
    }

    /// Removes what this host fetched of that; fine where it did not.
    pub(super) async fn forget_boot(&self, id: DiskId) -> Result<()> {
        remove_folder(&self.bases().join(id.to_string())).await.map_err(transient)
    }
}

/// What the image of RBD is called of what a disk, or a snapshot of one, boots with.
pub(super) fn boot_of(id: impl Display) -> String {
    format!("{id}.boot")
}

/// An archive that is none does not become one.
fn of_archive(error: Error) -> EngineError {
    match error.kind() {
        ErrorKind::InvalidData => qemu_failed(QemuError::Damaged(error.to_string())),
        _ => transient(error),
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("what the disk boots with {what}"))
}

/// Makes the archive of what a base boots with.
fn pack(base: &Path, mut manifest: Manifest, to: &Path) -> IoResult<()> {
    manifest.sha256.remove(&manifest.disk);
    let files: Vec<_> = manifest.files().into_iter().filter(|name| *name != manifest.disk).map(str::to_owned).collect();
    NO_DISK.clone_into(&mut manifest.disk);
    // Nobody else begins with what its owner has running.
    manifest.waits = false;
    let mut archive = tar::Builder::new(File::create(to)?);
    for name in files {
        append(&mut archive, &name, &mut File::open(base.join(&name))?)?;
    }
    append_bytes(&mut archive, NO_DISK, b"")?;
    append_bytes(&mut archive, MANIFEST, &serde_json::to_vec_pretty(&manifest)?)?;
    let file = archive.into_inner()?;
    if file.metadata()?.len() > MOST_BYTES {
        return Err(damaged("is larger than it may be"));
    }
    file.sync_all()
}

fn append(archive: &mut tar::Builder<File>, name: &str, file: &mut File) -> IoResult<()> {
    let bytes = file.metadata()?.len();
    archive.append_data(&mut header(bytes), name, file.take(bytes))
}

fn append_bytes(archive: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> IoResult<()> {
    archive.append_data(&mut header(bytes.len() as u64), name, bytes)
}

fn header(bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes);
    header.set_mode(0o644);
    header
}

/// Makes a base of an archive, whole or not at all, and of at most so many bytes.
fn unpack(archive: &Path, coming: &Path, to: &Path, mut most: u64) -> IoResult<()> {
    match std::fs::remove_dir_all(coming) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => std::fs::create_dir_all(coming)?,
    }
    let mut archive = tar::Archive::new(File::open(archive)?);
    // Raw: what says something of the next entry would be held in memory, however long it is.
    for (count, entry) in archive.entries()?.raw(true).enumerate() {
        let entry = entry?;
        let name = plain(&entry).filter(|_| count < MOST).ok_or_else(|| damaged("is damaged"))?;
        let most_here = if name == MANIFEST { most.min(MOST_OF_MANIFEST) } else { most };
        if entry.size() > most_here {
            return Err(damaged("is larger than it may be"));
        }
        let mut file = File::create_new(coming.join(name))?;
        most -= std::io::copy(&mut entry.take(most_here), &mut file)?;
        file.sync_all()?;
    }
    File::open(coming)?.sync_all()?;
    match std::fs::remove_dir_all(to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => std::fs::rename(coming, to),
    }
}

/// The name of a file that lies in no folder.
fn plain(entry: &tar::Entry<'_, impl Read>) -> Option<String> {
    let path = entry.path().ok()?;
    let name = path.to_str().filter(|name| entry.header().entry_type().is_file() && !name.contains('/'))?;
    (!matches!(name, "" | "." | "..")).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(dir: &Path) -> Manifest {
        std::fs::create_dir(dir).unwrap();
        let manifest = serde_json::json!({
            "id": "micro", "name": "Micro", "os": "linux", "version": "1", "login_user": "root", "disk": "disk.qcow2",
            "boot": {"kind": "kernel", "kernel": "vmlinux", "initrd": "initrd", "cmdline": "quiet"},
            "virtual_size_bytes": 1, "min_memory_mb": 96, "waits": true,
            "sha256": {"disk.qcow2": "of the disk", "vmlinux": "of the kernel"},
        });
        std::fs::write(dir.join(MANIFEST), manifest.to_string()).unwrap();
        for (name, content) in [("disk.qcow2", "a disk"), ("vmlinux", "a kernel"), ("initrd", "an initrd")] {
            std::fs::write(dir.join(name), content).unwrap();
        }
        Manifest::load(dir).unwrap()
    }

    #[test]
    fn what_a_disk_boots_with_comes_back_without_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let [from, archive, coming, to] = ["from", "archive", "coming", "to"].map(|name| dir.path().join(name));
        let manifest = base(&from);
        pack(&from, manifest, &archive).unwrap();
        // An image of RBD may be longer than its archive.
        File::options().append(true).open(&archive).unwrap().set_len(1 << 20).unwrap();
        std::fs::create_dir(&coming).unwrap();
        std::fs::write(coming.join("vmlinux"), "left by a crash").unwrap();
        for _ in 0..2 {
            unpack(&archive, &coming, &to, MOST_BYTES).unwrap();
        }
        let manifest = Manifest::load(&to).unwrap();
        assert_eq!((manifest.disk.as_str(), manifest.waits, manifest.sha256.len()), (NO_DISK, false, 1));
        assert_eq!(std::fs::read_to_string(to.join("vmlinux")).unwrap(), "a kernel");
        assert_eq!(std::fs::read_to_string(to.join(NO_DISK)).unwrap(), "");
        assert!(!coming.exists());
    }

    #[test]
    fn an_archive_has_plain_files_alone() {
        let dir = tempfile::tempdir().unwrap();
        let [archive, coming, to] = ["archive", "coming", "to"].map(|name| dir.path().join(name));
        for (name, kind) in [("a/b", tar::EntryType::Regular), ("link", tar::EntryType::Symlink)] {
            let mut builder = tar::Builder::new(File::create(&archive).unwrap());
            let mut header = header(0);
            header.set_entry_type(kind);
            builder.append_data(&mut header, name, &b""[..]).unwrap();
            builder.into_inner().unwrap();
            assert!(unpack(&archive, &coming, &to, MOST_BYTES).is_err() && !to.exists(), "{name}");
        }
    }

    #[test]
    fn an_archive_takes_no_more_than_it_may() {
        let dir = tempfile::tempdir().expect("a folder");
        let [archive, coming, to] = ["archive", "coming", "to"].map(|name| dir.path().join(name));
        let unpacked = |files: &[(&str, usize)], most| {
            let mut builder = tar::Builder::new(File::create(&archive).expect("a file"));
            for (name, bytes) in files {
                append_bytes(&mut builder, name, &vec![0; *bytes]).expect("an archive");
            }
            builder.into_inner().expect("an archive");
            unpack(&archive, &coming, &to, most).map_err(|error| error.kind())
        };
        let refused = Err(ErrorKind::InvalidData);
        assert_eq!(unpacked(&[("kernel", 100), ("initrd", 100)], 200), Ok(()));
        assert_eq!(unpacked(&[("kernel", 100), ("initrd", 100)], 199), refused);
        assert_eq!(unpacked(&[(MANIFEST, 1 << 20)], MOST_BYTES), Ok(()));
        assert_eq!(unpacked(&[(MANIFEST, (1 << 20) + 1)], MOST_BYTES), refused);
        assert_eq!(unpacked(&[(&"long".repeat(40), 1)], MOST_BYTES), refused, "its name is an entry before it");
    }
}
