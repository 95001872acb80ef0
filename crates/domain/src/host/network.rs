//! Networks of projects, as a host is told of them and tells of them.
//!
//! A host is told all of a network at once, as often as somebody likes, and makes it so: who belongs to it, where they
//! are in it and what they are called. A machine's start says in which networks the machine is, so that it has them at
//! once.

use core::net::Ipv4Addr;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::firewall::Rules;
use crate::ids::{MachineId, NetworkId};

/// A network, with all that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSpec {
    /// Its id: what it is called on the host.
    pub id: NetworkId,
    /// Counts its changes: a host that was told a later one refuses it.
    pub revision: i64,
    /// Its name, by which its members find each other: `web.<name>.internal`.
    pub name: String,
    /// Its addresses. The first one after the network's own is where its names are asked for; that one, the network's
    /// own and the last are no member's.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some: a member's follows from its other one ([`crate::network::address6`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<Ipv6Net>,
    /// Who belongs to it, on whatever host.
    pub members: Vec<Member>,
    /// The firewall rules between them.
    #[serde(default)]
    pub rules: Rules,
}

/// A machine that belongs to a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The machine, running or not.
    pub machine: MachineId,
    /// Its address in the network.
    pub address: Ipv4Addr,
    /// What others of the network call it: its names, without a dot each.
    pub names: Vec<String>,
}

/// That a machine belongs to a network, as its start says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The network.
    pub network: NetworkId,
    /// The network's addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<Ipv6Net>,
    /// The machine's own among them.
    pub address: Ipv4Addr,
}

/// What the host has of networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Networks that it was told of, whether a machine in them runs or not.
    pub networks: Vec<NetworkId>,
}
