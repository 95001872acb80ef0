//! Making the host agree with the rows: one network at a time, and what no row owns.

pub mod host;
pub mod network;

pub(super) use crate::work::lifecycle::{StepError, fault};
