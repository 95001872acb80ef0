//! The time, from the kernel.

use berth_domain::time::Timestamp;
use rustix::time::{ClockId, Timespec};

/// The time now.
pub fn now() -> Timestamp {
    of(rustix::time::clock_gettime(ClockId::Realtime))
}

/// The time of a file or of the clock.
pub fn of(time: Timespec) -> Timestamp {
    Timestamp(time.tv_sec.saturating_mul(Timestamp::SECOND).saturating_add(time.tv_nsec / 1000))
}

/// Sets the time.
pub fn set(micros: i64) -> rustix::io::Result<()> {
    let time = Timespec { tv_sec: micros.div_euclid(1_000_000), tv_nsec: micros.rem_euclid(1_000_000) * 1000 };
    rustix::time::clock_settime(ClockId::Realtime, time)
}
