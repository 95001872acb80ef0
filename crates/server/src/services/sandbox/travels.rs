//! How many guests arrived on other hosts, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use berth_host::EngineError;

/// What became of guests that went from host to host, since the service began.
#[derive(Default)]
pub struct Travels {
    arrived: AtomicU64,
    broken_off: AtomicU64,
    refused: AtomicU64,
}

impl Travels {
    /// Counts how a travel ended.
    pub(super) fn end(&self, outcome: &std::result::Result<u64, EngineError>) {
        let of = match outcome {
            Ok(_) => &self.arrived,
            Err(error) if error.is_final() => &self.refused,
            Err(_) => &self.broken_off,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// The same as lines of metrics.
    pub fn lines(&self) -> String {
        let mut text = String::from(
            "# HELP berth_guest_travels_total What sandboxes boot, as it went from host to host, by outcome.\n\
             # TYPE berth_guest_travels_total counter\n",
        );
        for (outcome, of) in [("arrived", &self.arrived), ("broken_off", &self.broken_off), ("refused", &self.refused)]
        {
            let count = of.load(Ordering::Relaxed);
            text.push_str(&format!("berth_guest_travels_total{{outcome=\"{outcome}\"}} {count}\n"));
        }
        text
    }
}
