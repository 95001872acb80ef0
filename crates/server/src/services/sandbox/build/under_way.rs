//! Builds that are under way in this service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::ids::TemplateId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Log;

/// Builds that are under way: their logs, and how many there may be.
#[derive(Debug)]
pub struct Builds {
    logs: Mutex<HashMap<TemplateId, Log>>,
    places: Arc<Semaphore>,
}

impl Builds {
    /// None yet, of so many at a time.
    pub fn new(most: usize) -> Self {
        Self { logs: Mutex::default(), places: Arc::new(Semaphore::new(most)) }
    }

    /// A place for one more, if there is one.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// The log of a build, which begins here or is tried again.
    pub fn begin(&self, id: TemplateId) -> Log {
        self.logs().entry(id).or_default().clone()
    }

    /// The log of a build.
    pub fn log(&self, id: TemplateId) -> Option<Log> {
        self.logs().get(&id).cloned()
    }

    /// Forgets a build that is over.
    pub fn end(&self, id: TemplateId) {
        if let Some(log) = self.logs().remove(&id) {
            log.close();
        }
    }

    fn logs(&self) -> MutexGuard<'_, HashMap<TemplateId, Log>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
