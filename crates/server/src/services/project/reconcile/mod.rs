//! What happens to projects with time.

pub mod event;
