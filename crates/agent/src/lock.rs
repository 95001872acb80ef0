//! Locks of the agent's state.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A poisoned one counts as good: no code that holds these locks can leave the state broken.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
