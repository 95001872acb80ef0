//! What is there of a bridge, for a service that begins or that looks now and then.

use std::path::Path;

use crate::bridge::Bridge;
use crate::error::Result;
use crate::machine::Wanted;
use crate::{folder, host, nft};

/// A chain of each table that the kernel goes through by itself. A table that was flushed has them, and no rule in them.
const HOOKED: [(&str, &str); 4] =
    [("bridge", "prerouting"), ("bridge", "output"), ("inet", "forward"), ("inet", "input")];

/// What the folder of a bridge says that is wanted, whoever has it; none where there was no bridge.
///
/// # Errors
/// It cannot be read.
pub fn noted(folder: &Path) -> Result<Option<Wanted>> {
    folder::peek(folder)
}

impl Bridge {
    /// Whether it is up and forwards, and its tables have rules: somebody who makes the host's rules or settings anew takes
    /// them away with all others.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub async fn stands(&self) -> Result<bool> {
        let name = &self.settings().name;
        let is_up = self.links().all().await?.get(name).is_some_and(|device| device.is_up);
        if !is_up || !self.forwards() {
            return Ok(false);
        }
        let tables = nft::list(&["tables"]).await?;
        for (family, chain) in HOOKED {
            let is = |table: &serde_json::Value| table["family"] == family && table["name"] == **name;
            let is_there = tables.iter().any(|entry| is(&entry["table"]));
            if !is_there || !nft::has_rules(family, name, chain).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A family that the kernel does not have is none that it could forward.
    fn forwards(&self) -> bool {
        let is_on = |family| {
            let setting = host::setting(family, &self.settings().name, "forwarding");
            setting.map_or_else(|error| error.kind() == std::io::ErrorKind::NotFound, |is| is == "1")
        };
        is_on("ipv4") && (self.settings().subnet6.is_none() || is_on("ipv6"))
    }
}
