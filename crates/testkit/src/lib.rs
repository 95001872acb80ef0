//! What tests are written with: a platform in this process over a simulated engine, and a service of its
//! own process over real machines.
//!
//! The simulated engine is for faults and for numbers that no machine holds; whatever a machine shows is
//! tested with machines.

mod body;
mod engine;
mod platform;
mod sandboxes;
mod service;
pub mod upstream;

pub use body::{key, vm};
pub use engine::SimulatedEngine;
pub use platform::{Answer, Caller, Platform, code_in, fresh_database, token_in};
pub use sandboxes::SimulatedSandboxes;
pub use service::{Service, eventually, images};
pub use upstream::{Gate, Received, Script, Step, Upstream};
