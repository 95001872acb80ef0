//! What the store of backups has of a layer or a memory, as rows tell of it.

use berth_domain::sandbox::layer_copy::Archive;
use berth_host::sandbox::ImageFile;

use crate::db::{DbError, Row};

/// All of a layer or a memory in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// The store.
    pub archive: Archive,
    /// What its host called it, its length, and what it hashes to.
    pub file: ImageFile,
}

impl Archived {
    /// What a row says of it; none where no store has all of it.
    pub fn of(row: &Row) -> Result<Option<Self>, DbError> {
        let (store, name) = (row.opt_text("archive_store")?, row.opt_text("archive_name")?);
        let (bytes, sha256) = (row.opt_int("archive_bytes")?, row.opt_text("archive_sha256")?);
        let (Some(store), Some(name), Some(bytes), Some(sha256)) = (store, name, bytes, sha256) else {
            return Ok(None);
        };
        let is_doubted = row.flag("archive_doubted")?;
        let file = ImageFile { name, bytes: u64::try_from(bytes).unwrap_or_default(), sha256 };
        Ok(Some(Self { archive: Archive { store, is_doubted }, file }))
    }
}
