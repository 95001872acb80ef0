//! Switches on this host: a folder for each network, with what it was last told.

use std::io::ErrorKind;
use std::path::PathBuf;

use async_trait::async_trait;
use berth_domain::ids::NetworkId;

use super::{Found, NetworkEngine, NetworkSpec};
use crate::error::transient;
use crate::{HostSettings, Result};

/// What a network was told, in its folder.
const NOTE: &str = "network.json";

/// The networks of this host.
pub struct Switches {
    folder: PathBuf,
}

impl Switches {
    /// The networks of a data folder.
    pub fn open(settings: &HostSettings) -> Self {
        Self { folder: settings.data.join("networks") }
    }

    fn dir(&self, id: NetworkId) -> PathBuf {
        self.folder.join(id.to_string())
    }
}

#[async_trait]
impl NetworkEngine for Switches {
    async fn set(&self, network: &NetworkSpec) -> Result<()> {
        let dir = self.dir(network.id);
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        let text = serde_json::to_vec(network).map_err(transient)?;
        tokio::fs::write(dir.join(NOTE), text).await.map_err(transient)
    }

    async fn remove(&self, id: NetworkId) -> Result<()> {
        match tokio::fs::remove_dir_all(self.dir(id)).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(transient(error)),
            _ => Ok(()),
        }
    }

    async fn scan(&self) -> Result<Found> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        Ok(Found { networks: entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect() })
    }
}
