//! Requests and answers of the gateway's own operations, as the OpenAPI document describes them.

pub mod model;
pub mod voice;
