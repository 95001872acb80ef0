//! Networks of a project.

use serde::{Deserialize, Serialize};

use crate::transport::segment;
use crate::{List, Page, ProjectClient, Result};

/// A network, in which VMs and sandboxes of a project reach each other by name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ProjectNetwork {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Its addresses, as a CIDR.
    pub cidr: String,
    /// Its IPv6 addresses, as a CIDR, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<String>,
    /// Where its names are asked for.
    pub resolver: String,
    /// The same in IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolver6: Option<String>,
    /// How many VMs and sandboxes belong to it.
    pub member_count: i64,
    /// Which; a list of networks does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<NetworkMember>>,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// What belongs to a network.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct NetworkMember {
    /// `vm` or `sandbox`.
    pub kind: String,
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Its address in the network.
    pub address: String,
    /// Its IPv6 address there, if the network has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
}

/// A network that a VM or a sandbox belongs to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Membership {
    /// The network's id.
    pub network_id: String,
    /// The network's name.
    pub name: String,
    /// The address of the VM or sandbox there.
    pub address: String,
    /// Its IPv6 address there, if the network has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<String>,
}

/// A network to make.
#[derive(Clone, Debug, Serialize)]
pub struct NewNetwork {
    /// Name, unique in the project.
    pub name: String,
    /// Its addresses, as a CIDR; by default some free ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr: Option<String>,
    /// Its IPv6 addresses, as a CIDR, or `none`; by default some made by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<String>,
}

/// A change of a network; what is absent stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChangeProjectNetwork {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

impl ProjectClient {
    fn network_path(&self, id: &str) -> String {
        format!("{}/networks/{}", self.path, segment(id))
    }

    /// Networks, newest first.
    pub async fn networks(&self, page: Page) -> Result<List<ProjectNetwork>> {
        self.client.list(&format!("{}/networks", self.path), &page).await
    }

    /// One network, with what belongs to it.
    pub async fn network(&self, id: &str) -> Result<ProjectNetwork> {
        self.client.get(&self.network_path(id)).await
    }

    /// Makes a network.
    pub async fn create_network(&self, request: &NewNetwork) -> Result<ProjectNetwork> {
        self.client.post(&format!("{}/networks", self.path), Some(request)).await
    }

    /// Changes a network.
    pub async fn update_network(&self, id: &str, change: &ChangeProjectNetwork) -> Result<ProjectNetwork> {
        self.client.patch(&self.network_path(id), change).await
    }

    /// Deletes a network to which nothing belongs.
    pub async fn delete_network(&self, id: &str) -> Result<()> {
        self.client.delete(&self.network_path(id)).await
    }
}
