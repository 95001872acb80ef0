//! The rules of the kernel that follow from what is wanted, as `nft` reads them. Pure.
//!
//! ```text
//!   table bridge berth0                             table inet berth0
//!     prerouting ─ from @tap ─► from_7               prerouting ─ @forwards4 ─► dnat to the guest
//!       its link and IP addresses, or dropped        input ─ from the bridge ─► host: DHCP, names, echo
//!     output ─ to @tap ─► to_7                       forward ─► judge ─ who began? ─► outside ─► out_7   a machine
//!       what is for it, or dropped                                              └── by a port ──► in_7    somebody else
//!                                                    postrouting ─► masquerade
//! ```
//!
//! A machine has six chains and an entry in each of a few maps, so a change of one among a thousand is a transaction of a
//! few lines, which the kernel takes as a whole or not at all. Whatever has no entry is dropped.
//!
//! Rules speak of who begins (`domain::firewall`). The kernel remembers that: each packet of a connection is judged by the
//! connection's first one (`ct original`), so what answers something that was allowed passes, and what a change does not
//! allow any more ends at once, in both directions. Of the connections that it begins, and of those that it gets, so many may be
//! at once (`bound_out_7`, `bound_in_7`): what the kernel remembers them by is the whole host's. Only a machine's packets are judged. Nothing of the host's own tables is
//! read or changed: a packet passes where all tables let it.
//!
//! What machines may reach is what the policy of sandboxes lets them by default (`domain::sandbox::network_policy`): not the
//! host, of which no address is forwarded to, nothing that is [`Special`], nothing that somebody's other rule leads back to this
//! host (`ct status dnat`, as ports of containers are), and in IPv6 nothing on a network of the host.

mod base;
mod firewall;
mod part;
mod protocol;

use std::collections::BTreeMap;
use std::fmt::Write;

use berth_domain::sandbox::network_policy::Special;
use ipnet::Ipv6Net;

use crate::machine::{Machine, Wanted};
use crate::settings::Settings;
use part::{Entry, Part, Place};

pub use base::nothing;

/// What the rules depend on beside what is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Networks of IPv6 that the host shares with others, who are refused as the host is.
    pub near: Vec<Ipv6Net>,
}

impl Surroundings {
    /// The networks among these that would not be refused anyway.
    pub fn of(networks: impl IntoIterator<Item = Ipv6Net>) -> Self {
        let mut near: Vec<_> = networks.into_iter().map(|net| net.trunc()).collect();
        // One of no length would be everybody.
        near.retain(|net| net.prefix_len() > 0 && Special::of(net.addr().into()).is_none());
        Self { near: Ipv6Net::aggregate(&near) }
    }
}

/// All rules, in place of whatever was there: one transaction.
pub fn whole(wanted: &Wanted, surroundings: &Surroundings) -> String {
    let settings = &wanted.settings;
    let mut text = base::text(settings);
    let parts: Vec<_> = wanted.machines.values().map(|machine| Part::of(settings, machine)).collect();
    for (place, rules) in parts.iter().flat_map(|part| &part.chains) {
        chain(&mut text, settings, place, rules);
    }
    let mut maps: BTreeMap<&Place, Vec<&Entry>> = BTreeMap::new();
    for (entry, _) in parts.iter().flat_map(|part| &part.entries) {
        maps.entry(&entry.map).or_default().push(entry);
    }
    let values: BTreeMap<_, _> = parts.iter().flat_map(|part| &part.entries).collect();
    for (map, entries) in maps {
        let elements: Vec<_> =
            entries.iter().filter_map(|key| Some(format!("{} : {}", key.key, values.get(key)?))).collect();
        element(&mut text, "add", settings, map, &elements.join(", "));
    }
    text + &near(settings, surroundings)
}

/// The change from a machine as it was to one as it is to be, where one of them may be absent; nothing where it is none.
pub fn change(settings: &Settings, before: Option<&Machine>, after: Option<&Machine>) -> String {
    let part = |machine: Option<&Machine>| machine.map(|machine| Part::of(settings, machine)).unwrap_or_default();
    let (before, after) = (part(before), part(after));
    let mut text = String::new();
    for (place, rules) in after.chains.iter().filter(|(place, rules)| before.chains.get(place) != Some(rules)) {
        let target = target(settings, place);
        // An older one may be there.
        let _ = writeln!(text, "add chain {target}\nflush chain {target}");
        chain(&mut text, settings, place, rules);
    }
    for (entry, value) in before.entries.iter().filter(|(entry, value)| after.entries.get(entry) != Some(value)) {
        element(&mut text, "delete", settings, &entry.map, &format!("{} : {value}", entry.key));
    }
    for (entry, value) in after.entries.iter().filter(|(entry, value)| before.entries.get(entry) != Some(value)) {
        element(&mut text, "add", settings, &entry.map, &format!("{} : {value}", entry.key));
    }
    for place in before.chains.keys().rev().filter(|place| !after.chains.contains_key(place)) {
        let target = target(settings, place);
        let _ = writeln!(text, "flush chain {target}\ndelete chain {target}");
    }
    text
}

/// The networks of IPv6 near the host, in place of those that were told before.
pub fn near(settings: &Settings, surroundings: &Surroundings) -> String {
    let mut text = format!("flush set inet {} near6\n", settings.name);
    if !surroundings.near.is_empty() {
        let list: Vec<_> = surroundings.near.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "add element inet {} near6 {{ {} }}", settings.name, list.join(", "));
    }
    text
}

fn target(settings: &Settings, place: &Place) -> String {
    format!("{} {} {}", place.family, settings.name, place.name)
}

fn chain(text: &mut String, settings: &Settings, place: &Place, rules: &[String]) {
    let _ = writeln!(text, "table {} {} {{\n chain {} {{", place.family, settings.name, place.name);
    for rule in rules {
        let _ = writeln!(text, "  {rule}");
    }
    text.push_str(" }\n}\n");
}

fn element(text: &mut String, verb: &str, settings: &Settings, map: &Place, elements: &str) {
    let _ = writeln!(text, "{verb} element {} {{ {elements} }}", target(settings, map));
}
