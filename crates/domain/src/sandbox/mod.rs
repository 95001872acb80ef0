//! Sandboxes: what they are, which requests are legal, what comes next, and what they may reach.
//!
//! ```text
//!   create, fork ─► Pending ─► Provisioning ─► Ready ◄──────────── Resuming
//!                      │            │          │ │ ▲ died: again        ▲
//!                      │            │    pause │ │ └── Restoring ◄──┐   │ resume
//!                      ▼            ▼          ▼ └─ restore ────────┤   │
//!                    Failed ◄─── too late   Pausing ─► Paused ──────┴───┘
//!                      └─ restore ─► Restoring
//!   any ─ delete ─► Deleting ─► (gone)
//! ```
//!
//! [`state`] decides what a request does to a phase, [`entry`] what becomes of one to what is inside, [`plan`] what the worker
//! does next.

pub mod dockerfile;
pub mod durable;
pub mod entry;
pub mod guest_travel;
pub mod layer_copy;
pub mod model;
pub mod network_policy;
pub mod plan;
pub mod request;
pub mod state;
pub mod template;

pub use model::{MemoryKind, OnTimeout, Phase, SnapshotStatus, SourceKind, TemplateStatus, Warm, Wish};
