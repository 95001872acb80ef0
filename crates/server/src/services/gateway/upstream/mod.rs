//! The servers that answer requests, and how the gateway reaches them.
//!
//! The [`fleet`] holds the [`table`] of what is on offer: models with their upstreams, and voices. An upstream has an
//! [`address`], to which the [`client`] speaks, and gives a [`slot`] to each request under way; where all slots are
//! taken, the [`queue`] says which request is next. [`health`] asks failed upstreams whether they are well again.
//!
//! What a request asks, and what becomes of an answer, is for `path`. This room may use `serve`, whose servers are
//! upstreams, and no other: an upstream does not know who pays.

pub mod address;
pub mod client;
pub mod fleet;
pub mod health;
pub mod queue;
pub mod slot;
pub mod table;
