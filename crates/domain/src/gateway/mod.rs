//! Models behind one gateway: what a model is, what a request to it says, which upstream answers it, what an answer
//! reports, and what it costs.
//!
//! The gateway is a hot path: bytes go through it as they came. So everything here reads without building: spans of a
//! body ([`body`]), ends of events ([`crate::sse`]), the few needed fields of a chunk ([`chunk`]). Decisions are
//! functions of plain snapshots ([`route`], [`breaker`], [`budget`], [`fair`]), with time and chance as arguments.

pub mod body;
pub mod breaker;
pub mod budget;
pub mod chunk;
pub mod fair;
pub mod framing;
mod hash;
mod image;
pub mod latency;
pub mod model;
pub mod money;
pub mod name;
pub mod refusal;
pub mod route;
pub mod speech;
pub mod voice;

pub use model::{Access, Model, ModelId, Place, Strategy, Timeouts, Upstream};
pub use money::{Nano, Price, Usage};
pub use voice::{Source, Voice};
