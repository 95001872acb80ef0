//! The only SQL of the gateway.
//!
//! A tenant's queries take a [`Tenant`], which only a checked scope yields. Usage is written by the meter for
//! everybody, and summed up by the database.

pub mod spec;
pub mod usage;

pub use crate::db::tenant::Tenant;
