//! `[lost]`: how long the service keeps things that no row owns.

use anyhow::{Result, ensure};
use serde::Deserialize;

/// Things that were set aside because no row owns them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lost {
    /// Whole days for which they are kept.
    pub days: i64,
}

impl Default for Lost {
    fn default() -> Self {
        Self { days: 14 }
    }
}

impl Lost {
    pub(super) fn check(&self) -> Result<()> {
        ensure!((1..=3650).contains(&self.days), "lost.days must be from 1 to 3650");
        Ok(())
    }
}
