//! Places in networks for new VMs and sandboxes, and how their owners see them. Who belongs to which network is told by
//! rows ([`crate::db::network`]); what is free is decided in [`berth_domain::network`].

use berth_domain::ids::NetworkId;
use berth_domain::network::places;
use berth_domain::{Code, Error, Result};
use serde::Serialize;
use utoipa::ToSchema;

use crate::db::Tx;
use crate::db::network::{self, MembershipRow, Open};
use crate::db::tenant::Tenant;

/// The networks that a request names; 400 for one that the project has not.
pub async fn references(tx: &mut Tx, tenant: Tenant, ids: &[NetworkId]) -> Result<Vec<Open>> {
    let mut found = Vec::new();
    for id in ids {
        found.push(network::open(tx, tenant, *id).await?.ok_or_else(|| Error {
            code: Code::NetworkNotFound,
            ..Error::field("network_ids", format!("there is no network {id} in this project"))
        })?);
    }
    Ok(found)
}

/// Of the networks that something else belonged to, those that the project still has.
pub async fn still_open(tx: &mut Tx, tenant: Tenant, ids: &[NetworkId]) -> Result<Vec<Open>> {
    let mut found = Vec::new();
    for id in ids {
        found.extend(network::open(tx, tenant, *id).await?);
    }
    Ok(found)
}

/// Places in networks for a new member; 409 where one is full.
pub async fn of_one(tx: &mut Tx, networks: &[Open]) -> Result<Vec<MembershipRow>> {
    Ok(of_several(tx, networks, 1).await?.pop().unwrap_or_default())
}

/// The same for several new members, each of which gets a place in every network.
pub async fn of_several(tx: &mut Tx, networks: &[Open], members: usize) -> Result<Vec<Vec<MembershipRow>>> {
    let (mut cidrs, mut taken) = (Vec::new(), Vec::new());
    for network in networks {
        cidrs.push(network.cidr);
        taken.push(network::addresses(tx, network.id).await?);
    }
    let places = places(&cidrs, &taken, members).map_err(|full| full_network(&networks[full]))?;
    let joined = |(network, address): (&Open, _)| MembershipRow {
        id: network.id,
        name: network.name.clone(),
        cidr: network.cidr,
        cidr6: network.cidr6,
        address,
    };
    Ok(places.into_iter().map(|place| networks.iter().zip(place).map(joined).collect()).collect())
}

fn full_network(network: &Open) -> Error {
    let message = format!(
        "The network {} ({}) has no free address. Delete VMs or sandboxes that belong to it, or make a wider network.",
        network.name, network.cidr
    );
    Error::new(Code::NetworkFull, message)
}

/// A network that a VM or a sandbox belongs to.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = NetworkMembership)]
pub struct MembershipView {
    /// The network.
    #[schema(value_type = uuid::Uuid)]
    network_id: String,
    /// Its name.
    name: String,
    /// The address that others of the network reach it at.
    #[schema(format = Ipv4)]
    address: String,
    /// The same in IPv6, if the network has such addresses.
    #[schema(format = Ipv6)]
    address6: Option<String>,
}

impl From<&MembershipRow> for MembershipView {
    fn from(joined: &MembershipRow) -> Self {
        Self {
            network_id: joined.id.to_string(),
            name: joined.name.clone(),
            address: joined.address.to_string(),
            address6: joined.address6().map(|address| address.to_string()),
        }
    }
}
