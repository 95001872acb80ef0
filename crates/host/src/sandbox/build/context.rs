//! The files that were sent with a Dockerfile.

use std::path::PathBuf;
use std::time::Duration;

use berth_oci::{Context, Error};
use tokio_util::sync::CancellationToken;

use super::builder::within;
use super::{BuildError, blocking};

/// Opens what was sent, which may have so many bytes without its compression. Reading it through takes its time: a
/// build that is called off, or has none left, leaves that to its thread, which ends by itself.
pub async fn open_context(
    archive: PathBuf,
    bytes: u64,
    time: Duration,
    cancel: &CancellationToken,
) -> Result<Context, BuildError> {
    within(cancel, time, open(archive, bytes)).await
}

async fn open(archive: PathBuf, bytes: u64) -> Result<Context, BuildError> {
    let open = move || {
        if !archive.exists() {
            return Err(Error::NotFound("The context is gone; send it again.".into()));
        }
        Context::open(&archive, bytes)
    };
    Ok(blocking(open).await??)
}
