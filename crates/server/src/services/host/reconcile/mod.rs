//! What time brings to hosts.

pub mod host;
