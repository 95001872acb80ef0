//! Disks of stores that hosts are copying into files. A copy may take hours: whoever wants it looks how far it is, and does whatever
//! else there is to do meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use berth_domain::ids::{DiskSnapshotId, HostId};
use berth_host::EngineError;
use tokio::task::JoinSet;

/// The copies that are under way. They end with the service, and whoever comes next has them begun anew.
#[derive(Default)]
pub struct Copies {
    all: Mutex<HashMap<DiskSnapshotId, Copying>>,
}

/// A host that copies.
struct Copying {
    host: HostId,
    task: JoinSet<Result<u64, EngineError>>,
}

impl Copies {
    /// How a copy by a host ended; none while it is under way, and where it begins with this.
    pub fn look<F>(
        &self,
        (id, host): (DiskSnapshotId, HostId),
        begin: impl FnOnce() -> F,
    ) -> Option<Result<u64, EngineError>>
    where
        F: Future<Output = Result<u64, EngineError>> + Send + 'static,
    {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get_mut(&id).filter(|copying| copying.host == host);
        let Some(ended) = known.map(|copying| copying.task.try_join_next()) else {
            // One that another host was to make goes with this.
            let mut task = JoinSet::new();
            task.spawn(begin());
            all.insert(id, Copying { host, task });
            return None;
        };
        let ended = ended?;
        all.remove(&id);
        Some(ended.unwrap_or_else(|error| Err(EngineError::Transient(format!("the copy broke off: {error}")))))
    }

    /// Ends a copy that nobody wants any more, if it is under way.
    pub fn end(&self, id: DiskSnapshotId) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn a_copy_is_begun_once_and_its_end_is_told_once() {
        let copies = Copies::default();
        let (id, here, there) = (DiskSnapshotId(Uuid::now_v7()), HostId(Uuid::now_v7()), HostId(Uuid::now_v7()));
        assert_eq!(copies.look((id, here), pending), None);
        assert_eq!(copies.look((id, here), || ready(Ok(1))), None, "it is under way");
        // Another host begins anew.
        assert_eq!(copies.look((id, there), || ready(Ok(2))), None);
        let ended = async {
            loop {
                tokio::task::yield_now().await;
                if let Some(ended) = copies.look((id, there), pending) {
                    return ended;
                }
            }
        };
        assert_eq!(ended.await, Ok(2));
        assert_eq!(copies.look((id, there), pending), None, "it begins anew");
        copies.end(id);
        assert!(copies.all.lock().expect("no panic").is_empty());
    }
}
