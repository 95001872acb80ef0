//! Who answers requests, and how they are reached.
//!
//! The [`fleet`] holds the [`table`] of what is on offer: models with their upstreams, and voices. An upstream has an
//! [`address`], to which the [`client`] speaks, and gives a [`slot`] to each request under way; where all are taken,
//! the [`queue`] says who is next. [`health`] asks those that failed whether they are well again.
//!
//! What is asked, and what becomes of an answer, is for the path. This room may use `serve`, whose servers are
//! upstreams, and no other: who pays is nothing to an upstream.

pub mod address;
pub mod client;
pub mod fleet;
pub mod health;
pub mod queue;
pub mod slot;
pub mod table;
