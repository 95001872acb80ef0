//! Copies into a sandbox.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{EntryType, Runtime};
use bytes::Bytes;
use futures::stream;
use reqwest::Body;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::look::look;
use super::pack::{All, Choice, pack};
use super::place::{Place, below, last_part, plain};
use crate::failure::Failure;
use crate::progress::Meter;

/// Bytes of one piece.
const PIECE: usize = 256 * 1024;
/// Pieces that wait for the service.
const AHEAD: usize = 4;

/// Copies a path of this machine, or standard input, to a path inside.
pub async fn upload(runtime: &Runtime, from: Place, to: &str) -> Result<()> {
    let Place::Local(local) = from else { return from_stdin(runtime, to).await };
    let metadata = std::fs::metadata(&local).with_context(|| format!("{} cannot be read", local.display()))?;
    let inside = look(runtime, plain(to)).await?;
    let into =
        inside.is_some_and(|entry| entry.kind == EntryType::Directory) || (!metadata.is_dir() && to.ends_with('/'));
    let target = if into { below(to, &name_of(&local)?) } else { plain(to).to_owned() };
    if metadata.is_dir() {
        return directory(runtime, local, &target).await;
    }
    let file = tokio::fs::File::open(&local).await.with_context(|| format!("{} cannot be read", local.display()))?;
    let length = metadata.is_file().then_some(metadata.len());
    let mode = format!("{:04o}", std::os::unix::fs::MetadataExt::mode(&metadata) & 0o777);
    let body = Body::wrap_stream(pieces(file, Meter::new(&target, length)));
    runtime.write_file(&target, Some(&mode), body).await?;
    Ok(())
}

async fn from_stdin(runtime: &Runtime, to: &str) -> Result<()> {
    if last_part(to).is_none() || to.ends_with('/') {
        return Err(Failure::usage("Standard input becomes a file: name it, as SANDBOX:PATH/FILE"));
    }
    let body = Body::wrap_stream(pieces(tokio::io::stdin(), Meter::new(to, None)));
    runtime.write_file(to, None, body).await?;
    Ok(())
}

/// The name of the copy of a path, also of `.` and `..`.
fn name_of(path: &Path) -> Result<String> {
    let name = match path.file_name() {
        Some(name) => name.to_owned(),
        None => path.canonicalize()?.file_name().map(ToOwned::to_owned).unwrap_or_default(),
    };
    let wrong = || Failure::usage(format!("{} has no name that a copy could have; name the copy", path.display()));
    name.into_string().ok().filter(|name| !name.is_empty()).ok_or_else(wrong)
}

/// The content of a reader, in pieces.
pub fn pieces(
    from: impl AsyncRead + Send + Unpin + 'static,
    meter: Meter,
) -> impl futures::Stream<Item = std::io::Result<Bytes>> + Send {
    stream::try_unfold((from, meter), async |(mut from, meter)| {
        let mut bytes = bytes::BytesMut::with_capacity(PIECE);
        let read = from.read_buf(&mut bytes).await?;
        meter.add(read);
        Ok((read > 0).then(|| (bytes.freeze(), (from, meter))))
    })
}

/// A directory as the body of a request, and the result of packing it.
pub fn packing(
    local: PathBuf,
    name: &str,
    choice: impl Choice + Send + 'static,
) -> (Body, JoinHandle<std::io::Result<()>>) {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let packed = tokio::task::spawn_blocking(move || pack(&local, &choice, sender));
    let meter = Meter::new(name, None);
    let body = stream::unfold((receiver, meter), async |(mut receiver, meter)| {
        let piece: std::io::Result<Bytes> = receiver.recv().await?;
        meter.add(piece.as_ref().map_or(0, Bytes::len));
        Some((piece, (receiver, meter)))
    });
    (Body::wrap_stream(body), packed)
}

async fn directory(runtime: &Runtime, local: PathBuf, to: &str) -> Result<()> {
    let (body, packed) = packing(local, to, All);
    let sent = runtime.extract(to, body).await;
    // The failure on this side says more than the request that broke off because of it.
    match packed.await? {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(sent.map(drop)?),
    }
}
