//! The one place that asks what time it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use berth_domain::Timestamp;

/// The time of the service. A test may set it.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// Now.
    pub fn now(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "this is the clock")]
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        Timestamp(micros.saturating_add(self.ahead.load(Ordering::Relaxed)))
    }

    /// Sets it forward by so many seconds, or back.
    pub fn advance(&self, seconds: i64) {
        self.ahead.fetch_add(seconds * Timestamp::SECOND, Ordering::Relaxed);
    }
}
