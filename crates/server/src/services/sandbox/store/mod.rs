//! The only SQL of the sandbox service.
//!
//! A tenant's queries take a [`Tenant`]; the worker's go by id, because it works for everybody. Layers and
//! memories are held by the rows that name them. Whoever writes a row that does not name one any more has it
//! looked at ([`release`]), in the same transaction; whether it is needed is asked of all rows, never counted.

pub mod archive;
pub mod archived;
pub mod build_log;
pub mod copied;
pub mod durable;
pub mod layer;
pub mod layer_copy;
pub mod leaving;
pub mod memory;
pub mod metrics;
pub mod sandbox;
pub mod snapshot;
pub mod standing;
pub mod stored;
pub mod template;
pub mod upload;

use berth_domain::Timestamp;
use berth_domain::ids::{LayerId, MemoryId};

pub use crate::db::tenant::Tenant;
use crate::db::{DbError, Tx};

/// A row that holds layers and memories.
pub trait Holds {
    /// The layers it names.
    fn layers(&self) -> Vec<LayerId>;
    /// The memories it names.
    fn memories(&self) -> Vec<MemoryId>;
}

/// Has looked at what a row names no more.
pub async fn release(tx: &mut Tx, before: &impl Holds, after: &impl Holds, now: Timestamp) -> Result<(), DbError> {
    let (layers, memories) = (after.layers(), after.memories());
    for id in before.layers().into_iter().filter(|id| !layers.contains(id)) {
        layer::look_at(tx, id, now).await?;
    }
    for id in before.memories().into_iter().filter(|id| !memories.contains(id)) {
        memory::look_at(tx, id, now).await?;
    }
    Ok(())
}
