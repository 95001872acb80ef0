//! Files of the workspace.
//!
//! The kernel resolves paths beneath a handle of the workspace; the agent never compares text for that. Threads with
//! the user's identity for files do the work: so neither `..`, nor a link, nor a race leads out, and the kernel checks
//! permissions.

pub mod archive;
mod beneath;
pub mod change;
pub mod content;
pub mod extended;
pub mod extract;
pub mod incoming;
pub mod list;
mod pool;
mod range;

pub use beneath::{Relative, open, open_directory};
pub use pool::Pool;
