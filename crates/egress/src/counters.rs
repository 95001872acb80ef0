//! What went over a link.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of Ethernet frames, as the guest counts them.
#[derive(Debug, Default)]
pub struct Counters {
    /// To the guest.
    pub rx_bytes: AtomicU64,
    /// From the guest.
    pub tx_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn received(&self, bytes: usize) {
        self.rx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.tx_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
