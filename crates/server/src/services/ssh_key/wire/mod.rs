//! What goes over the wire, as the OpenAPI document describes it.

pub(super) mod ssh_key;
