//! The service through its public API: every rule, bound and error row, over a simulated engine.

#![expect(clippy::expect_used, clippy::panic, reason = "a test may end with a panic")]

mod account;
mod admin;
mod api_key;
mod audit;
mod authority;
mod capacity;
mod client_address;
mod disk;
mod edge;
mod envelope;
mod event;
mod fault;
mod host;
mod idempotency;
mod identity;
mod image;
mod keeper;
mod life;
mod list;
mod mail;
mod matrix;
mod openapi;
mod org;
mod port;
mod quota;
mod reach;
mod resource_usage;
mod sandbox;
mod sandbox_life;
mod sandbox_snapshot;
mod sandbox_walk;
mod scale;
mod secret;
mod slow;
mod standing;
mod stranger;
mod strict;
mod template;
mod tenancy;
mod token;
mod unread;
mod upgrade;
mod vm;
mod warm;
