//! Images: what one consists of, and taking in foreign ones.
//!
//! An image is a folder with `image.json` and the files it names. A foreign image has nothing executed
//! on the host: its header is read, it is converted, and its own boot loader starts it in a machine.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::disk::{flatten, info};
use crate::error::at;
use crate::machine::Boot;
use crate::{Error, Result};

/// The file that describes an image.
pub const MANIFEST: &str = "image.json";
/// Memory that a foreign image is assumed to need, in MiB.
const FOREIGN_MEMORY_MB: u64 = 512;

/// What an image is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Its id.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system.
    pub os: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// The user that keys are installed for.
    pub login_user: String,
    /// How it boots.
    pub boot: BootKind,
    /// Its disk's file.
    pub disk: String,
    /// The disk's size for a guest, in bytes.
    pub virtual_size_bytes: u64,
    /// Least memory it boots with, in MiB.
    pub min_memory_mb: u64,
    /// What its files hash to.
    #[serde(default)]
    pub sha256: BTreeMap<String, String>,
}

/// How an image boots.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum BootKind {
    /// By a kernel beside its disk.
    Kernel {
        /// The kernel's file.
        kernel: String,
        /// The initrd's file.
        initrd: String,
        /// The command line.
        cmdline: String,
    },
    /// By its own boot loader.
    Firmware {
        /// `bios` or `uefi`.
        firmware: String,
    },
}

/// A foreign image to take in.
#[derive(Clone, Debug)]
pub struct Import {
    /// The id it gets.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// The user that keys are installed for.
    pub login_user: String,
    /// What its content has to hash to, in hexadecimal.
    pub sha256: Option<String>,
    /// Whether it boots by UEFI.
    pub uefi: bool,
}

impl Manifest {
    /// Reads the manifest of a folder. The files it names must lie in that folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let bytes = std::fs::read(&path).map_err(at("cannot read", &path))?;
        let manifest: Self = serde_json::from_slice(&bytes).map_err(|e| Error::Damaged(format!("image.json: {e}")))?;
        let plain =
            |name: &&str| !name.is_empty() && !name.contains('/') && **name != *".." && dir.join(name).is_file();
        match manifest.files().iter().find(|name| !plain(name)) {
            Some(name) => Err(Error::Damaged(format!("the image has no file '{name}'"))),
            None => Ok(manifest),
        }
    }

    /// The files beside the manifest.
    pub fn files(&self) -> Vec<&str> {
        match &self.boot {
            BootKind::Kernel { kernel, initrd, .. } => vec![&self.disk, kernel, initrd],
            BootKind::Firmware { .. } => vec![&self.disk],
        }
    }

    /// How a machine boots it, from the image's folder.
    pub fn boot(&self, dir: &Path) -> Boot {
        match &self.boot {
            BootKind::Kernel { kernel, initrd, cmdline } => {
                Boot::Kernel { kernel: dir.join(kernel), initrd: dir.join(initrd), cmdline: cmdline.clone() }
            }
            BootKind::Firmware { firmware } if firmware == "uefi" => Boot::Uefi,
            BootKind::Firmware { .. } => Boot::Bios,
        }
    }

    /// Compares the files with what they should hash to.
    pub fn verify(&self, dir: &Path) -> Result<()> {
        for (name, want) in &self.sha256 {
            if hash(&dir.join(name))? != *want {
                return Err(Error::Damaged(format!("the image's file '{name}' is not what it was made as")));
            }
        }
        Ok(())
    }
}

/// Takes in a foreign image, qcow2 or raw, below `images`.
pub async fn import(file: &Path, images: &Path, import: &Import) -> Result<Manifest> {
    let (path, wanted) = (file.to_path_buf(), import.sha256.clone());
    let (format, digest) = blocking(move || {
        let digest = hash(&path)?;
        if wanted.is_some_and(|wanted| !wanted.eq_ignore_ascii_case(&digest)) {
            return Err(Error::Invalid(format!("the image's SHA-256 is {digest}, not what was given")));
        }
        Ok((format(&path)?, digest))
    })
    .await?;
    let header = refuse_references(file, format).await?;
    let (staging, dst) = (images.join(format!(".{}.tmp", import.id)), images.join(&import.id));
    // What an interrupted import left serves nobody.
    remove_tree(&staging).await?;
    tokio::fs::create_dir_all(&staging).await.map_err(at("cannot create", &staging))?;
    let manifest = manifest(import, digest, header);
    let finished = async {
        flatten(file, format, &staging.join(&manifest.disk)).await?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::Invalid(e.to_string()))?;
        tokio::fs::write(staging.join(MANIFEST), text).await.map_err(at("cannot write", &staging))?;
        // An earlier try may have come this far; a damaged image is what is being replaced.
        remove_tree(&dst).await?;
        tokio::fs::rename(&staging, &dst).await.map_err(at("cannot place", &dst))
    };
    let outcome = finished.await;
    if outcome.is_err() {
        let _ = tokio::fs::remove_dir_all(&staging).await;
    }
    outcome.map(|()| manifest)
}

async fn remove_tree(dir: &Path) -> Result<()> {
    match tokio::fs::remove_dir_all(dir).await {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at("cannot remove", dir)(e)),
        _ => Ok(()),
    }
}

fn manifest(import: &Import, digest: String, virtual_size: u64) -> Manifest {
    Manifest {
        id: import.id.clone(),
        name: import.name.clone(),
        os: "linux".into(),
        version: digest,
        login_user: import.login_user.clone(),
        boot: BootKind::Firmware { firmware: if import.uefi { "uefi" } else { "bios" }.into() },
        disk: "disk.qcow2".into(),
        virtual_size_bytes: virtual_size,
        min_memory_mb: FOREIGN_MEMORY_MB,
        sha256: BTreeMap::new(),
    }
}

/// The size for a guest; refuses an image that would make QEMU open other files of the host.
async fn refuse_references(file: &Path, format: &str) -> Result<u64> {
    let header = info(file, format).await?;
    let external = header.specific.as_ref().and_then(|s| s.pointer("/data/data-file")).is_some();
    if header.backing.is_some() || external {
        return Err(Error::Invalid("the image builds on another file; flatten it with qemu-img convert first".into()));
    }
    Ok(header.virtual_size)
}

/// The format, by the first bytes: what is neither qcow2 nor a boot sector is refused.
fn format(file: &Path) -> Result<&'static str> {
    let mut head = [0; 512];
    let mut open = std::fs::File::open(file).map_err(at("cannot open", file))?;
    open.read_exact(&mut head).map_err(|_| Error::Invalid("the file is too small to be a disk image".into()))?;
    if head.starts_with(b"QFI\xfb") {
        Ok("qcow2")
    } else if head.ends_with(&[0x55, 0xaa]) {
        Ok("raw")
    } else {
        Err(Error::Invalid("the file is neither a qcow2 image nor a raw disk with a boot sector".into()))
    }
}

fn hash(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).map_err(at("cannot open", path))?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut hasher).map_err(at("cannot read", path))?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::Invalid(e.to_string()))?
}

/// The folders below `images` that hold an image.
pub fn list(images: &Path) -> Vec<(PathBuf, Manifest)> {
    let entries = std::fs::read_dir(images).into_iter().flatten().flatten();
    entries
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .filter_map(|entry| Some((entry.path(), Manifest::load(&entry.path()).ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use tokio::process::Command;

    use super::*;
    use crate::disk::run;
    use crate::host::tool;

    fn options() -> Import {
        Import { id: "foreign".into(), name: "Foreign".into(), login_user: "root".into(), sha256: None, uefi: false }
    }

    #[tokio::test]
    async fn a_raw_disk_is_taken_in_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.img");
        let mut bytes = vec![0; 1 << 20];
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&file, &bytes).unwrap();
        let wrong = Import { sha256: Some("0".repeat(64)), ..options() };
        assert!(matches!(import(&file, dir.path(), &wrong).await, Err(Error::Invalid(_))));
        let right = Import { sha256: Some(hash(&file).unwrap().to_uppercase()), ..options() };
        import(&file, dir.path(), &right).await.unwrap();
        let manifest = Manifest::load(&dir.path().join("foreign")).unwrap();
        assert_eq!(manifest.virtual_size_bytes, 1 << 20);
        assert_eq!(list(dir.path()).len(), 1);
    }

    #[tokio::test]
    async fn an_image_that_refers_to_the_host_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (base, file) = (dir.path().join("secret"), dir.path().join("evil.qcow2"));
        std::fs::write(&base, vec![1; 4096]).unwrap();
        let mut command = Command::new(tool("qemu-img").unwrap());
        run(command.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(&base).arg(&file)).await.unwrap();
        let error = import(&file, dir.path(), &options()).await.unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
        assert!(!dir.path().join("foreign").exists());
    }

    #[tokio::test]
    async fn what_is_no_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("tiny", vec![0; 10]), ("text", vec![b'x'; 4096])] {
            let file = dir.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            assert!(matches!(import(&file, dir.path(), &options()).await, Err(Error::Invalid(_))));
        }
    }
}
