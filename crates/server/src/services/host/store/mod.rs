//! Rows of the host service.

pub mod host;
