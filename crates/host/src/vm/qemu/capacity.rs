//! What the host has, and has left, of what machines take.

use std::sync::atomic::Ordering;

use berth_qemu::host;

use super::{GIB, QemuEngine, gib};
use crate::Result;
use crate::error::qemu_failed;
use crate::vm::Capacity;

/// A disk with fewer bytes left is full, whatever is kept back.
const LEAST_ROOM: u64 = 16 << 20;

impl QemuEngine {
    /// Whether so many free bytes are as many as are kept back.
    pub(super) fn is_room(&self, free: u64) -> bool {
        free >= self.reserve()
    }

    /// What is kept back of the host's disk, in bytes.
    pub(super) fn reserve(&self) -> u64 {
        gib(self.settings.disk_reserve_gb).max(LEAST_ROOM)
    }

    /// Whether there is room on the disk, and was none before.
    pub(super) fn has_room_again(&self) -> bool {
        let Ok((_, free)) = host::disk(&self.settings.host.data) else { return false };
        if self.is_room(free) {
            return self.full.swap(false, Ordering::Relaxed);
        }
        self.full.store(true, Ordering::Relaxed);
        false
    }

    /// What the host has, and has left, of what machines take.
    pub(super) fn left(&self) -> Result<Capacity> {
        let (total, free) = host::disk(&self.settings.host.data).map_err(qemu_failed)?;
        let reserve = u64::try_from(self.settings.host.memory_reserve_mb).unwrap_or_default();
        Ok(Capacity {
            vcpu: scaled(host::cores(), self.settings.cpu_overcommit),
            memory_mb: scaled(host::memory_mb().saturating_sub(reserve), self.settings.memory_overcommit),
            disk_gb: scaled(total / GIB, self.settings.disk_overcommit),
            disk_free: self.is_room(free),
            room_bytes: i64::try_from(free.saturating_sub(self.reserve())).unwrap_or(i64::MAX),
        })
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "capacities are far below 2^52")]
fn scaled(amount: u64, factor: f64) -> i64 {
    (amount as f64 * factor) as i64
}
