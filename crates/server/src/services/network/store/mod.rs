//! The only SQL of the network service; that of memberships, which other services write, stands in
//! [`crate::db::network`].
//!
//! A tenant's queries take a [`Tenant`], which only a checked scope yields. The worker's queries go by id, because it
//! works for everybody.

pub mod network;

pub use crate::db::tenant::Tenant;
