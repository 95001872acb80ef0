//! The only SQL of the gateway.
//!
//! What a tenant is shown takes a [`Tenant`], which only a checked scope yields; what is spent is summed up by
//! [`Whose`](crate::db::tenant::Whose), for limits. Usage is written by the meter for everybody.

pub mod spec;
pub mod usage;

pub use crate::db::tenant::Tenant;
