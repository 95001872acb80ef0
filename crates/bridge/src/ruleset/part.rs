//! What the rules have of one machine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use berth_domain::firewall::Direction;
use berth_domain::vm::Protocol;

use super::firewall;
use super::protocol::{TCP, UDP};
use crate::machine::Machine;
use crate::settings::Settings;

/// How often a machine may ask for what one program tells all machines of a host: several times as often as one does that
/// starts.
const OFTEN: &str = "limit rate over 4/second burst 16 packets";

/// A chain or a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) family: &'static str,
    pub(super) name: String,
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) map: Place,
    pub(super) key: String,
}

/// Chains with their rules, and entries of maps with their values.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) chains: BTreeMap<Place, Vec<String>>,
    pub(super) entries: BTreeMap<Entry, String>,
}

impl Part {
    pub(super) fn of(settings: &Settings, machine: &Machine) -> Self {
        let (slot, tap) = (machine.slot, format!("\"{}\"", settings.tap(machine.slot)));
        let mut part = Self::default();
        part.chain("bridge", format!("from_{slot}"), from(settings, machine));
        part.chain("bridge", format!("to_{slot}"), to(machine));
        for (way, direction) in [("out", Direction::Out), ("in", Direction::In)] {
            // By a name before those of the chains that lead there: chains are made in that order, and removed in the other
            // one. In a chain of its own what was counted stays where rules change.
            part.chain("inet", format!("bound_{way}_{slot}"), vec![bound(settings)]);
            let counted = format!("ct state new jump bound_{way}_{slot}");
            let rules = [counted].into_iter().chain(firewall::rules(&machine.rules, direction));
            part.chain("inet", format!("{way}_{slot}"), rules.collect());
        }
        part.entry("bridge", "from", tap.clone(), format!("goto from_{slot}"));
        part.entry("bridge", "to", tap, format!("goto to_{slot}"));
        part.entry("inet", "begins4", machine.address.to_string(), format!("goto out_{slot}"));
        part.entry("inet", "gets4", machine.address.to_string(), format!("goto in_{slot}"));
        if let Some(address) = machine.address6 {
            part.entry("inet", "begins6", address.to_string(), format!("goto out_{slot}"));
            part.entry("inet", "gets6", address.to_string(), format!("goto in_{slot}"));
        }
        for port in &machine.ports {
            let (at, to) = (port.at, port.to);
            let protocol = match to.protocol {
                Protocol::Tcp => TCP,
                Protocol::Udp => UDP,
            };
            let key = format!("{} . {protocol} . {}", at.ip(), at.port());
            match (at.ip(), machine.address6) {
                (IpAddr::V4(_), _) => {
                    part.entry("inet", "forwards4", key, format!("{} . {}", machine.address, to.port));
                }
                (IpAddr::V6(_), Some(own)) => part.entry("inet", "forwards6", key, format!("{own} . {}", to.port)),
                (IpAddr::V6(_), None) => {}
            }
        }
        part
    }

    fn chain(&mut self, family: &'static str, name: String, rules: Vec<String>) {
        self.chains.insert(Place { family, name }, rules);
    }

    fn entry(&mut self, family: &'static str, map: &str, key: String, value: String) {
        self.entries.insert(Entry { map: Place { family, name: map.into() }, key }, value);
    }
}

/// Refuses the connections that are too many.
fn bound(settings: &Settings) -> String {
    format!("ct count over {} goto refuse", settings.connections)
}

/// What a machine may send: by its own addresses, and what it says of them by ARP, NDP and DHCP.
fn from(settings: &Settings, machine: &Machine) -> Vec<String> {
    let (mac, address, gateway) = (machine.mac, machine.address, settings.gateway());
    let hex: String = mac.to_string().replace(':', "");
    let mut rules = vec![
        format!("ether saddr != {mac} drop"),
        format!("arp saddr ether {mac} arp saddr ip {address} arp daddr ip {gateway} accept"),
        // The link address in the message is the machine's own (RFC 2131, 2: chaddr).
        format!("udp sport 68 udp dport 67 @th,288,48 != 0x{hex} drop"),
        format!("udp dport 67 {OFTEN} drop"),
        "ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept".into(),
        format!("ip saddr {address} accept"),
    ];
    if let Some(address) = machine.address6 {
        let link = machine.mac.link_local();
        rules.push("icmpv6 type { nd-router-advert, nd-redirect } drop".into());
        rules.push(format!("icmpv6 type nd-router-solicit {OFTEN} drop"));
        rules.push(format!("udp dport 547 {OFTEN} drop"));
        // Whom an advertisement is about (RFC 4861, 4.4): itself, by either of its addresses.
        for own in [address, link] {
            let bits = format!("{:#034x}", own.to_bits());
            rules.push(format!("ip6 saddr {own} icmpv6 type nd-neighbor-advert @th,64,128 != {bits} drop"));
        }
        rules.extend([
            format!("ip6 saddr {address} accept"),
            // No address but this one of the link: the host would remember each.
            format!(
                "ip6 saddr {link} icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} accept"
            ),
            format!("ip6 saddr {link} icmpv6 type {{ echo-request, echo-reply }} accept"),
            format!("ip6 saddr {link} udp sport 546 udp dport 547 accept"),
            "ip6 saddr :: icmpv6 type { nd-router-solicit, nd-neighbor-solicit } accept".into(),
        ]);
    }
    rules.push("drop".into());
    rules
}

/// What a machine gets: what is for its card, and of what is for everybody's what concerns it.
fn to(machine: &Machine) -> Vec<String> {
    let mac = machine.mac;
    let hex: String = mac.to_string().replace(':', "");
    vec![
        format!("ether daddr {mac} accept"),
        format!("udp sport 67 udp dport 68 @th,288,48 0x{hex} accept"),
        "icmpv6 type { nd-router-advert, nd-neighbor-solicit } accept".into(),
        "drop".into(),
    ]
}
