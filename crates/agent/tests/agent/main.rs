//! The agent, served on a unix socket and asked by a real client.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod archives;
mod builds;
mod commands;
mod control;
mod copies;
mod files;
mod harness;
mod held;
mod paths;
mod polled;
mod processes;
mod ptys;
mod roots;
mod sessions;
mod terminals;
mod tunnels;
mod watches;
