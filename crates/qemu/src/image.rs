//! Images: what one consists of, and taking in foreign ones.
//!
//! An image is a folder with `image.json` and the files it names. A foreign image has nothing executed
//! on the host: its header is read, it is converted, and its own boot loader starts it in a machine.

mod header;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::header::Header;
use crate::error::at;
use crate::foreign::{self, Bounds, Target};
use crate::machine::{Boot, Drive};
use crate::{Error, Result};

/// The file that describes an image.
pub const MANIFEST: &str = "image.json";
/// Most bytes of that file: its recipe's have some hundred.
pub const MOST_OF_MANIFEST: u64 = 1 << 20;
/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 20;
/// Bytes of a GiB.
const GIB: u64 = 1 << 30;
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
    /// Whether a machine of it can wait for its owner, so that others begin with its memory.
    #[serde(default)]
    pub waits: bool,
    /// Whether a row of a project owns it, which alone says who sees it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_owned: bool,
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
    /// Largest size for a guest, in bytes.
    pub virtual_bytes: u64,
}

impl Manifest {
    /// Reads the manifest of a folder. The files it names must lie in that folder, and it says what those hash to and no others:
    /// who wrote it may be somebody else than who made the folder.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(MANIFEST);
        let file = std::fs::File::open(&path).map_err(at("cannot read", &path))?;
        let mut bytes = Vec::new();
        file.take(MOST_OF_MANIFEST + 1).read_to_end(&mut bytes).map_err(at("cannot read", &path))?;
        if bytes.len() as u64 > MOST_OF_MANIFEST {
            return Err(Error::Damaged(format!("image.json has more than {MOST_OF_MANIFEST} bytes")));
        }
        let manifest: Self = serde_json::from_slice(&bytes).map_err(|e| Error::Damaged(format!("image.json: {e}")))?;
        let plain =
            |name: &&str| !name.is_empty() && !name.contains('/') && **name != *".." && dir.join(name).is_file();
        let files = manifest.files();
        if let Some(name) = files.iter().find(|name| !plain(name)) {
            return Err(Error::Damaged(format!("the image has no file '{name}'")));
        }
        if let Some(name) = manifest.sha256.keys().find(|name| !files.contains(&name.as_str())) {
            return Err(Error::Damaged(format!("image.json has a hash of '{name}', which is no file of the image")));
        }
        Ok(manifest)
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
            let path = dir.join(name);
            let mut file = std::fs::File::open(&path).map_err(at("cannot open", &path))?;
            if hash(&mut file).map_err(at("cannot read", &path))? != *want {
                return Err(Error::Damaged(format!("the image's file '{name}' is not what it was made as")));
            }
        }
        Ok(())
    }
}

/// Takes in a foreign image, qcow2 or raw, below `images`: one whose file has no more bytes than what it becomes may have.
pub async fn import(file: &Path, images: &Path, import: &Import, bounds: &Bounds) -> Result<Manifest> {
    let (path, wanted) = (file.to_path_buf(), import.sha256.clone());
    let most = [bounds.file_bytes, import.virtual_bytes];
    let (header, digest) = blocking(move || judge(&path, wanted.as_deref(), most)).await?;
    let (staging, dst) = (images.join(format!(".{}.tmp", import.id)), images.join(&import.id));
    // What an interrupted import left serves nobody.
    remove_tree(&staging).await?;
    tokio::fs::create_dir_all(&staging).await.map_err(at("cannot create", &staging))?;
    let manifest = manifest(import, digest, header.virtual_size);
    let finished = async {
        convert(file, header.format, &staging.join(&manifest.disk), bounds).await?;
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

/// Machines of other users read the image.
async fn convert(file: &Path, format: &'static str, disk: &Path, bounds: &Bounds) -> Result<()> {
    let drive = Drive { path: file.to_owned(), format, bases: Vec::new(), serial: String::new() };
    let target = Target { file: disk, format: "qcow2", mode: 0o644 };
    foreign::convert(&drive, target, bounds).await.map_err(|error| match error {
        Error::Timeout(_) => {
            Error::Invalid(format!("converting the image took longer than {} s", bounds.time.as_secs()))
        }
        other => other,
    })
}

/// What a foreign disk of data says of itself, qcow2 or raw.
///
/// # Errors
/// `Invalid`, with a sentence for its sender, where it is no such disk, names other files, or has more than so many bytes for a
/// guest.
pub fn data(file: &Path, virtual_bytes: u64) -> Result<Header> {
    let header = header::read_data(&header::open(file)?)?;
    if header.virtual_size > virtual_bytes {
        let (found, most) = (header.virtual_size.div_ceil(GIB), virtual_bytes / GIB);
        return Err(Error::Invalid(format!("the file's disk has {found} GiB, more than the {most} GiB of this one")));
    }
    Ok(header)
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
        waits: false,
        is_owned: false,
        sha256: BTreeMap::new(),
    }
}

/// What the image says of itself, and its hash; refuses one that is larger than it may be or not what was given.
fn judge(path: &Path, wanted: Option<&str>, [file_bytes, virtual_bytes]: [u64; 2]) -> Result<(Header, String)> {
    let mut file = header::open(path)?;
    let header = header::read(&file)?;
    let length = file.metadata().map_err(at("cannot look at", path))?.len();
    for (bytes, most, what) in
        [(length, file_bytes, "the image's file has"), (header.virtual_size, virtual_bytes, "the image's disk has")]
    {
        if bytes > most {
            return Err(Error::Invalid(format!("{what} {bytes} bytes, more than the {most} that are taken in")));
        }
    }
    let digest = hash(&mut file).map_err(at("cannot read", path))?;
    if wanted.is_some_and(|wanted| !wanted.eq_ignore_ascii_case(&digest)) {
        return Err(Error::Invalid(format!("the image's SHA-256 is {digest}, not what was given")));
    }
    Ok((header, digest))
}

/// What a file hashes to, in hexadecimal.
pub fn hash(file: &mut std::fs::File) -> std::io::Result<String> {
    hash_while(file, || true)
}

/// The same, as long as it is wanted.
///
/// # Errors
/// `Interrupted` where it is wanted no more, and where the file cannot be read.
pub fn hash_while(file: &mut std::fs::File, is_wanted: impl Fn() -> bool) -> std::io::Result<String> {
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        if !is_wanted() {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        hasher.update(&chunk[..read]);
    }
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
    use std::time::Duration;

    use tokio::process::Command;

    use super::*;
    use crate::disk::run;
    use crate::host::tool;

    fn options() -> Import {
        Import {
            id: "foreign".into(),
            name: "Foreign".into(),
            login_user: "root".into(),
            sha256: None,
            uefi: false,
            virtual_bytes: 1 << 30,
        }
    }

    /// Bounds of so many bytes, on a host that keeps nothing back.
    fn bounds(file_bytes: u64) -> Bounds {
        Bounds { file_bytes, kept: (".".into(), 0), time: Duration::from_mins(1), user: None }
    }

    #[tokio::test]
    async fn a_raw_disk_is_taken_in_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.img");
        let mut bytes = vec![0; 1 << 20];
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&file, &bytes).unwrap();
        let wrong = Import { sha256: Some("0".repeat(64)), ..options() };
        assert!(matches!(import(&file, dir.path(), &wrong, &bounds(1 << 20)).await, Err(Error::Invalid(_))));
        let right = Import {
            sha256: Some(hash(&mut std::fs::File::open(&file).unwrap()).unwrap().to_uppercase()),
            ..options()
        };
        import(&file, dir.path(), &right, &bounds(1 << 20)).await.unwrap();
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
        let error = import(&file, dir.path(), &options(), &bounds(1 << 20)).await.unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
        assert!(!dir.path().join("foreign").exists());
    }

    #[test]
    fn a_manifest_is_bounded_and_names_files_of_its_own_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("disk"), "").expect("a file");
        let loaded = |hashed: &str, blanks: usize| {
            let manifest = serde_json::json!({
                "id": "x", "name": "X", "os": "linux", "version": "1", "login_user": "root", "disk": "disk",
                "boot": {"kind": "firmware", "firmware": "bios"}, "virtual_size_bytes": 1, "min_memory_mb": 1,
                "sha256": {hashed: "0"},
            });
            let text = manifest.to_string() + &" ".repeat(blanks);
            std::fs::write(dir.path().join(MANIFEST), &text).expect("a file");
            (Manifest::load(dir.path()).map(drop).map_err(|error| error.to_string()), text.len() as u64)
        };
        let (fine, bytes) = loaded("disk", 0);
        assert_eq!(fine, Ok(()));
        for hashed in ["/dev/zero", "../disk", MANIFEST, ""] {
            let refused = loaded(hashed, 0).0.expect_err("it is no file of its own");
            assert!(refused.contains(&format!("'{hashed}', which is no file")), "{refused}");
        }
        let blanks = usize::try_from(MOST_OF_MANIFEST - bytes).expect("a number");
        assert_eq!(loaded("disk", blanks), (Ok(()), MOST_OF_MANIFEST));
        let refused = loaded("disk", blanks + 1).0.expect_err("it is too long");
        assert!(refused.contains("more than 1048576 bytes"), "{refused}");
    }

    #[tokio::test]
    async fn what_is_no_disk_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("tiny", vec![0; 10]), ("text", vec![b'x'; 4096])] {
            let file = dir.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            assert!(matches!(import(&file, dir.path(), &options(), &bounds(1 << 20)).await, Err(Error::Invalid(_))));
        }
    }

    /// An image whose every cluster is the same one of the file: its header, an empty table of counts, and tables that
    /// all lead to the last cluster.
    fn expanding() -> Vec<u8> {
        const CLUSTER: usize = 1 << 16;
        const COPIED: u64 = 1 << 63;
        let mut bytes = vec![0; 5 * CLUSTER];
        let mut word = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        for (at, value) in [(4, 3), (20, 16), (36, 1), (56, 1), (96, 4), (100, 104)] {
            word(at, value);
        }
        let mut long = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        long(24, 64 << 20);
        long(40, 2 * CLUSTER as u64);
        long(48, CLUSTER as u64);
        long(2 * CLUSTER, (3 * CLUSTER as u64) | COPIED);
        for entry in 0..CLUSTER / 8 {
            long(3 * CLUSTER + 8 * entry, (4 * CLUSTER as u64) | COPIED);
        }
        bytes[..4].copy_from_slice(b"QFI\xfb");
        bytes[4 * CLUSTER..].fill(0xab);
        bytes
    }

    #[tokio::test]
    async fn an_image_that_grows_when_it_is_converted_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("bomb.qcow2");
        std::fs::write(&file, expanding()).unwrap();
        let error = import(&file, dir.path(), &options(), &bounds(1 << 20)).await.unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        assert!(list(dir.path()).is_empty() && !dir.path().join(".foreign.tmp").exists());
        let ample = bounds(1 << 30);
        // Where it is the host that has no room, the image is not to blame.
        let full = Bounds { kept: (".".into(), u64::MAX), ..ample.clone() };
        let error = import(&file, dir.path(), &options(), &full).await.unwrap_err();
        assert!(matches!(error, Error::NoSpace), "{error}");
        import(&file, dir.path(), &options(), &ample).await.unwrap();
    }

    #[tokio::test]
    async fn sizes_are_bounded_on_both_sides() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.qcow2");
        let mut command = Command::new(tool("qemu-img").unwrap());
        run(command.args(["create", "-q", "-f", "qcow2"]).arg(&file).arg("1G")).await.unwrap();
        let length = std::fs::metadata(&file).unwrap().len();
        import(&file, dir.path(), &options(), &bounds(length)).await.unwrap();
        let smaller = Import { virtual_bytes: (1 << 30) - 1, ..options() };
        for (options, most) in [(smaller, 1 << 20), (options(), length - 1)] {
            let error = import(&file, dir.path(), &options, &bounds(most)).await.unwrap_err();
            assert!(error.to_string().contains("more than"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_conversion_that_takes_too_long_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.img");
        let mut bytes = vec![0; 1 << 20];
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&file, &bytes).unwrap();
        let none = Bounds { time: Duration::ZERO, ..bounds(1 << 20) };
        let error = import(&file, dir.path(), &options(), &none).await.unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }

    #[tokio::test]
    async fn pipes_are_refused_without_being_opened_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, file) = (dir.path().join("pipe"), dir.path().join("evil.qcow2"));
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
        let error = import(&pipe, dir.path(), &options(), &bounds(1 << 20)).await.unwrap_err();
        assert!(error.to_string().contains("plain file"), "{error}");
        // One that names a pipe for its data: to open it would be to wait for ever.
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(b"QFI\xfb");
        for (at, word) in [(4, 3_u32), (20, 16), (76, 4), (100, 104), (104, 0x4441_5441), (108, 4)] {
            header[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        header[112..116].copy_from_slice(b"pipe");
        std::fs::write(&file, &header).unwrap();
        let error = import(&file, dir.path(), &options(), &bounds(1 << 20)).await.unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
    }
}
