//! The project service as its routes and workers see it.

use berth_host::clock::Clock;

use crate::db::Db;

/// The project service.
#[derive(Clone)]
pub struct Projects {
    pub(super) db: Db,
    pub(super) clock: Clock,
}
