//! What the gateway's own operations show and are told, as the OpenAPI document describes it.

pub mod model;
pub mod voice;
