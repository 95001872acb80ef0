//! What there is to say about a host without asking it.

pub mod memory;
