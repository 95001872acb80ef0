//! Who else has all of something, as rows tell of it.

use berth_domain::Timestamp;
use berth_domain::ids::HostId;

use crate::db::{DbError, Row};

/// Who else has all of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// A second host; none where it is the store of backups.
    pub host: Option<HostId>,
    /// Since when.
    pub since: Timestamp,
}

impl Copied {
    /// What a row says of it.
    pub fn of(row: &Row) -> Result<Option<Self>, DbError> {
        let host = row.opt_parsed("copy_host_id")?;
        Ok(row.opt_time("copied_at")?.map(|since| Self { host, since }))
    }
}
