//! The only SQL of the VM service.
//!
//! A tenant's queries take a [`Tenant`], which only a checked scope yields: a query cannot forget whose
//! rows it may see. The worker's queries go by id, because it works for everybody.

pub mod backup;
pub mod backup_schedule;
pub mod brought_disk;
pub mod disk;
pub mod disk_snapshot;
pub mod fence;
pub mod image;
pub mod migration;
pub mod name;
pub mod operation;
pub mod project_image;
pub mod vm;

pub use crate::db::tenant::Tenant;
