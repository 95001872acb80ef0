//! What the VM service shows and what it is told, as the OpenAPI document describes it.
//!
//! Requests are parsed by the domain, field by field; the request types here only describe them.

pub mod admin;
pub mod backup;
pub mod backup_schedule;
pub mod catalog;
pub mod disk;
pub mod disk_snapshot;
pub mod image;
pub mod project_image;
pub mod requests;
pub mod vm;
