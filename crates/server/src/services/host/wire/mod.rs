//! What the host service shows, as the OpenAPI document describes it.

pub mod host;
pub mod join;
