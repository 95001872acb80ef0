//! Files of the workspace.
//!
//! Paths are resolved by the kernel beneath a handle of the workspace, never by comparing text, and by threads that
//! have the user's identity for files: so neither `..`, nor a link, nor a race leads out, and permissions are the
//! kernel's to check.

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
