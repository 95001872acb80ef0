//! Which uploads builds have on other hosts than the service's own.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use berth_domain::ids::{HostId, UploadId};
use berth_host::sandbox::BuildSpec;

/// How many builds have each upload elsewhere now: several may have the same one. Nobody is asked while this is held.
#[derive(Default)]
pub(super) struct Sent(Mutex<HashMap<(HostId, UploadId), usize>>);

impl Sent {
    /// Counts a build on a host.
    pub(super) fn begin(&self, host: HostId, spec: &BuildSpec) {
        let mut builds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in spec.uploads() {
            *builds.entry((host, id)).or_default() += 1;
        }
    }

    /// Counts a build no more; the uploads that no other one has there.
    pub(super) fn end(&self, host: HostId, spec: &BuildSpec) -> Vec<UploadId> {
        let mut builds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = |id: &UploadId| {
            let Some(count) = builds.get_mut(&(host, *id)) else { return true };
            *count = count.saturating_sub(1);
            let is_last = *count == 0;
            if is_last {
                builds.remove(&(host, *id));
            }
            is_last
        };
        spec.uploads().filter(is_last).collect()
    }
}
