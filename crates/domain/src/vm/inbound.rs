//! Where the inbound ports of a VM are reached, and where each of them leads.
//!
//! A VM has an address of its own, which its host alone or others, too, reach, and at which each port answers under its own
//! number; or VMs share an address of the host, and each has a block of that address' ports: SSH has the first, and an
//! exposed port has any other and keeps it for as long as it is exposed. The list of open ports says which, so no row holds
//! more than that list: a port that is open stays where it is, whatever else changes.

use core::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::model::{ExposedPort, Protocol, ssh_port};
use super::pool::Pool;

/// The port of the guest at which SSH answers. No owner exposes it by themselves.
pub const SSH: ExposedPort = ExposedPort { port: 22, protocol: Protocol::Tcp };

/// Ports of a shared address that a VM has: SSH's, and one for each that it may expose.
pub const BLOCK: u16 = 11;
/// The first port that VMs may share: those below are for services of the host.
pub const FIRST_PORT: u16 = 1024;

/// An inbound port of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct InboundPort {
    /// The port of the guest.
    #[serde(flatten)]
    pub to: ExposedPort,
    /// Where it is reached.
    pub at: SocketAddr,
}

/// How the VMs of a host are reached, as far as that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// By an address of its own each, which only that host reaches.
    #[default]
    Here,
    /// By what they share.
    Shared(Shared),
    /// By an address of these each.
    Pool(Pool),
}

/// What VMs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "Told")]
pub struct Shared {
    /// The address.
    pub address: IpAddr,
    /// The first and the last of its ports that VMs may have.
    pub ports: (u16, u16),
}

/// What a host says that its VMs share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    address: IpAddr,
    ports: (u16, u16),
}

impl TryFrom<Told> for Shared {
    type Error = &'static str;

    /// One VM has room there, at an address that others may have, and takes no port of a service of the host.
    fn try_from(Told { address, ports }: Told) -> Result<Self, Self::Error> {
        if address.is_unspecified() || address.is_multicast() {
            return Err("what VMs share must be one address of the host");
        }
        if ports.0 < FIRST_PORT || block(ports, 1).is_none() {
            return Err("the ports that VMs share must begin at 1024 or above, and be at least 11");
        }
        Ok(Self { address, ports })
    }
}

/// How a VM is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At an address of its own.
    Own {
        /// The address.
        address: IpAddr,
        /// Where SSH answers there, or at the next port that its owner does not expose.
        ssh_port: u16,
    },
    /// At an address of the host that VMs share.
    Shared {
        /// The address.
        address: IpAddr,
        /// The first port of the VM's block there.
        first: u16,
    },
}

impl Reach {
    /// The address at which the VM is reached.
    pub const fn address(self) -> IpAddr {
        match self {
            Self::Own { address, .. } | Self::Shared { address, .. } => address,
        }
    }

    /// Where SSH and the ports that are exposed are reached: SSH first, then they in their order. What is open stays where
    /// it is.
    pub fn ports(self, exposed: &[ExposedPort], open: &[InboundPort]) -> Vec<InboundPort> {
        match self {
            Self::Own { address, ssh_port: wanted } => {
                let at = |to: ExposedPort, port| InboundPort { to, at: (address, port).into() };
                let ssh = at(SSH, ssh_port(wanted, exposed));
                std::iter::once(ssh).chain(exposed.iter().map(|port| at(*port, port.port))).collect()
            }
            Self::Shared { address, first } => shared((address, first), exposed, open),
        }
    }
}

fn shared((address, first): (IpAddr, u16), exposed: &[ExposedPort], open: &[InboundPort]) -> Vec<InboundPort> {
    let block: Vec<SocketAddr> =
        (1..BLOCK).filter_map(|place| Some((address, first.checked_add(place)?).into())).collect();
    // A change that was not recorded may have two ports at one place: the first of them stays there.
    let mut stays = Vec::new();
    let keep = |to: &ExposedPort| {
        let is_its = |port: &&InboundPort| port.to == *to && block.contains(&port.at) && !stays.contains(&port.at);
        let at = open.iter().find(is_its)?.at;
        stays.push(at);
        Some(at)
    };
    let kept: Vec<_> = exposed.iter().map(keep).collect();
    let free = |at: &&SocketAddr| !stays.contains(at);
    let is_open = |at: &&SocketAddr| open.iter().any(|port| port.at == **at);
    // The places that this change frees are given out last: whoever knows one is not led to another port of the VM.
    let (last, next): (Vec<_>, Vec<_>) = block.iter().filter(free).partition(is_open);
    let mut new = next.into_iter().chain(last).copied();
    let ports =
        exposed.iter().zip(kept).filter_map(|(to, at)| Some(InboundPort { to: *to, at: at.or_else(|| new.next())? }));
    std::iter::once(InboundPort { to: SSH, at: (address, first).into() }).chain(ports).collect()
}

/// The first port of the block that a machine of this slot (from 1) has among ports that VMs share, both ends included;
/// none where they do not reach so far.
pub fn block((first, last): (u16, u16), slot: i64) -> Option<u16> {
    let before = u16::try_from(slot.checked_sub(1)?).ok()?.checked_mul(BLOCK)?;
    let begin = first.checked_add(before)?;
    (begin.checked_add(BLOCK - 1)? <= last).then_some(begin)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::vm::request::MAX_PORTS;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const SHARED: Reach = Reach::Shared { address: ADDRESS, first: 20_011 };

    fn tcp(port: u16) -> ExposedPort {
        ExposedPort { port, protocol: Protocol::Tcp }
    }

    fn at(ports: &[InboundPort]) -> Vec<(u16, u16)> {
        ports.iter().map(|port| (port.to.port, port.at.port())).collect()
    }

    #[test]
    fn by_an_address_of_its_own_each_port_is_itself() {
        let own = Reach::Own { address: Ipv4Addr::new(127, 64, 0, 1).into(), ssh_port: 2222 };
        assert_eq!(at(&own.ports(&[tcp(80), tcp(2222)], &[])), [(22, 2223), (80, 80), (2222, 2222)]);
    }

    #[test]
    fn what_is_open_stays_where_it_is() {
        let first = SHARED.ports(&[tcp(80), tcp(443)], &[]);
        assert_eq!(at(&first), [(22, 20_011), (80, 20_012), (443, 20_013)]);
        let next = SHARED.ports(&[tcp(443), tcp(8080)], &first);
        assert_eq!(at(&next), [(22, 20_011), (443, 20_013), (8080, 20_014)], "what was led to 80 leads nowhere else");
        assert_eq!(SHARED.ports(&[tcp(443), tcp(8080)], &next), next);
        // Where all are needed, all are used.
        let (some, others): (Vec<_>, Vec<_>) = ((1..=10).map(tcp).collect(), (101..=110).map(tcp).collect());
        let both = SHARED.ports(&others, &SHARED.ports(&some, &[]));
        assert_eq!(at(&both).last(), Some(&(110, 20_021)));
        // What is open elsewhere moves.
        let own = Reach::Own { address: Ipv4Addr::new(127, 64, 0, 1).into(), ssh_port: 22 }.ports(&[tcp(80)], &[]);
        assert_eq!(at(&SHARED.ports(&[tcp(80)], &own)), [(22, 20_011), (80, 20_012)]);
    }

    #[test]
    fn a_block_has_room_for_all_that_may_be_exposed() {
        assert_eq!(usize::from(BLOCK), 1 + MAX_PORTS);
    }

    #[test]
    fn each_slot_has_a_block_of_its_own_as_far_as_ports_reach() {
        let range = (20_000, 20_021);
        assert_eq!(
            [1, 2, 3, 0, -1, i64::MAX].map(|slot| block(range, slot)),
            [Some(20_000), Some(20_011), None, None, None, None]
        );
        assert_eq!(
            [block((20_000, 20_020), 2), block((65_525, u16::MAX), 1), block((65_526, u16::MAX), 1)],
            [None, Some(65_525), None]
        );
    }

    #[test]
    fn what_a_host_says_of_its_ways_is_read_as_it_was_said_and_within_bounds() {
        let pool = Pool::read(["192.0.2.16/30", "2001:db8::1-2001:db8::9"]).unwrap();
        let shared = Shared { address: ADDRESS, ports: (1024, 1034) };
        for reached in [Reached::Here, Reached::Shared(shared), Reached::Pool(pool)] {
            let text = serde_json::to_string(&reached).unwrap();
            assert_eq!(serde_json::from_str::<Reached>(&text).unwrap(), reached, "{text}");
        }
        for (address, first, last, why) in [
            ("192.0.2.1", 1023, 2000, "1024 or above"),
            ("192.0.2.1", 1024, 1033, "at least 11"),
            ("192.0.2.1", 2000, 1024, "at least 11"),
            ("0.0.0.0", 1024, 1034, "one address"),
            ("224.0.0.1", 1024, 1034, "one address"),
        ] {
            let text = format!("{{\"shared\": {{\"address\": \"{address}\", \"ports\": [{first}, {last}]}}}}");
            let refused = serde_json::from_str::<Reached>(&text).unwrap_err().to_string();
            assert!(refused.contains(why), "{text}: {refused}");
        }
        let refused = serde_json::from_str::<Reached>("{\"pool\": [\"192.0.2.1/24\"]}").unwrap_err().to_string();
        assert!(refused.contains("write 192.0.2.0/24"), "{refused}");
    }

    fn exposed() -> impl Strategy<Value = Vec<ExposedPort>> {
        let one = (1_u16..30, prop::bool::ANY).prop_map(|(port, udp)| ExposedPort {
            port: if port == 22 { 23 } else { port },
            protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        });
        vec(one, 0..=MAX_PORTS).prop_map(|mut ports| {
            ports.sort_unstable_by_key(|port| (port.port, port.protocol.as_str()));
            ports.dedup();
            ports
        })
    }

    proptest! {
        #[test]
        fn ports_have_places_of_their_own_and_keep_them(changes in vec((exposed(), prop::bool::ANY), 1..8)) {
            let mut open = Vec::new();
            for (exposed, is_recorded) in changes {
                let next = SHARED.ports(&exposed, &open);
                let all: Vec<_> = next.iter().map(|port| port.to).collect();
                prop_assert_eq!(all, std::iter::once(SSH).chain(exposed).collect::<Vec<_>>());
                for (place, port) in next.iter().enumerate() {
                    prop_assert!((20_011..20_022).contains(&port.at.port()));
                    prop_assert!(next[place + 1..].iter().all(|other| other.at != port.at));
                    let alone = |before: &&InboundPort| open.iter().all(|other: &InboundPort| other == *before || other.at != before.at);
                    let before = open.iter().find(|before| before.to == port.to).filter(alone);
                    prop_assert!(before.is_none_or(|before| before.at == port.at));
                }
                if is_recorded {
                    open = next;
                } else {
                    // What was begun may be open beside what was.
                    open.extend(next.into_iter().filter(|port| !open.contains(port)).collect::<Vec<_>>());
                }
            }
        }
    }
}
