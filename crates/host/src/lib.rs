//! What runs machines on a host: the engines of VMs and of sandboxes, and what they need of the host.
//!
//! An engine is told what to do and tells what it finds. It knows machines, disks and images by the ids of their rows,
//! and nothing of the rows themselves. This crate uses no database, no route and no service, so that it is read, tested
//! and compiled without them.

mod answer;
pub mod bridge;
pub mod clock;
mod error;
pub mod fault;
mod finding;
mod generation;
pub mod gpu;
pub mod link;
pub mod lost;
mod machines;
pub mod network;
mod received;
pub mod sandbox;
mod settings;
mod turns;
pub mod vm;
pub mod wire;

pub use answer::Host;
pub use berth_domain::host::{EngineError, Result};
pub use finding::Finding;
pub use machines::{Demand, Machines};
pub use settings::HostSettings;
