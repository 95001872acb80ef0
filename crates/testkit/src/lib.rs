//! Tools for tests: a platform in this process over a simulated engine, and a service in its own process over real
//! machines.
//!
//! The simulated engine is for faults and for numbers that no host holds; tests with real machines cover everything
//! that a machine can show.

pub mod agent;
mod body;
mod ceph;
mod chance;
pub mod commands;
mod engine;
mod exports;
mod generations;
mod gpus;
mod host_process;
mod joined_host;
mod migrations;
mod networks;
mod platform;
mod port;
mod postgres;
mod refusals;
mod replicas;
mod sandboxes;
mod service;
mod shared_disks;
mod snapshots;
mod still;
mod suite;
mod travels;
pub mod upstream;

pub use body::{key, vm};
pub use ceph::Ceph;
pub use chance::Chance;
pub use engine::SimulatedEngine;
pub use host_process::HostProcess;
pub use joined_host::JoinedHost;
pub use networks::SimulatedNetworks;
pub use platform::{Answer, Caller, Platform, code_in, fresh_database, token_in};
pub use postgres::{Postgres, postgres_program};
pub use replicas::{one_after_the_other, replicas};
pub use sandboxes::SimulatedSandboxes;
pub use service::{Service, end_all_in, eventually, images};
pub use suite::Suite;
pub use upstream::{Gate, Received, Script, Step, Upstream};
