//! A host: what there is to say about it without asking it, and what it may be asked.
//!
//! [`Ask`] is all that may be asked of a host, with the type of each answer. What questions and answers speak of stands
//! in a file for each noun, and is the same for whoever runs machines in the same process and for whoever is told by
//! bytes.

pub mod aim;
pub mod ask;
pub mod disk;
pub mod error;
pub mod export;
pub mod fence;
pub mod gpu;
pub mod guest;
pub mod image;
pub mod join;
pub mod migration;
pub mod model;
pub mod network;
pub mod overcommit;
pub mod placement;
pub mod request;
pub mod sandbox;
pub mod shared_disk;
pub mod template;
pub mod vm;

pub use aim::Aim;
pub use ask::{Ask, Question};
pub use error::{EngineError, Result};
pub use model::{Capacity, Drain, Service, State};
