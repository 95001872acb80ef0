//! Sandboxes: what they are and what they may do.

pub mod dockerfile;
pub mod network;
