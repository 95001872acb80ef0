//! Real machines: QEMU boots them, SSH logs in, SIGKILL ends what it likes.
//!
//! Wants the built images (`script/test` builds them) and the feature `faults`.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod backup;
mod backup_s3;
mod boots;
mod bridge;
mod by_bytes;
mod cloud_image;
mod crash;
mod debian;
mod descriptors;
mod disk;
mod disk_import;
mod endurance;
mod firewall;
mod full;
mod guest;
mod host;
mod identity;
mod image;
mod join;
mod join_sandboxes;
mod listener;
mod network;
mod networks;
mod networks6;
mod project_image;
mod project_network;
mod reinstall;
mod replica;
mod rescue;
mod schema;
mod screen;
mod session;
mod shared;
mod shell;
mod size;
mod snapshot;
mod suspend;
mod switches;

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");
