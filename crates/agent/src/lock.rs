//! Locks of the agent's state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what no code can leave broken: nothing that holds these locks panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
