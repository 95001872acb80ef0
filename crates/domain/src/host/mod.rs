//! What there is to say about a host without asking it.

pub mod memory;
pub mod model;

pub use model::{Capacity, State};
