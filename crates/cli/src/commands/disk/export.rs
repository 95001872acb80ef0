//! Disks, snapshots and images as files of this machine.
//!
//! What came is kept beside the file until all of it is there, under a name that says what the whole hashes to. So what broke off
//! goes on, also by the same command another time, and bytes of another state of the disk are never mixed with it. Whether all of
//! it is what the service made is found out in the end, by its SHA-256.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use berth_client::{Error, Export, Exportable, ProjectClient};
use berth_domain::hex;
use clap::Args;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::find::{find_data, find_root};
use super::snapshot;
use crate::context::Context;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// How often a file is asked for again of which nothing more came.
const TRIES: u32 = 5;
/// Between two of these, where the service does not say when to come again.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest that a service's word on that is followed.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// Bytes that are hashed at a time.
const CHUNK: usize = 1 << 20;

#[derive(Args)]
pub struct ExportArgs {
    /// Disk, by name or id; of the disk of a VM that runs, export a snapshot
    disk: String,
    /// A root disk volume
    #[arg(long)]
    root: bool,
    /// A snapshot of a disk
    #[arg(long, conflicts_with = "root")]
    snapshot: bool,
    /// File to write; NAME.qcow2 in this folder by default
    file: Option<PathBuf>,
}

/// A file that is there.
#[derive(Serialize)]
struct Saved {
    file: PathBuf,
    bytes: u64,
    sha256: String,
}

/// Runs the typed command.
pub async fn run(context: &Context, project: &ProjectClient, args: ExportArgs) -> Result<()> {
    if args.snapshot {
        let found = snapshot::find(project, &args.disk).await?;
        return save(context, project, (Exportable::Snapshot(&found.id), &found.name), args.file).await;
    }
    if args.root {
        let found = find_root(project, &args.disk).await?;
        return save(context, project, (Exportable::RootDisk(&found.id), &found.name), args.file).await;
    }
    let found = find_data(project, &args.disk).await?;
    save(context, project, (Exportable::Disk(&found.id), &found.name), args.file).await
}

/// Has a file made, and saves it.
pub async fn save(
    context: &Context,
    project: &ProjectClient,
    (what, name): (Exportable<'_>, &str),
    file: Option<PathBuf>,
) -> Result<()> {
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{}.qcow2", name.replace(['/', '\\'], "-"))));
    if file.exists() {
        let text = format!("There is a file {} already. Name another one.", file.display());
        return Err(Failure::usage(text));
    }
    let mut progress = Progress::new(context.is_quiet());
    progress.show(format!("{name}: the host makes the file"));
    let begun = project.export(what, None).await?;
    let whole = (begun.bytes, begun.sha256.clone());
    let part = part_of(&file, &whole.1);
    receive(project, what, begun, &part, |bytes| progress.show(shown(name, bytes, whole.0))).await?;
    progress.show(format!("{name}: checking"));
    if hash(&part).await? != whole.1 {
        let _ = tokio::fs::remove_file(&part).await;
        bail!("what came is not what the service sent; run the same command again");
    }
    tokio::fs::rename(&part, &file).await.with_context(|| format!("cannot write {}", file.display()))?;
    progress.finish();
    let saved = Saved { file, bytes: whole.0, sha256: hex::encode(&whole.1) };
    let name = saved.file.display().to_string();
    output::print(context.look, &saved, &name, &saved.sha256, |saved| println!("{}  {name}", saved.sha256))
}

/// Receives a file, and asks for the rest where it breaks off or a part was there before.
async fn receive(
    project: &ProjectClient,
    what: Exportable<'_>,
    begun: Export,
    part: &Path,
    mut show: impl FnMut(u64),
) -> Result<()> {
    let (bytes, sha256, tag) = (begun.bytes, begun.sha256.clone(), begun.tag.clone());
    let writing = || format!("cannot write {}", part.display());
    let mut out = tokio::fs::File::options().create(true).append(true).open(part).await.with_context(writing)?;
    let mut has = out.metadata().await?.len();
    let (mut coming, mut tries) = (Some(begun).filter(|_| has == 0), 0);
    while has < bytes {
        let mut export = match coming.take() {
            Some(export) => export,
            None => rest(project, (what, has, &tag), &mut tries).await?,
        };
        if export.sha256 != sha256 || export.from != has {
            bail!("the disk is another one by now than when its export began; run the same command again");
        }
        let before = has;
        let broken = loop {
            match export.chunk().await {
                Ok(Some(chunk)) => {
                    out.write_all(&chunk).await.with_context(writing)?;
                    has += chunk.len() as u64;
                    show(has);
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        out.flush().await.with_context(writing)?;
        tries = if has > before { 0 } else { tries + 1 };
        match broken {
            Some(error) if tries == TRIES => return Err(error.into()),
            Some(_) => tokio::time::sleep(PAUSE).await,
            None if has < bytes && tries == TRIES => bail!("the service sends nothing more of the file"),
            None => {}
        }
    }
    out.sync_all().await.with_context(writing)
}

/// Asks for a file from a byte on. A service that is away or has no place at the moment is asked again, a few times in a row.
async fn rest(
    project: &ProjectClient,
    (what, from, tag): (Exportable<'_>, u64, &str),
    tries: &mut u32,
) -> Result<Export> {
    loop {
        let error = match project.export(what, Some((from, tag))).await {
            Ok(export) => return Ok(export),
            Err(error) => error,
        };
        *tries += 1;
        match pause(&error) {
            Some(pause) if *tries < TRIES => tokio::time::sleep(pause).await,
            _ => return Err(error.into()),
        }
    }
}

/// How long to wait after an error that passes; none after another one.
fn pause(error: &Error) -> Option<Duration> {
    match error {
        Error::Unreachable { .. } => Some(PAUSE),
        Error::Api { status: 429 | 502..=504, retry_after, .. } => {
            Some(Duration::from_secs(retry_after.unwrap_or_default()).clamp(PAUSE, LONGEST_PAUSE))
        }
        Error::Api { .. } | Error::Protocol(_) | Error::File(_) => None,
    }
}

/// Where what came of a file is kept.
fn part_of(file: &Path, sha256: &[u8]) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}.part", hex::encode(&sha256[..sha256.len().min(6)])));
    name.into()
}

fn shown(name: &str, bytes: u64, all: u64) -> String {
    format!("{name}: {} of {} MiB", bytes >> 20, all >> 20)
}

async fn hash(path: &Path) -> Result<Vec<u8>> {
    let mut file = tokio::fs::File::open(path).await.with_context(|| format!("cannot read {}", path.display()))?;
    let (mut hasher, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        let read = file.read(&mut chunk).await?;
        if read == 0 {
            return Ok(hasher.finalize().to_vec());
        }
        hasher.update(&chunk[..read]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_waited_for_as_long_as_the_service_says() {
        let refused = |status, retry_after| Error::Api {
            status,
            code: String::new(),
            message: String::new(),
            details: Vec::new(),
            retry_after,
            request_id: String::new(),
        };
        let away = Error::Unreachable { base: String::new(), cause: String::new(), sent: false };
        assert_eq!(pause(&away), Some(PAUSE));
        for (status, retry_after, expected) in [
            (429, Some(10), Some(10)),
            (429, Some(1), Some(2)),
            (429, Some(61), Some(60)),
            (503, None, Some(2)),
            (404, Some(10), None),
            (409, None, None),
        ] {
            assert_eq!(pause(&refused(status, retry_after)), expected.map(Duration::from_secs), "{status}");
        }
    }

    #[test]
    fn a_part_is_named_after_the_whole() {
        assert_eq!(part_of(Path::new("a/b.qcow2"), &[0xab; 32]), Path::new("a/b.qcow2.abababababab.part"));
    }
}
