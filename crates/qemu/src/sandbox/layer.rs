//! Layers of a disk: qcow2 files that hold what was written above another one.
//!
//! An empty layer is a header, one block of reference counts and a table of zeros, so it is written here
//! (some 20 µs) rather than by a program (some 20 ms). Source of the format: QEMU, docs/interop/qcow2.txt.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tokio::process::Command;
use uuid::Uuid;

use crate::disk::{flatten, run, sparse};
use crate::error::at;
use crate::host::tool;
use crate::{Error, Result};

/// Bytes of a cluster.
const CLUSTER: u64 = 1 << CLUSTER_BITS;
const CLUSTER_BITS: u32 = 16;
/// Bytes that one entry of the first table stands for: a table of 8-byte entries, each a cluster.
const PER_ENTRY: u64 = CLUSTER / 8 * CLUSTER;
const HEADER_BYTES: u32 = 104;
/// The header extension that names the format of the layer below.
const BACKING_FORMAT: u32 = 0xE279_2ACA;
/// Where the name of the layer below stands; the header and its extensions end before.
const NAME_AT: u64 = 256;
/// Longest name of a layer below, by the format.
const NAME_LONGEST: usize = 1023;
/// Features of new file systems: those of the platform's templates, which every guest knows.
const FEATURES: &str = "^orphan_file,^metadata_csum_seed";
/// Nothing is written that is known to be zero.
const ZEROED: &str = "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,nodiscard";

/// What QEMU calls a layer: at most 31 characters, one of them for the file below it, so
/// the id goes without its first digits (of its time).
pub fn node(id: Uuid) -> String {
    let text = id.simple().to_string();
    format!("l{}", &text[3..])
}

/// Makes an empty layer of `size_bytes` above the file `below`, which lies in the same folder, or above
/// nothing where the name is empty. A file that is there already is left as it is: it was written whole,
/// under another name.
pub fn create(dst: &Path, below: &str, size_bytes: u64) -> Result<()> {
    if dst.exists() {
        return Ok(());
    }
    if below.len() > NAME_LONGEST {
        return Err(Error::Invalid("the name of the layer below is too long".into()));
    }
    let tmp = temporary(dst);
    let file = File::create(&tmp).map_err(at("cannot create", &tmp))?;
    fill(&file, below, size_bytes).map_err(at("cannot write", &tmp))?;
    std::fs::rename(&tmp, dst).map_err(at("cannot rename", &tmp))
}

/// Makes a layer above nothing, with an empty file system on it. Nothing of a user's is read or written.
pub async fn create_root(dst: &Path, size_bytes: u64) -> Result<()> {
    let raw = dst.with_extension("raw");
    sparse(&raw, size_bytes).await?;
    let mut command = Command::new(tool("mkfs.ext4")?);
    run(command.args(["-q", "-F", "-m", "1", "-O", FEATURES, "-E", ZEROED]).arg(&raw)).await?;
    flatten(&raw, "raw", dst).await?;
    tokio::fs::remove_file(&raw).await.map_err(at("cannot remove", &raw))
}

fn temporary(dst: &Path) -> PathBuf {
    let mut name = dst.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Clusters: 0 the header, 1 the table of reference counts, 2 its one block, then the first table.
fn fill(file: &File, below: &str, size_bytes: u64) -> std::io::Result<()> {
    let entries = size_bytes.div_ceil(PER_ENTRY).max(1);
    let table_clusters = (entries * 8).div_ceil(CLUSTER);
    let clusters = 3 + table_clusters;
    file.set_len(clusters * CLUSTER)?;
    file.write_all_at(&header(below, size_bytes, entries), 0)?;
    file.write_all_at(below.as_bytes(), NAME_AT)?;
    file.write_all_at(&(2 * CLUSTER).to_be_bytes(), CLUSTER)?;
    let counts: Vec<u8> = (0..clusters).flat_map(|_| 1u16.to_be_bytes()).collect();
    file.write_all_at(&counts, 2 * CLUSTER)
}

fn header(below: &str, size_bytes: u64, entries: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    let mut put = |part: &[u8]| bytes.extend_from_slice(part);
    put(b"QFI\xfb");
    put(&3u32.to_be_bytes());
    put(&if below.is_empty() { 0 } else { NAME_AT }.to_be_bytes());
    put(&u32::try_from(below.len()).unwrap_or(0).to_be_bytes());
    put(&CLUSTER_BITS.to_be_bytes());
    put(&size_bytes.to_be_bytes());
    // No encryption; the first table and its place; the table of counts, its place and clusters.
    put(&0u32.to_be_bytes());
    put(&u32::try_from(entries).unwrap_or(u32::MAX).to_be_bytes());
    put(&(3 * CLUSTER).to_be_bytes());
    put(&CLUSTER.to_be_bytes());
    put(&1u32.to_be_bytes());
    // No snapshots inside; no features; counts of 2^4 bits.
    put(&[0; 12]);
    put(&[0; 24]);
    put(&4u32.to_be_bytes());
    put(&HEADER_BYTES.to_be_bytes());
    if !below.is_empty() {
        put(&BACKING_FORMAT.to_be_bytes());
        put(&5u32.to_be_bytes());
        put(b"qcow2\0\0\0");
    }
    put(&[0; 8]);
    bytes
}

/// The size a layer has for its guest, from its header, in bytes.
pub fn size(path: &Path) -> Result<u64> {
    let file = File::open(path).map_err(at("cannot open", path))?;
    let mut bytes = [0; 32];
    file.read_exact_at(&mut bytes, 0).map_err(at("cannot read", path))?;
    let (magic, size) = (&bytes[..4], &bytes[24..32]);
    match <[u8; 8]>::try_from(size) {
        Ok(size) if magic == b"QFI\xfb" => Ok(u64::from_be_bytes(size)),
        _ => Err(Error::Damaged("a layer has no header".into())),
    }
}

/// Makes what a layer holds survive the death of the host.
pub fn sync(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(at("cannot open", path))?;
    file.sync_all().map_err(at("cannot sync", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_written_is_what_qemu_reads() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base.qcow2");
        for gib in [1u64, 20, 100, 2048] {
            let bytes = gib << 30;
            let _ = std::fs::remove_file(&base);
            let mut make = Command::new("qemu-img");
            make.args(["create", "-q", "-f", "qcow2"]).arg(&base).arg(bytes.to_string());
            assert!(make.status().unwrap().success());
            let top = dir.path().join(format!("top-{gib}.qcow2"));
            create(&top, "base.qcow2", bytes).unwrap();
            assert_eq!(size(&top).unwrap(), bytes);
            let check = Command::new("qemu-img").args(["check", "-q", "-f", "qcow2"]).arg(&top).output().unwrap();
            assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
            let info = Command::new("qemu-img").args(["info", "--output=json", "-f", "qcow2"]).arg(&top).output();
            let info: serde_json::Value = serde_json::from_slice(&info.unwrap().stdout).unwrap();
            assert_eq!(info["virtual-size"], bytes);
            assert_eq!(info["backing-filename"], "base.qcow2");
            assert_eq!(info["backing-filename-format"], "qcow2");
        }
    }

    #[test]
    fn a_layer_may_lie_on_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let lowest = dir.path().join("lowest.qcow2");
        create(&lowest, "", 1 << 30).unwrap();
        let check = Command::new("qemu-img").args(["check", "-q", "-f", "qcow2"]).arg(&lowest).output().unwrap();
        assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    }

    #[test]
    fn a_layer_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top.qcow2");
        assert!(create(&top, &"x".repeat(1024), 1 << 30).is_err());
        std::fs::write(&top, b"there").unwrap();
        create(&top, "base.qcow2", 1 << 30).unwrap();
        assert_eq!(std::fs::read(&top).unwrap(), b"there");
        assert!(size(&top).is_err());
    }

    #[test]
    fn nodes_differ_and_are_short() {
        let (a, b) = (Uuid::now_v7(), Uuid::now_v7());
        assert_ne!(node(a), node(b));
        assert_eq!(node(a).len(), 30);
    }
}
