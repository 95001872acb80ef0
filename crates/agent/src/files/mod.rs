//! Files of the workspace, and of the machine.
//!
//! The kernel resolves paths beneath a handle of the workspace; the agent never compares text for that. Threads with
//! the user's identity for files do the work: so neither `..`, nor a link, nor a race leads out, and the kernel checks
//! permissions. A request that says so has its paths taken from the machine's root: there only permissions keep it in.

pub mod archive;
mod attributes;
mod base;
mod beneath;
pub mod change;
pub mod content;
mod details;
pub mod extended;
pub mod extract;
mod gate;
pub mod incoming;
pub mod list;
mod pool;
mod pools;
mod range;
mod stat;
pub mod upload;
mod worker;

pub use base::Base;
pub use beneath::{join, named, open};
pub use gate::Gate;
pub use pool::Pool;
pub use pools::Pools;
pub use worker::Worker;
