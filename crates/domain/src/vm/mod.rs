//! Virtual machines and their disks: what they are, which requests are legal, what comes next.
//!
//! ```text
//!             create                    ┌──────── restart ────────┐
//!   ─────────► pending ─► provisioning ─► starting ─► running ◄─► restarting
//!                              │             ▲ │         │ │
//!                              │       start │ └──┐      │ └─ died ─► failed
//!                              └─► failed ───┘    ▼      ▼ stop / guest powers off
//!                                    ▲  stop ─► stopping ─► stopped ─ start ─►
//!   any ─ delete ─► deleting ─► deleted (seen only in events and with include_deleted)
//! ```
//!
//! [`state`] decides what a request does to a status. [`plan`] decides what the worker does next to
//! bring the world to what the row wants. Both are pure, so both are tested by random walks.

pub mod backup;
pub mod backup_schedule;
pub mod brought_disk;
pub mod disk;
pub mod disk_import;
pub mod disk_snapshot;
pub mod export;
pub mod image;
pub mod image_travel;
pub mod inbound;
pub mod model;
pub mod plan;
pub mod pool;
pub mod project_image;
pub mod request;
pub mod shared_disk;
pub mod slots;
pub mod state;

pub use backup::BackupStatus;
pub use disk::{DiskChange, DiskKind, DiskStatus, DiskType, Extent};
pub use disk_snapshot::DiskSnapshotStatus;
pub use image::ImageStatus;
pub use inbound::{InboundPort, Reach};
pub use model::{ExposedPort, Protocol, RestartPolicy, Status};
pub use project_image::ProjectImageStatus;
pub use request::CreateVm;
