//! Firewall rules as the kernel's: in order, the first that matches, and what none matches passes.

use berth_domain::firewall::{Action, Direction, Ports, Rule, RuleProtocol, Rules, Source};
use ipnet::IpNet;

use super::protocol::{ICMP, ICMPV6, TCP, UDP};

/// The rules of a direction. A connection is judged by its first packet: the other side of what the machine begins is where
/// that goes to, and of what it gets, where that comes from; the port of what it gets is the guest's.
pub(super) fn rules(rules: &Rules, direction: Direction) -> Vec<String> {
    let of = rules.list().iter().filter(|rule| rule.direction == direction);
    of.filter_map(line).chain(["accept".to_owned()]).collect()
}

/// A rule; none where it says nothing of what comes this way.
fn line(rule: &Rule) -> Option<String> {
    let (other, port) = match rule.direction {
        Direction::Out => ("daddr", "original proto-dst"),
        Direction::In => ("saddr", "reply proto-src"),
    };
    let mut words = Vec::new();
    match &rule.source {
        None => {}
        Some(Source::Group(_)) => return None,
        Some(Source::Range(IpNet::V4(net))) => {
            words.push("meta nfproto ipv4".to_owned());
            words.extend((net.prefix_len() > 0).then(|| format!("ct original ip {other} {net}")));
        }
        Some(Source::Range(IpNet::V6(net))) => {
            words.push("meta nfproto ipv6".to_owned());
            words.extend((net.prefix_len() > 0).then(|| format!("ct original ip6 {other} {net}")));
        }
    }
    match rule.protocol {
        RuleProtocol::Any => {}
        RuleProtocol::Icmp => words.push(format!("meta l4proto {{ {ICMP}, {ICMPV6} }}")),
        RuleProtocol::Tcp => words.push(format!("meta l4proto {TCP}")),
        RuleProtocol::Udp => words.push(format!("meta l4proto {UDP}")),
    }
    if !rule.ports.is_empty() {
        words.push(format!("ct {port} {{ {} }}", merged(&rule.ports)));
    }
    words.push(match rule.action {
        Action::Allow => "accept".into(),
        Action::Deny => "drop".into(),
    });
    Some(words.join(" "))
}

/// Ports and ranges without overlaps, which `nft` refuses.
fn merged(ports: &[Ports]) -> String {
    let mut ends: Vec<_> = ports.iter().map(Ports::ends).collect();
    ends.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ends {
        match merged.last_mut() {
            Some((_, before)) if first <= before.saturating_add(1) => *before = last.max(*before),
            _ => merged.push((first, last)),
        }
    }
    let range = |(first, last): (u16, u16)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    merged.into_iter().map(range).collect::<Vec<_>>().join(", ")
}
