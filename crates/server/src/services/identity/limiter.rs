//! Counts requests: of each credential, and of each project and organization that has a limit.
//!
//! The counting is governor's (GCRA: a minute's worth at once, then evenly); here it is chosen whom to count.
//! Counters live in memory, for each service of its own, and are forgotten when they are whole again.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_domain::{Code, Error, Result};
use governor::clock::{Clock, DefaultClock};
use governor::middleware::{StateInformationMiddleware, StateSnapshot};
use governor::state::keyed::DefaultKeyedStateStore;
use governor::state::{InMemoryState, NotKeyed};
use governor::{NotUntil, Quota, RateLimiter};
use uuid::Uuid;

use crate::db::tenant::Whose;
use crate::http::limit::Window;

/// Counters of each table before those that are whole again are dropped.
const ENTRIES: usize = 50_000;
/// Requests between two looks at how many there are: a table that many threads use counts them one part after another.
const LOOK: u32 = 1024;

/// A counter of one project or organization.
type Counter = RateLimiter<NotKeyed, InMemoryState, DefaultClock, StateInformationMiddleware>;

/// What a counter says of a request: how much is left, or from when on there is something again.
type Counted = Result<StateSnapshot, NotUntil<<DefaultClock as Clock>::Instant>>;

/// Counters of all credentials.
struct Credentials {
    limit: NonZeroU32,
    table: RateLimiter<Uuid, DefaultKeyedStateStore<Uuid>, DefaultClock, StateInformationMiddleware>,
    asked: AtomicU32,
}

/// The counters.
pub struct Limiter {
    credentials: Option<Credentials>,
    /// By project and organization; a limit that changed begins anew.
    limited: Mutex<HashMap<Whose, (NonZeroU32, Arc<Counter>)>>,
    clock: DefaultClock,
}

impl Limiter {
    /// Counters with so many requests a minute for each credential; 0 is no limit.
    pub fn new(per_minute: u32) -> Self {
        let credentials = NonZeroU32::new(per_minute).map(|limit| Credentials {
            limit,
            table: RateLimiter::keyed(Quota::per_minute(limit)).with_middleware(),
            asked: AtomicU32::new(0),
        });
        Self { credentials, limited: Mutex::default(), clock: DefaultClock::default() }
    }

    /// Counts a request of a credential.
    pub fn credential(&self, id: Uuid) -> Result<Option<Window>> {
        let Some(Credentials { limit, table, asked }) = &self.credentials else { return Ok(None) };
        if asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK) && table.len() > ENTRIES {
            table.retain_recent();
        }
        self.window("credential", *limit, table.check_key(&id)).map(Some)
    }

    /// Counts a request to a project or an organization that has a limit.
    pub fn of(&self, whose: Whose, per_minute: Option<i64>) -> Result<Option<Window>> {
        let limit = per_minute.and_then(|n| u32::try_from(n).ok()).and_then(NonZeroU32::new);
        let Some(limit) = limit else {
            return if per_minute == Some(0) { Err(too_many(whose.word(), 60)) } else { Ok(None) };
        };
        let counter = {
            let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
            if limited.len() > ENTRIES {
                limited.clear();
            }
            let counter = || Arc::new(RateLimiter::direct(Quota::per_minute(limit)).with_middleware());
            let entry = limited.entry(whose).or_insert_with(|| (limit, counter()));
            if entry.0 != limit {
                *entry = (limit, counter());
            }
            entry.1.clone()
        };
        self.window(whose.word(), limit, counter.check()).map(Some)
    }

    fn window(&self, name: &'static str, limit: NonZeroU32, counted: Counted) -> Result<Window> {
        match counted {
            Ok(state) => {
                let left = state.remaining_burst_capacity();
                let reset = u64::from(limit.get() - left.min(limit.get())) * 60 / u64::from(limit.get());
                Ok(Window { name, limit: limit.get(), left, reset })
            }
            Err(until) => Err(too_many(name, seconds(until.wait_time_from(self.clock.now())))),
        }
    }
}

fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn too_many(name: &str, seconds: u64) -> Error {
    Error::new(Code::RateLimited, format!("Too many requests of this {name}. Try again in {seconds} s."))
        .retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::ProjectId;

    use super::*;

    #[test]
    fn a_minute_s_worth_and_no_more() {
        // One comes back after half a minute.
        let limiter = Limiter::new(2);
        let (one, other) = (Uuid::now_v7(), Uuid::now_v7());
        let windows = [(); 2].map(|()| limiter.credential(one).unwrap().unwrap());
        assert_eq!((windows[0].left, windows[1].left), (1, 0));
        assert!(limiter.credential(one).unwrap_err().retry_after.is_some_and(|wait| (1..=30).contains(&wait)));
        assert!(limiter.credential(other).is_ok());
    }

    #[test]
    fn a_project_s_limit_can_change_and_be_nothing() {
        let limiter = Limiter::new(0);
        let project = Whose::Project(ProjectId(Uuid::now_v7()));
        assert_eq!(limiter.credential(project.id()).unwrap(), None);
        assert_eq!(limiter.of(project, None).unwrap(), None);
        assert!(limiter.of(project, Some(1)).is_ok());
        assert!(limiter.of(project, Some(1)).is_err());
        assert!(limiter.of(project, Some(2)).is_ok());
        assert!(limiter.of(project, Some(0)).is_err());
    }
}
