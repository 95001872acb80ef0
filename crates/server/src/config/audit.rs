//! `[audit]`: how long the service keeps records of what was done.

use anyhow::{Result, ensure};
use serde::Deserialize;

/// The audit log.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Days for which a record is kept; 0 keeps it for ever.
    pub retention_days: i64,
    /// Number of records of refusals that are kept, the newest ones; strangers cause them.
    pub refusals: i64,
}

impl Default for Audit {
    fn default() -> Self {
        Self { retention_days: 365, refusals: 1_000_000 }
    }
}

impl Audit {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            (0..=36_500).contains(&self.retention_days),
            "audit.retention_days must be 0 to 36500; 0 keeps records for ever"
        );
        ensure!((1_000..=1_000_000_000).contains(&self.refusals), "audit.refusals must be from 1000 to 1000000000");
        Ok(())
    }
}
