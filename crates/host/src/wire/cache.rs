//! What is known of a host without asking it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use berth_domain::host::model::About;
use berth_domain::host::sandbox::Activity;
use berth_domain::ids::MachineId;
use tokio::sync::broadcast;

use crate::EngineError;

/// Events kept for a slow watcher before it has to look at every machine.
const EVENTS: usize = 1024;
/// How long it is believed how a sandbox is used: until whoever is told that it is known asks again.
const BELIEVED: Duration = Duration::from_secs(2);

/// What is known of a host.
pub struct HostCache {
    about: Mutex<About>,
    /// How sandboxes are used, once for each time that it was asked; none while it is being asked.
    activities: Mutex<HashMap<MachineId, Option<(Instant, Activity)>>>,
    /// Held by whoever sends it an upload: two builds may need the same.
    pub uploading: tokio::sync::Mutex<()>,
    /// Who watches VMs.
    pub vms: broadcast::Sender<MachineId>,
    /// Who watches sandboxes.
    pub sandboxes: broadcast::Sender<MachineId>,
}

impl Default for HostCache {
    fn default() -> Self {
        Self {
            about: Mutex::default(),
            activities: Mutex::default(),
            uploading: tokio::sync::Mutex::default(),
            vms: broadcast::channel(EVENTS).0,
            sandboxes: broadcast::channel(EVENTS).0,
        }
    }
}

impl HostCache {
    /// What the host said last of itself.
    pub fn about(&self) -> About {
        lock(&self.about).clone()
    }

    /// Notes what the host says of itself.
    pub fn note(&self, about: About) {
        *lock(&self.about) = about;
    }

    /// Notes that nobody knows whether the host can work.
    pub fn lose(&self, why: &EngineError) {
        let mut about = lock(&self.about);
        about.vm.missing = Some(why.to_string());
        about.sandbox.missing = Some(why.to_string());
    }

    /// How a sandbox is used, if that was asked just now and nobody was told yet.
    pub fn take_activity(&self, id: MachineId) -> Option<Activity> {
        let mut activities = lock(&self.activities);
        let (at, activity) = (*activities.get(&id)?)?;
        activities.remove(&id);
        Some(activity).filter(|_| at.elapsed() < BELIEVED)
    }

    /// Notes that it is being asked how a sandbox is used; false where it is already.
    pub fn begin_activity(&self, id: MachineId) -> bool {
        lock(&self.activities).insert(id, None).is_none_or(|before| before.is_some())
    }

    /// Notes how a sandbox is used, where that came to be known, and has its watchers ask.
    pub fn end_activity(&self, id: MachineId, activity: Option<Activity>) {
        let Some(activity) = activity.filter(|activity| activity.running.is_some()) else {
            lock(&self.activities).remove(&id);
            return;
        };
        lock(&self.activities).insert(id, Some((Instant::now(), activity)));
        // Nobody watches where nobody wants to know.
        let _ = self.sandboxes.send(id);
    }
}

fn lock<T>(known: &Mutex<T>) -> MutexGuard<'_, T> {
    known.lock().unwrap_or_else(PoisonError::into_inner)
}
