//! Disks of stores that hosts are copying into files. A copy may take hours: whoever wants it looks how far it is, and does whatever
//! else there is to do meanwhile. Each takes what the host's disk and network give, so a host makes few at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use berth_domain::ids::{DiskSnapshotId, HostId};
use berth_host::EngineError;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Copies that a host makes at a time.
const AT_ONCE: usize = 2;

/// The copies that are under way. They end with the service ([`Copies::end_all`]), and whoever comes next has them begun anew.
#[derive(Default)]
pub struct Copies {
    all: Mutex<HashMap<DiskSnapshotId, Copying>>,
    turns: Mutex<HashMap<HostId, Arc<Semaphore>>>,
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
            let (mut task, copy, turns) = (JoinSet::new(), begin(), self.turns_of(host));
            task.spawn(async move {
                let _turn = turns.acquire_owned().await.map_err(|error| EngineError::Transient(error.to_string()))?;
                copy.await
            });
            all.insert(id, Copying { host, task });
            return None;
        };
        let ended = ended?;
        all.remove(&id);
        Some(ended.unwrap_or_else(|error| Err(EngineError::Transient(format!("the copy broke off: {error}")))))
    }

    fn turns_of(&self, host: HostId) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.entry(host).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone()
    }

    /// Ends all of them: another service makes them by now.
    pub fn end_all(&self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
        let ended = async |id| {
            loop {
                tokio::task::yield_now().await;
                if let Some(ended) = copies.look((id, there), pending) {
                    return ended;
                }
            }
        };
        assert_eq!(ended(id).await, Ok(2));
        assert_eq!(copies.look((id, there), pending), None, "it begins anew");
        let others = [(); AT_ONCE].map(|()| DiskSnapshotId(Uuid::now_v7()));
        for other in others {
            assert_eq!(copies.look((other, there), || ready(Ok(3))), None);
        }
        // The first one goes on beside them.
        for other in others {
            assert_eq!(ended(other).await, Ok(3));
        }
        copies.end(id);
        assert!(copies.all.lock().expect("no panic").is_empty());
    }
}
