//! Turns of those who make or remove snapshots of disks that lie in a store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use berth_domain::ids::DiskSnapshotId;

/// Whoever makes or removes a snapshot does so alone on this host. A service whose line broke asks again while what it asked before may
/// still be under way.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<DiskSnapshotId, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the turn of whoever makes or removes this one.
    pub(super) async fn of(&self, id: DiskSnapshotId) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turn| turn.strong_count() > 0);
            let turn = all.get(&id).and_then(Weak::upgrade).unwrap_or_default();
            all.insert(id, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;
    use uuid::Uuid;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_makes_or_removes_a_snapshot() {
        let turns = Turns::default();
        let [one, other] = [(); 2].map(|()| DiskSnapshotId(Uuid::now_v7()));
        let first = turns.of(one).await;
        let mut second = Box::pin(turns.of(one));
        assert!(poll!(&mut second).is_pending());
        drop(turns.of(other).await);
        drop(first);
        drop(second.await);
        drop(turns.of(other).await);
        assert_eq!(turns.0.lock().expect("no panic").len(), 1, "who is over is forgotten");
    }
}
