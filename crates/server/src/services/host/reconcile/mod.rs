//! What time brings to hosts.

pub mod host;
pub mod join;
mod stores;
