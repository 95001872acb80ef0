//! Who is in a network, as its switch is told.

use std::net::Ipv4Addr;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// A network, with all that belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some: a member's follows from its other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<Ipv6Net>,
    /// Who belongs to it, here or elsewhere.
    pub members: Vec<Member>,
}

/// A machine of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which, whatever names machines: where another one has its address, its link ends.
    pub machine: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// What others call it.
    pub names: Vec<String>,
}
