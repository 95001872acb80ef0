//! Container images and build contexts, read as streams.
//!
//! ```text
//!   registry ─ Puller ─► store ─┐
//!   OCI layout, docker save ────┴─ Image ─► config, layers: plain tar ─┐
//!   uploaded context ───────────── Context ─► what a COPY takes: tar ──┴─► into a machine that is built in
//! ```
//!
//! Everything that is read here was made by somebody else. So nothing of it is ever unpacked on this machine or
//! executed: members of archives are found, checked against their digests, cut anew and passed on. Every size is
//! bounded before memory or disk is used for it, whatever a header claims.

mod archive;
mod blobs;
mod compression;
pub mod context;
mod error;
pub mod image;
mod layer;
mod members;
mod names;
pub mod pull;

pub use context::Context;
pub use error::{Error, Result};
pub use image::Image;
pub use layer::{Budget, Layer};
pub use oci_spec::distribution::Reference;
pub use pull::{Puller, Registries};

/// Most bytes of a manifest, an index or a configuration.
pub const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Most layers of an image, as with overlay file systems.
pub const MAX_LAYERS: usize = 127;
/// Most members of an archive that an image or a context comes as.
pub const MAX_MEMBERS: usize = 200_000;
