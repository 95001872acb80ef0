//! Takes what was sent for a build to the host that builds.
//!
//! Uploads are received by the service's own host, before anybody knows which one builds. A build elsewhere is given files of
//! its own, which go with it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::ids::HostId;
use berth_host::EngineError;
use berth_host::sandbox::BuildSpec;
use uuid::Uuid;

use super::{StepError, TemplateLife};

/// How long a host may take to remove an upload, whatever it says meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

impl TemplateLife {
    /// Has a host have the uploads that a build needs, until [`Self::take_uploads_back`].
    pub(super) async fn send_uploads(&self, host: HostId, spec: &BuildSpec) -> Result<(), StepError> {
        if host == self.sandboxes.host() {
            return Ok(());
        }
        self.sent.begin(host, spec);
        let sent = self.send(host, spec).await;
        if sent.is_err() {
            self.take_uploads_back(host, spec).await;
        }
        sent
    }

    async fn send(&self, host: HostId, spec: &BuildSpec) -> Result<(), StepError> {
        let target = self.sandboxes.engine_of(Some(host))?;
        for id in spec.uploads() {
            let (from, to) = (self.sandboxes.engine().upload(id).await?, target.upload(id).await?);
            put(&from, &to)
                .await
                .map_err(|error| EngineError::Transient(format!("an upload cannot be sent: {error}")))?;
        }
        Ok(())
    }

    /// Takes back what [`Self::send_uploads`] gave, and no other build has. What cannot be taken back now is nobody's once the
    /// upload's row is gone.
    pub(super) async fn take_uploads_back(&self, host: HostId, spec: &BuildSpec) {
        if host == self.sandboxes.host() {
            return;
        }
        for id in self.sent.end(host, spec) {
            let removed = async { self.sandboxes.engine_of(Some(host))?.remove_upload(id).await };
            let late = || EngineError::Transient("it takes too long".into());
            let removed = tokio::time::timeout(PATIENCE, removed).await.unwrap_or_else(|_| Err(late()));
            if let Err(error) = removed {
                tracing::warn!(%host, upload = %id, %error, "an upload stays on the host that built with it, for now");
            }
        }
    }
}

/// Makes a file be at another place, too: whole or not at all, and again where it is there, for whoever else has it.
async fn put(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut part = to.to_owned().into_os_string();
    part.push(format!(".{}.part", Uuid::new_v4()));
    let part = PathBuf::from(part);
    // Both lie in the data folder, but an operator may have put one of its folders elsewhere.
    let made = match tokio::fs::hard_link(from, &part).await {
        Err(_) => tokio::fs::copy(from, &part).await.map(drop),
        linked => linked,
    };
    let placed = match made {
        Ok(()) => tokio::fs::rename(&part, to).await,
        Err(error) => Err(error),
    };
    // Of two names of one file a rename leaves the former.
    let _ = tokio::fs::remove_file(&part).await;
    placed
}
