//! One machine on this host: its process, its disks, its seed, its network.
//!
//! This crate knows QEMU and Linux and nothing of Berth: no database, no API, no tenants. Everything a
//! machine has lies in one folder, its sockets by relative names, because a path of a socket may have
//! only 108 bytes. A machine is one process that outlives whoever started it; who comes later finds it
//! by its folder. Every function may be called again after a crash, at any point of it.

pub mod accel;
pub mod confinement;
pub mod disk;
mod error;
pub mod foreign;
pub mod groups;
pub mod host;
mod host_key;
pub mod image;
pub mod launch;
pub mod machine;
mod qcow2;
pub mod qmp;
pub mod rbd;
pub mod sandbox;
pub mod seed;
pub mod served;

pub use error::{Error, Result};
