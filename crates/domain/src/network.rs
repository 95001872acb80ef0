//! Networks of a project: how requests for them are read, and which addresses they and their members have.
//!
//! ```text
//!   10.128.0.0/24      .0        .1         .2 … .254    .255
//!                    network  resolver      members    broadcast
//! ```
//!
//! A network has IPv4 addresses of its own: those that its owner names, or the first free ones of a range that nobody
//! else uses here. Networks of one project do not overlap, so that a member of several knows by an address which
//! network is meant; those of different projects may, since they never meet. What is free is told by the rows, which
//! are arguments here.
//!
//! Its IPv6 addresses, where it has some, follow from those of IPv4: who is the fifth here is the fifth there. So no row
//! holds them, and whoever knows one knows the other.
//!
//! ```text
//!   fd12:3456:789a::/64    ::        ::1        ::2 …
//!                        nobody's  resolver    members
//! ```

use core::net::{Ipv4Addr, Ipv6Addr};
use std::collections::{BTreeSet, HashSet};

use ipnet::{Ipv4Net, Ipv6Net};
use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, Parsed, id, text};
use crate::ids::NetworkId;
use crate::names::ReferenceName;
use crate::words;

/// Most networks that a VM or a sandbox belongs to.
pub const MAX_NETWORKS: usize = 4;
/// Bounds of a network's prefix: the widest and the narrowest.
pub const PREFIX: (u8, u8) = (16, 28);
/// Most networks of a project: each is compared with all others when one is made.
pub const MOST: usize = 256;
/// The prefix of a network whose owner names none.
const DEFAULT_PREFIX: u8 = 24;
/// Where the addresses of such networks come from.
const POOL: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 9);
/// The private networks (RFC 1918).
const PRIVATE: [Ipv4Net; 3] = [
    Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 16, 0, 0), 12),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
];
/// What every guest has behind its network card: its own address, its gateway and its resolver.
pub const GUESTS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 2, 0), 24);

/// Bounds of the prefix of its IPv6 addresses: what a site has, and what a network of one link has (RFC 4291, 2.5.1).
pub const PREFIX6: (u8, u8) = (48, 64);
/// The addresses for local use (RFC 4193) that whoever likes may choose some of.
pub const LOCAL6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0), 8);
/// Those that every guest has behind its network card.
pub const GUESTS6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 0), 48);

/// A valid request for a network. Which others there are is looked at later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateNetwork {
    /// Its name, unique in the project.
    pub name: ReferenceName,
    /// Its addresses; some free ones where absent.
    pub cidr: Option<Ipv4Net>,
    /// Its IPv6 addresses.
    pub cidr6: Wanted6,
}

/// Which IPv6 addresses a network is to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted6 {
    /// Some that nobody else is likely to have.
    #[default]
    Any,
    /// None.
    Nothing,
    /// These.
    These(Ipv6Net),
}

impl TryFrom<&Value> for CreateNetwork {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", name);
        let cidr = f.optional("cidr", cidr);
        let cidr6 = f.optional("cidr6", cidr6).unwrap_or_default();
        f.finish(name.map(|name| Self { name, cidr, cidr6 }))
    }
}

/// A change of a network; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateNetwork {
    /// New name.
    pub name: Option<ReferenceName>,
}

impl TryFrom<&Value> for UpdateNetwork {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self { name: f.optional("name", name) };
        f.finish(Some(change))
    }
}

/// Reads which networks a new VM or sandbox belongs to; none where nothing is said of them.
pub fn read_ids(f: &mut Fields<'_>) -> Option<Vec<NetworkId>> {
    let ids: Vec<NetworkId> = f.list("network_ids", MAX_NETWORKS, id)?;
    let distinct: HashSet<_> = ids.iter().collect();
    if distinct.len() < ids.len() {
        f.fail("network_ids", "must not name the same thing twice");
    }
    Some(ids)
}

fn name(value: &Value) -> Parsed<ReferenceName> {
    ReferenceName::parse(text(value)?)
}

fn cidr(value: &Value) -> Parsed<Ipv4Net> {
    let text = text(value)?;
    let cidr: Ipv4Net = text.parse().map_err(|_| "must be an IPv4 network such as 10.20.0.0/24")?;
    let whole = cidr.trunc();
    if whole != cidr {
        return Err(format!("has bits set behind its prefix: write {whole}"));
    }
    if !(PREFIX.0..=PREFIX.1).contains(&cidr.prefix_len()) {
        return Err(format!("must have a prefix from /{} to /{}", PREFIX.0, PREFIX.1));
    }
    if !PRIVATE.iter().any(|private| private.contains(&cidr)) {
        return Err("must lie in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16".into());
    }
    if overlap(cidr, GUESTS) {
        return Err(format!("must not overlap {GUESTS}, which every guest has behind its network card"));
    }
    // One spelling for one network: an address in its short form, a prefix without zeros.
    if text != cidr.to_string() {
        return Err(format!("has another spelling: write {cidr}"));
    }
    Ok(cidr)
}

fn cidr6(value: &Value) -> Parsed<Wanted6> {
    let text = text(value)?;
    if text == "none" {
        return Ok(Wanted6::Nothing);
    }
    let cidr: Ipv6Net = text.parse().map_err(|_| "must be \"none\" or an IPv6 network such as fd00:20::/64")?;
    let whole = cidr.trunc();
    if whole != cidr {
        return Err(format!("has bits set behind its prefix: write {whole}"));
    }
    if !(PREFIX6.0..=PREFIX6.1).contains(&cidr.prefix_len()) {
        return Err(format!("must have a prefix from /{} to /{}", PREFIX6.0, PREFIX6.1));
    }
    if !LOCAL6.contains(&cidr) {
        return Err(format!("must lie in {LOCAL6}"));
    }
    if overlap6(cidr, GUESTS6) {
        return Err(format!("must not overlap {GUESTS6}, which every guest has behind its network card"));
    }
    if text != cidr.to_string() {
        return Err(format!("has another spelling: write {cidr}"));
    }
    Ok(Wanted6::These(cidr))
}

words! {
    /// What the worker does next for a network.
    NetworkStep {
        /// Tell the host what the network is and who belongs to it.
        Tell = "tell",
        /// Remove it from the host, and its row after it.
        Remove = "remove",
    }
}

/// The next step for a network whose owner has it removed, or of whose changes the host knows those up to `told`; none
/// where the host knows all of them.
pub const fn next(removed: bool, revision: i64, told: i64) -> Option<NetworkStep> {
    match removed {
        true => Some(NetworkStep::Remove),
        false if told < revision => Some(NetworkStep::Tell),
        false => None,
    }
}

/// Whether two networks have an address in common.
pub fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// The same of IPv6.
pub fn overlap6(one: Ipv6Net, other: Ipv6Net) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// IPv6 addresses for an owner who wants some and names none, of random bits (RFC 4193, 3.2): those that overlap none of the
/// project's; none where these bits have only such.
pub fn chosen_cidr6(random: u128, taken: &[Ipv6Net]) -> Option<Ipv6Net> {
    let of = |shift: u32| {
        let [.., a, b, c, d, e] = random.rotate_right(shift).to_be_bytes();
        let [ab, cd] = [u16::from_be_bytes([b, c]), u16::from_be_bytes([d, e])];
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd00 | u16::from(a), ab, cd, 0, 0, 0, 0, 0), PREFIX6.1)
    };
    let is_free = |cidr: &Ipv6Net| taken.iter().chain([&GUESTS6]).all(|other| !overlap6(*cidr, *other));
    (0..u128::BITS).map(of).find(is_free)
}

/// The first network for an owner who names none, beside those that the project has; none where no place is left.
pub fn free_cidr(taken: &[Ipv4Net]) -> Option<Ipv4Net> {
    let step = 1_u32 << (32 - DEFAULT_PREFIX);
    let (mut next, last) = (POOL.network().to_bits(), POOL.broadcast().to_bits());
    while next < last {
        let candidate = Ipv4Net::new_assert(Ipv4Addr::from_bits(next), DEFAULT_PREFIX);
        let Some(other) = taken.iter().find(|other| overlap(candidate, **other)) else { return Some(candidate) };
        // Behind whatever is there, which may be wider than one place.
        next = candidate.broadcast().max(other.broadcast()).to_bits().checked_add(1)?.next_multiple_of(step);
    }
    None
}

/// Where the network's own resolver answers: the first address behind that of the network.
pub fn resolver(cidr: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from_bits(cidr.network().to_bits().saturating_add(1))
}

/// The same of its IPv6 addresses.
pub fn resolver6(cidr: Ipv6Net) -> Ipv6Addr {
    Ipv6Addr::from_bits(cidr.network().to_bits() | 1)
}

/// The IPv6 address of who has an address in a network: as many places behind the first one.
pub fn address6(cidr: Ipv4Net, address: Ipv4Addr, cidr6: Ipv6Net) -> Ipv6Addr {
    let place = address.to_bits().saturating_sub(cidr.network().to_bits());
    Ipv6Addr::from_bits(cidr6.network().to_bits() | u128::from(place))
}

/// The addresses that members may have and that are free, the lowest first.
pub fn free_addresses(cidr: Ipv4Net, taken: &BTreeSet<Ipv4Addr>) -> impl Iterator<Item = Ipv4Addr> {
    let members = resolver(cidr).to_bits() + 1..cidr.broadcast().to_bits();
    members.map(Ipv4Addr::from_bits).filter(|address| !taken.contains(address))
}

/// Places in networks for several new members: each gets one in every network. The index of the network that is full,
/// where one is.
pub fn places(
    networks: &[Ipv4Net],
    taken: &[BTreeSet<Ipv4Addr>],
    members: usize,
) -> core::result::Result<Vec<Vec<Ipv4Addr>>, usize> {
    let mut places = vec![Vec::with_capacity(networks.len()); members];
    for (index, (cidr, taken)) in networks.iter().zip(taken).enumerate() {
        let mut free = free_addresses(*cidr, taken);
        for place in &mut places {
            place.push(free.next().ok_or(index)?);
        }
    }
    Ok(places)
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
