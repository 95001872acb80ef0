//! What is there of a bridge, for a service that begins or that looks now and then.

use std::path::Path;

use crate::bridge::Bridge;
use crate::error::Result;
use crate::machine::Wanted;
use crate::{folder, nft};

/// What the folder of a bridge says that is wanted, whoever has it; none where there was no bridge.
///
/// # Errors
/// It cannot be read.
pub fn noted(folder: &Path) -> Result<Option<Wanted>> {
    folder::peek(folder)
}

impl Bridge {
    /// Whether its tables of rules are there: somebody who makes the host's rules anew takes them away with all others.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub async fn stands(&self) -> Result<bool> {
        let tables = nft::list(&["tables"]).await?;
        let has = |family: &str| {
            let is = |table: &serde_json::Value| table["family"] == family && table["name"] == *self.settings().name;
            tables.iter().any(|entry| is(&entry["table"]))
        };
        Ok(has("bridge") && has("inet"))
    }
}
