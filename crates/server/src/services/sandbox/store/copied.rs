//! A second host, as rows tell of it.

use berth_domain::Timestamp;
use berth_domain::ids::HostId;

use crate::db::{DbError, Row};

/// A second host that has all of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Which.
    pub host: HostId,
    /// Since when.
    pub since: Timestamp,
}

impl Copied {
    /// What a row says of it.
    pub fn of(row: &Row) -> Result<Option<Self>, DbError> {
        let (host, since) = (row.opt_parsed("copy_host_id")?, row.opt_time("copied_at")?);
        Ok(host.zip(since).map(|(host, since)| Self { host, since }))
    }
}
