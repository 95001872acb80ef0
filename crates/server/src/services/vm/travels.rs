//! Images that are on their way to hosts, and how many arrived, for metrics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_domain::vm::image_travel::Travel;
use berth_host::EngineError;
use berth_host::vm::travel::Progress;

/// What became of images that went from host to host, since the service began.
#[derive(Default)]
pub struct Travels {
    under_way: Mutex<HashMap<Travel, Arc<Progress>>>,
    arrived: AtomicU64,
    broken_off: AtomicU64,
    refused: AtomicU64,
    bytes: AtomicU64,
}

impl Travels {
    /// What is under way, and how far it is.
    pub(super) fn under_way(&self) -> MutexGuard<'_, HashMap<Travel, Arc<Progress>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts how a travel ended.
    pub(super) fn end(&self, outcome: &std::result::Result<u64, EngineError>) {
        let of = match outcome {
            Ok(bytes) => {
                self.bytes.fetch_add(*bytes, Ordering::Relaxed);
                &self.arrived
            }
            Err(error) if error.is_final() => &self.refused,
            Err(_) => &self.broken_off,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// The same as lines of metrics.
    pub fn lines(&self) -> String {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let mut text = String::from(
            "# HELP berth_image_travels_total Images that went from host to host, by outcome.\n\
             # TYPE berth_image_travels_total counter\n",
        );
        for (outcome, of) in [("arrived", &self.arrived), ("broken_off", &self.broken_off), ("refused", &self.refused)]
        {
            text.push_str(&format!("berth_image_travels_total{{outcome=\"{outcome}\"}} {}\n", count(of)));
        }
        let going = self.under_way();
        let left: u64 = going.values().map(|way| count(&way.bytes).saturating_sub(count(&way.carried))).sum();
        text.push_str(&format!(
            "# HELP berth_image_travel_bytes_total Bytes of images that arrived.\n\
             # TYPE berth_image_travel_bytes_total counter\nberth_image_travel_bytes_total {}\n\
             # HELP berth_image_travels_under_way Images that are on their way.\n\
             # TYPE berth_image_travels_under_way gauge\nberth_image_travels_under_way {}\n\
             # HELP berth_image_travel_left_bytes Bytes that are still to come of those.\n\
             # TYPE berth_image_travel_left_bytes gauge\nberth_image_travel_left_bytes {left}\n",
            count(&self.bytes),
            going.len(),
        ));
        text
    }
}
