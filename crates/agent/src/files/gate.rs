//! The gate through which all changes of files go, whoever makes them.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock::lock;

#[derive(Default)]
struct State {
    /// Jobs under way that may change files.
    inside: usize,
    held: bool,
    /// Jobs that last as long as their clients.
    long: usize,
}

/// The gate.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    moved: Condvar,
}

impl Gate {
    /// Does something that changes files; while changes are held, waits first.
    pub fn pass<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut state = lock(&self.state);
        while state.held {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.inside += 1;
        drop(state);
        let result = work();
        lock(&self.state).inside -= 1;
        self.moved.notify_all();
        result
    }

    /// Holds all changes of files; returns whether none is under way any more. Blocks for up to `patience`.
    pub fn hold(&self, patience: Duration) -> bool {
        let mut state = lock(&self.state);
        state.held = true;
        let waited = self.moved.wait_timeout_while(state, patience, |state| state.inside > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.inside == 0
    }

    /// Allows changes again.
    pub fn release(&self) {
        lock(&self.state).held = false;
        self.moved.notify_all();
    }

    /// Counts one more job that lasts, unless there are so many; [`Self::leave`] must follow.
    pub fn enter_long(&self, most: usize) -> bool {
        let mut state = lock(&self.state);
        let room = state.long < most;
        state.long += usize::from(room);
        room
    }

    /// Counts one less.
    pub fn leave_long(&self) {
        lock(&self.state).long -= 1;
    }
}
