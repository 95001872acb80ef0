//! Real sandboxes: QEMU runs them, the agent answers inside, SIGKILL ends what it likes.
//!
//! Wants what sandboxes boot and start from (`script/test` builds it) and the feature `faults`.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod by_bytes;
mod code_interpreter;
mod command_line;
mod copies;
mod crash;
mod deaths;
mod e2b;
mod endurance;
mod escape;
mod harness;
mod images;
mod inside;
mod leaving;
mod life;
mod mcp;
mod network;
mod networks6;
mod points;
mod templates;
mod warm;

/// The program under test.
const BERTH: &str = env!("CARGO_BIN_EXE_berth");
