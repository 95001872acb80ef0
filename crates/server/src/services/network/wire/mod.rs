//! What the network service takes and shows, as the OpenAPI document describes it.

pub mod network;
pub mod requests;
