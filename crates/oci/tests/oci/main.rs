//! Real-world images, contexts and registries, read through the crate's public API.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end with a panic")]

mod contexts;
mod fixture;
mod images;
mod registries;
