//! What time brings to projects.

pub mod event;
