//! Answers to "how is this VM?", kept until the next commit.
//!
//! Whoever waits for a VM asks again and again while nothing happens. A kept answer is true for as long as the
//! database's epoch is the one before it was read; there is nothing to invalidate and nothing to forget.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use berth_domain::ids::{ProjectId, VmId};
use bytes::Bytes;

/// A project's VM, and whether the answer names its host, which administrators of the platform alone are told.
type Asked = (ProjectId, VmId, bool);

/// Most answers that are kept.
const MOST: usize = 4096;

/// Kept answers.
#[derive(Default)]
pub(super) struct Views {
    kept: RwLock<Kept>,
}

#[derive(Default)]
struct Kept {
    epoch: u64,
    bodies: HashMap<Asked, Bytes>,
}

impl Views {
    /// The answer about a project's VM, if it was given in this epoch.
    pub(super) fn get(&self, epoch: u64, asked: Asked) -> Option<Bytes> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        kept.bodies.get(&asked).filter(|_| kept.epoch == epoch).cloned()
    }

    /// Keeps an answer that was read after the epoch was.
    pub(super) fn put(&self, epoch: u64, asked: Asked, body: Bytes) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.epoch < epoch {
            *kept = Kept { epoch, bodies: HashMap::new() };
        }
        if kept.epoch == epoch && kept.bodies.len() < MOST {
            kept.bodies.insert(asked, body);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn an_answer_lives_for_one_epoch_one_project_and_those_who_may_read_it() {
        let (views, vm) = (Views::default(), VmId(Uuid::now_v7()));
        let (project, other) = (ProjectId(Uuid::now_v7()), ProjectId(Uuid::now_v7()));
        views.put(2, (project, vm, true), Bytes::from_static(b"two"));
        assert_eq!(views.get(2, (project, vm, true)), Some(Bytes::from_static(b"two")));
        assert_eq!(views.get(2, (project, vm, false)), None, "it names a host");
        assert_eq!(views.get(2, (other, vm, true)), None);
        assert_eq!(views.get(3, (project, vm, true)), None);
        views.put(4, (project, vm, true), Bytes::from_static(b"four"));
        // Read before the last commit, kept after it: too late.
        views.put(2, (project, vm, true), Bytes::from_static(b"two"));
        assert_eq!(views.get(4, (project, vm, true)), Some(Bytes::from_static(b"four")));
        assert_eq!(views.get(2, (project, vm, true)), None);
    }
}
