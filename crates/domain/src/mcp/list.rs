//! Lists, of whatever it is.

use schemars::JsonSchema;
use serde::Deserialize;

/// Most that one page of a list has: what a model reads whole.
pub const PAGE: u64 = 20;

/// What a tool takes that takes nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
