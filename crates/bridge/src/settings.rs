//! What an operator says of the bridge, and what follows from it for a machine by its slot.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most bytes of the bridge's name: a tap's is longer by a dash and a slot, and a device's has at most 15 (Linux, `IFNAMSIZ`).
const LONGEST_NAME: usize = 9;
/// Bounds of the prefix: what has room for a machine and its gateway, and what a slot can number.
const PREFIXES: (u8, u8) = (8, 29);
/// Least packet that a link of IPv6 carries (RFC 8200, 5), and largest that a tap does.
const MTUS: (u16, u16) = (1280, 65_520);

/// Connections of a machine: a few times as many as the program beside a machine has (`berth_egress::Limits`), which knows at
/// once when a question of a name is done; and few enough that a machine alone takes a small part of what the host remembers (`net.netfilter.nf_conntrack_max`).
const CONNECTIONS: u32 = 4096;

/// The bridge, as an operator describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The name of its device and of its tables of rules. Two services of one host have a name each, so that neither touches
    /// the other's.
    pub name: String,
    /// The addresses that machines have, of which the first is the gateway's. By default 10.127.0.0/16: 65,533 machines, and
    /// next to none of the networks that others choose by default. Not of 100.64.0.0/10, though it is meant for the like
    /// (RFC 6598): Tailscale drops what comes from there and not by its own device.
    pub subnet: Ipv4Net,
    /// The same of IPv6, of those for local use (RFC 4193); none, and machines have no IPv6.
    pub subnet6: Option<Ipv6Net>,
    /// Largest IP packet, in bytes; absent, that of the device by which the host reaches the outside.
    pub mtu: Option<u16>,
    /// Who is asked for names; empty, those of `/etc/resolv.conf`.
    pub resolvers: Vec<SocketAddr>,
    /// Most connections that a machine may have begun, and as many that others have with it, as the kernel counts them: a
    /// datagram and its answer are one for half a minute. Further ones are refused.
    pub connections: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "berth0".into(),
            subnet: Ipv4Net::new_assert(Ipv4Addr::new(10, 127, 0, 0), 16),
            subnet6: Some(Ipv6Net::new_assert(Ipv6Addr::new(0xfd62, 0x6572, 0x7469, 0, 0, 0, 0, 0), 64)),
            mtu: None,
            resolvers: Vec::new(),
            connections: CONNECTIONS,
        }
    }
}

impl Settings {
    /// The gateway's address, at which names are asked for, too.
    pub fn gateway(&self) -> Ipv4Addr {
        nth(self.subnet, 1)
    }

    /// The gateway's IPv6 address.
    pub fn gateway6(&self) -> Option<Ipv6Addr> {
        self.subnet6.map(|subnet| nth6(subnet, 1))
    }

    /// The tap of a machine.
    pub fn tap(&self, slot: u16) -> String {
        format!("{}-{slot}", self.name)
    }

    /// The slot whose tap has this name; none where it is no tap of this bridge.
    pub fn slot(&self, tap: &str) -> Option<u16> {
        let slot = tap.strip_prefix(&self.name)?.strip_prefix('-')?.parse().ok()?;
        (self.tap(slot) == tap).then_some(slot)
    }

    /// The address of the machine of a slot, from 1 on; none where the subnet does not reach so far.
    pub fn address(&self, slot: u16) -> Option<Ipv4Addr> {
        let address = nth(self.subnet, 1 + u32::from(slot));
        (slot > 0 && self.subnet.contains(&address) && address != self.subnet.broadcast()).then_some(address)
    }

    /// Its IPv6 address; none where machines have none.
    pub fn address6(&self, slot: u16) -> Option<Ipv6Addr> {
        self.subnet6.filter(|_| slot > 0).map(|subnet| nth6(subnet, 1 + u128::from(slot)))
    }

    /// Whether the bridge can be as it is described.
    ///
    /// # Errors
    /// It says which setting is wrong, and what it must be.
    pub fn check(&self) -> Result<()> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if !self.name.bytes().all(is_plain)
            || !self.name.starts_with(|first: char| first.is_ascii_alphabetic())
            || self.name.len() > LONGEST_NAME
        {
            return wrong(format!(
                "the name of the bridge must be a letter and up to 8 letters, digits or _, not '{}'",
                self.name
            ));
        }
        if self.subnet != self.subnet.trunc() || !(PREFIXES.0..=PREFIXES.1).contains(&self.subnet.prefix_len()) {
            return wrong(format!(
                "the subnet of the bridge must be a network with a prefix from /8 to /29, such as 10.127.0.0/16, not {}",
                self.subnet
            ));
        }
        if self.subnet6.is_some_and(|net| net != net.trunc() || net.prefix_len() != 64 || !net.addr().is_unique_local())
        {
            return wrong(
                "the IPv6 subnet of the bridge must be a /64 of fd00::/8, such as fd62:6572:7469::/64".into(),
            );
        }
        if self.mtu.is_some_and(|mtu| !(MTUS.0..=MTUS.1).contains(&mtu)) {
            return wrong(format!("the MTU of the bridge must be from {} to {}", MTUS.0, MTUS.1));
        }
        if self.connections == 0 {
            return wrong("the bridge must leave machines at least one connection each".into());
        }
        Ok(())
    }

    /// Whether both describe the same device with the same addresses.
    pub(crate) fn has_addresses_of(&self, other: &Self) -> bool {
        (&self.name, self.subnet, self.subnet6) == (&other.name, other.subnet, other.subnet6)
    }

    /// Whether an address is of a machine, or may become one's.
    pub(crate) fn is_inside(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.subnet.contains(&v4),
            IpAddr::V6(v6) => self.subnet6.is_some_and(|subnet| subnet.contains(&v6)),
        }
    }
}

fn wrong(message: String) -> Result<()> {
    Err(Error::Invalid(message))
}

fn nth(net: Ipv4Net, n: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(net.network().to_bits().saturating_add(n))
}

fn nth6(net: Ipv6Net, n: u128) -> Ipv6Addr {
    Ipv6Addr::from_bits(net.network().to_bits().saturating_add(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check()
    }

    #[test]
    fn limits_have_both_sides() {
        assert!(with(|_| ()).is_ok());
        for (name, fits) in [("berth0", true), ("b", true), ("b23456789", true), ("b234567890", false), ("", false)] {
            assert_eq!(with(|s| s.name = name.into()).is_ok(), fits, "{name}");
        }
        for name in ["0berth", "berth-0", "berth;0", "b\"", "b 0", "ü"] {
            assert!(with(|s| s.name = name.into()).is_err(), "{name}");
        }
        for (net, fits) in [
            ("10.0.0.0/8", true),
            ("10.0.0.0/7", false),
            ("10.9.0.8/29", true),
            ("10.9.0.8/30", false),
            ("10.9.0.9/29", false),
        ] {
            assert_eq!(with(|s| s.subnet = net.parse().unwrap()).is_ok(), fits, "{net}");
        }
        for (net, fits) in [
            ("fd00::/64", true),
            ("fd00::/65", false),
            ("fd00::/63", false),
            ("2001:db8::/64", false),
            ("fd00::1/64", false),
        ] {
            assert_eq!(with(|s| s.subnet6 = Some(net.parse().unwrap())).is_ok(), fits, "{net}");
        }
        for (mtu, fits) in [(1279, false), (1280, true), (65_520, true), (65_521, false)] {
            assert_eq!(with(|s| s.mtu = Some(mtu)).is_ok(), fits, "{mtu}");
        }
        for (connections, fits) in [(0, false), (1, true), (u32::MAX, true)] {
            assert_eq!(with(|s| s.connections = connections).is_ok(), fits, "{connections}");
        }
    }

    #[test]
    fn what_a_machine_has_follows_from_its_slot() {
        let settings = Settings { subnet: "10.9.0.0/29".parse().unwrap(), ..Settings::default() };
        assert_eq!(settings.gateway(), Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(settings.address(0), None, "slots begin with 1");
        assert_eq!(settings.address(1), Some(Ipv4Addr::new(10, 9, 0, 2)));
        assert_eq!(settings.address(5), Some(Ipv4Addr::new(10, 9, 0, 6)));
        assert_eq!(settings.address(6), None, "the broadcast address is nobody's");
        assert_eq!(settings.address6(1), Some("fd62:6572:7469::2".parse().unwrap()));
        assert_eq!(Settings { subnet6: None, ..Settings::default() }.address6(1), None);
        assert_eq!((settings.tap(65_535).as_str(), settings.slot("berth0-65535")), ("berth0-65535", Some(65_535)));
        for other in ["berth0", "berth0-", "berth0-07", "berth0-65536", "berth1-7", "berth0-+7"] {
            assert_eq!(settings.slot(other), None, "{other}");
        }
    }
}
