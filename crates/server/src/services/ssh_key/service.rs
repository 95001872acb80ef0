//! The service of stored SSH keys as its routes see it.

use berth_host::clock::Clock;

use crate::db::Db;

/// The service of stored SSH keys.
#[derive(Clone)]
pub struct SshKeys {
    pub(super) db: Db,
    pub(super) clock: Clock,
}
