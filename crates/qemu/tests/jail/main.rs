//! Machines in their jail: real processes, started as the service starts them.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod disks;
mod escape;
mod identity;
mod limits;
mod snapshots;
mod world;
