//! What the project service shows, as the OpenAPI document describes it.

pub mod resource_usage;
pub mod usage;
