//! Files of this machine as data disks.
//!
//! A file is read twice: what it hashes to is told before its first byte is sent, so that the service keeps nothing of what came
//! otherwise. How large the disk is to be stands in the file itself.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{DataDisk, ImportedDisk, ProjectClient};
use berth_domain::query::Params;
use berth_domain::vm::disk_import::ImportDisk;
use clap::Args;
use reqwest::Body;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use super::form::{Kind, SMALLEST, WORDS};
use crate::commands::sandbox::copy::pieces;
use crate::context::Context;
use crate::failure::Failure;
use crate::file_name;
use crate::made;
use crate::progress::{Meter, Progress};
use crate::size;
use crate::typed::{lines, retold};
use crate::wait::WaitArgs;

/// Most characters of a disk's name.
const NAME: usize = 20;
/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 20;
/// How a qcow2 begins, and where its size for a guest stands in it (`docs/interop/qcow2.txt` of QEMU).
const QCOW2: &[u8] = b"QFI\xfb";
const SIZE: std::ops::Range<usize> = 24..32;

#[derive(Args)]
pub struct ImportArgs {
    /// File on this machine: a qcow2 that builds on no other file, or a raw disk
    file: PathBuf,
    /// Name: small letters, digits and hyphens, at most 20; that of the file by default
    name: Option<String>,
    /// Size in GiB, or as 1T: at least what the file has for a guest, which is the default; 10 to 2048
    #[arg(long, alias = "disk", value_name = "GIB", value_parser = size::gib)]
    size: Option<u64>,
    /// Its form in the guest: raw blocks (the default), or a file system mounted at /mnt/NAME, where all of the disk is one
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Region
    #[arg(long, default_value = "local")]
    region: String,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Sends a file, and waits until the disk is made of it.
pub async fn run(context: &Context, project: &ProjectClient, args: ImportArgs) -> Result<DataDisk> {
    let unreadable = || format!("the file {} cannot be read", args.file.display());
    let least = least_gb(&args.file).with_context(unreadable)?;
    let name = args.name.unwrap_or_else(|| file_name::slug_of(&args.file.to_string_lossy(), NAME));
    let size_gb = match args.size {
        Some(size) => i64::try_from(size)?,
        None => least.max(SMALLEST),
    };
    let kind = args.kind.unwrap_or(Kind::Block).word().to_owned();
    let request = ImportedDisk { name, kind, size_gb, region_id: args.region };
    check(&request)?;
    let mut progress = Progress::beside_meter(context.is_quiet());
    progress.show(format!("{}: computing what the file hashes to", request.name));
    let (bytes, sha256) = hash(&args.file).await.with_context(unreadable)?;
    progress.show(format!("{}: sending {} MiB", request.name, bytes >> 20));
    let open = tokio::fs::File::open(&args.file).await.with_context(unreadable)?;
    let body = Body::wrap_stream(pieces(open.take(bytes), Meter::new(&request.name, Some(bytes))));
    let sent = project.import_disk(&request, body, (bytes, &sha256)).await;
    let disk = sent.map_err(|error| retold(error, WORDS))?;
    if !args.waiting.wanted(true) {
        return Ok(disk);
    }
    made::wait(disk, args.waiting.most(), context.is_quiet(), async |id: &str| project.disk(id).await).await
}

/// Refuses by the service's own rules what it would refuse, before the file is read.
fn check(disk: &ImportedDisk) -> Result<()> {
    ImportDisk::read(Params::parse(&disk.query()?), None).map(drop).map_err(|error| {
        Failure::usage(lines(error.details.iter().map(|d| (d.field.as_str(), d.message.as_str())), WORDS))
    })
}

/// How many GiB a disk has at least that has all of a file, by what the file says of itself.
fn least_gb(file: &Path) -> std::io::Result<i64> {
    let mut open = std::fs::File::open(file)?;
    let mut head = Vec::new();
    open.by_ref().take(SIZE.end as u64).read_to_end(&mut head)?;
    let size = head.get(SIZE).and_then(|size| size.try_into().ok()).filter(|_| head.starts_with(QCOW2));
    let bytes = match size {
        Some(size) => u64::from_be_bytes(size),
        None => open.seek(std::io::SeekFrom::End(0))?,
    };
    Ok(i64::try_from(bytes.div_ceil(1 << 30)).unwrap_or(i64::MAX))
}

/// How long a file is, and what it hashes to.
async fn hash(path: &Path) -> std::io::Result<(u64, Vec<u8>)> {
    let mut file = tokio::fs::File::open(path).await?;
    let meter = Meter::new("SHA-256", Some(file.metadata().await?.len()));
    let (mut hasher, mut chunk, mut bytes) = (Sha256::new(), vec![0; CHUNK], 0);
    loop {
        let read = file.read(&mut chunk).await?;
        if read == 0 {
            return Ok((bytes, hasher.finalize().to_vec()));
        }
        bytes += read as u64;
        meter.add(read);
        hasher.update(&chunk[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_as_large_as_its_file_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        let of = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            least_gb(&file).unwrap()
        };
        let qcow2 = |bytes: u64| [QCOW2, &[0; 20], &bytes.to_be_bytes(), &[0; 480]].concat();
        assert_eq!([of(&qcow2(20 << 30)), of(&qcow2((20 << 30) + 1)), of(&qcow2(u64::MAX))], [20, 21, 1 << 34]);
        assert_eq!([of(b""), of(b"QFI\xfb"), of(&[0; 4096])], [0, 1, 1]);
        std::fs::File::create(&file).unwrap().set_len(30 << 30).unwrap();
        assert_eq!(least_gb(&file).unwrap(), 30);
    }
}
