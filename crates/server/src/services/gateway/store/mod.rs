//! The only SQL of the gateway.
//!
//! A query for what a tenant sees takes a [`Tenant`], which only a checked scope yields. A query for limits sums up
//! what a [`Whose`](crate::db::tenant::Whose) spent. The meter writes usage for everybody.

pub mod spec;
pub mod usage;

pub use crate::db::tenant::Tenant;
