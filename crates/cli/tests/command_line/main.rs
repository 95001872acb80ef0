//! `berth sandbox` as a person and as a script use it: the real service in this process, and the real agent in a
//! process of its own, with a folder of this machine for a sandbox. Whatever a machine adds is tested with machines.

#![expect(clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "a test may end with a panic")]

mod backup;
mod copy;
mod delete;
mod disk_import;
mod durable;
mod exec;
mod export;
mod harness;
mod host;
mod image;
mod life;
mod mcp;
mod network;
mod once;
mod person;
mod port;
mod print;
mod quiet;
mod shell;
mod ssh_config;
mod ssh_key;
mod template;
mod terminal;
mod together;
mod vm;
mod words;
