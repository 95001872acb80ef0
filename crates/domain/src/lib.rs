//! What Berth means: names, rules, states and plans.
//!
//! Nothing here performs I/O, reads a clock or draws randomness: time and chance are arguments.
//! That is what lets a state machine be tested by a million random walks instead of by a machine
//! that boots, and what makes a decision readable in one place. The compiler enforces it, because
//! this crate depends on nothing that could reach outside.

pub mod agent;
pub mod e2b;
pub mod error;
pub mod fair;
pub mod fields;
pub mod firewall;
pub mod gateway;
pub mod hex;
pub mod host;
pub mod identity;
pub mod ids;
pub mod json;
pub mod label;
pub mod machine;
#[cfg(feature = "schema")]
pub mod mcp;
pub mod names;
pub mod network;
pub mod oauth;
pub mod page;
pub mod query;
pub mod replica;
pub mod resource_usage;
pub mod sandbox;
pub mod secret;
pub mod series;
pub mod sse;
pub mod ssh_key;
pub mod time;
pub mod vm;
mod words;

pub use error::{Code, Error, FieldError, Result};
pub use secret::Secret;
pub use time::{Month, Timestamp};
use words::words;
