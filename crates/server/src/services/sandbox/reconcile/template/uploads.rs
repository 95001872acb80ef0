//! Takes what was sent for a build to the host that builds.
//!
//! Uploads are received by the service's own host, before anybody knows which one builds. A build elsewhere is given files of
//! its own, which go with it.

use std::path::Path;

use berth_domain::ids::{HostId, UploadId};
use berth_host::EngineError;
use berth_host::sandbox::{BuildSpec, Named};

use super::{StepError, TemplateLife};

impl TemplateLife {
    /// Has a host have the uploads that a build needs.
    pub(super) async fn send_uploads(&self, host: HostId, spec: &BuildSpec) -> Result<(), StepError> {
        if host == self.sandboxes.host() {
            return Ok(());
        }
        let target = self.sandboxes.engine_of(Some(host))?;
        for id in needed(spec) {
            let (from, to) = (self.sandboxes.engine().upload(id).await?, target.upload(id).await?);
            put(&from, &to)
                .await
                .map_err(|error| EngineError::Transient(format!("an upload cannot be sent: {error}")))?;
        }
        Ok(())
    }

    /// Takes back what [`Self::send_uploads`] gave. What cannot be taken back now is nobody's once the upload's row is gone.
    pub(super) async fn take_uploads_back(&self, host: HostId, spec: &BuildSpec) {
        if host == self.sandboxes.host() {
            return;
        }
        for id in needed(spec) {
            let removed = async { self.sandboxes.engine_of(Some(host))?.remove_upload(id).await };
            if let Err(error) = removed.await {
                tracing::warn!(%host, upload = %id, %error, "an upload stays on the host that built with it, for now");
            }
        }
    }
}

/// Makes a file be at another place, too.
async fn put(from: &Path, to: &Path) -> std::io::Result<()> {
    match tokio::fs::remove_file(to).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Both lie in the data folder, but an operator may have put one of its folders elsewhere.
    match tokio::fs::hard_link(from, to).await {
        Err(_) => tokio::fs::copy(from, to).await.map(drop),
        linked => linked,
    }
}

/// The uploads that a build needs.
fn needed(spec: &BuildSpec) -> impl Iterator<Item = UploadId> {
    let named = spec.images.values().filter_map(|named| match named {
        Named::Upload(id) => Some(*id),
        Named::Template { .. } => None,
    });
    spec.context.into_iter().chain(named)
}
