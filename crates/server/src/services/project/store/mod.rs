//! The only SQL of the project service.

pub mod event;
