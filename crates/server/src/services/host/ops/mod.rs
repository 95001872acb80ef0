//! What administrators of the platform say of hosts, each in one transaction.

pub mod host;
pub mod join;
