//! Images, contexts and registries as people have them, read through the crate's front door.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may end with a panic")]

mod contexts;
mod fixture;
mod images;
mod registries;
