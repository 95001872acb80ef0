//! Container images and build contexts, read as streams.
//!
//! ```text
//!   registry ─ Puller ─► store ─┐
//!   OCI layout, docker save ────┴─ Image ─► config, layers: plain tar ─┐
//!   uploaded context ───────────── Context ─► what a COPY takes: tar ──┴─► into a machine that is built in
//! ```
//!
//! Strangers made everything that this crate reads. So it never unpacks or executes any of it on this machine: it finds
//! members of archives, checks them against their digests, writes them into new archives and passes those on. Every
//! size is bounded before memory or disk is used for it, whatever a header claims.

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
pub use layer::{Budget, ImageLayer};
pub use oci_spec::distribution::Reference;
pub use pull::{Puller, Registries};

/// Most bytes of a manifest, an index or a configuration.
pub const MAX_DOCUMENT: u64 = 4 * 1024 * 1024;
/// Most layers of an image, as with overlay file systems.
pub const MAX_LAYERS: usize = 127;
/// Most members of the archive of an image or a context.
pub const MAX_MEMBERS: usize = 200_000;
