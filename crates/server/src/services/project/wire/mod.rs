//! The project service's answers, as the OpenAPI document describes them.

pub mod resource_usage;
pub mod usage;
