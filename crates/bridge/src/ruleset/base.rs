//! The rules that are there whichever machines are.

use std::net::IpAddr;

use berth_domain::sandbox::network_policy::special::blocks;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::protocol::{ICMP, ICMPV6, TCP, UDP};
use crate::settings::Settings;

/// Protocols as the rules below name them, the longer name first, and their numbers.
const PROTOCOLS: [(&str, &str); 4] = [("N_ICMPV6", ICMPV6), ("N_ICMP", ICMP), ("N_TCP", TCP), ("N_UDP", UDP)];

/// The tables without machines, in place of whatever was there.
pub(super) fn text(settings: &Settings) -> String {
    let (v4, v6) = special();
    let text = [nothing(settings), LINK.into(), INTERNET.into()].concat();
    let text = if settings.subnet6.is_some() { text } else { without(&text, "SUBNET6") };
    let text = if settings.gateway6().is_some() { text } else { without(&text, "GATEWAY6") };
    let subnet6 = settings.subnet6.map(|subnet| subnet.to_string()).unwrap_or_default();
    let gateway6 = settings.gateway6().map(|gateway| gateway.to_string()).unwrap_or_default();
    let text = PROTOCOLS.iter().fold(text, |text, (name, number)| text.replace(name, number));
    text.replace("SPECIAL4", &v4)
        .replace("SPECIAL6", &v6)
        .replace("SUBNET6", &subnet6)
        .replace("GATEWAY6", &gateway6)
        .replace("SUBNET", &settings.subnet.to_string())
        .replace("GATEWAY", &settings.gateway().to_string())
        .replace("BRIDGE", &settings.name)
}

/// Takes all rules away.
pub fn nothing(settings: &Settings) -> String {
    // What is not there cannot be deleted.
    let of = |family| format!("add table {family} {name}\ndelete table {family} {name}\n", name = settings.name);
    ["bridge", "inet"].map(of).concat()
}

/// What machines never reach, by families.
fn special() -> (String, String) {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for (block, _) in blocks() {
        match block {
            IpNet::V4(block) => v4.push(block),
            IpNet::V6(block) => v6.push(block),
        }
    }
    (list(Ipv4Net::aggregate(&v4)), list(Ipv6Net::aggregate(&v6)))
}

fn list<T: Into<IpNet>>(blocks: Vec<T>) -> String {
    let plain = |block: IpNet| match block.addr() {
        IpAddr::V4(_) | IpAddr::V6(_) if block.prefix_len() == block.max_prefix_len() => block.addr().to_string(),
        _ => block.to_string(),
    };
    blocks.into_iter().map(|block| plain(block.into())).collect::<Vec<_>>().join(", ")
}

/// The lines that do not speak of something.
fn without(text: &str, word: &str) -> String {
    text.lines().filter(|line| !line.contains(word)).map(|line| format!("{line}\n")).collect()
}

/// Frames between machines' taps and the bridge. Ports are isolated, so a frame goes to the bridge or comes from it. What is
/// for the bridge's own protocols (IEEE 802.1D, 7.12.6) passes no `prerouting`, and would be the host's as if a tap were a card
/// of its own: `input` is the one hook that it passes.
const LINK: &str = r#"
table bridge BRIDGE {
 map from {
  type ifname : verdict
 }
 map to {
  type ifname : verdict
 }
 chain prerouting {
  type filter hook prerouting priority -300; policy accept;
  iifname vmap @from
  iifname "BRIDGE-*" drop
 }
 chain input {
  type filter hook input priority -300; policy accept;
  iifname "BRIDGE-*" ether daddr & ff:ff:ff:ff:ff:f0 == 01:80:c2:00:00:00 drop
 }
 chain output {
  type filter hook output priority 0; policy accept;
  oifname vmap @to
  oifname "BRIDGE-*" drop
 }
 chain forward {
  type filter hook forward priority 0; policy accept;
  iifname "BRIDGE-*" drop
  oifname "BRIDGE-*" drop
 }
}
"#;

/// Packets. `raw` comes before anything is translated: nobody but a machine has a machine's address, and nothing is told by a
/// tap alone.
const INTERNET: &str = r#"
table inet BRIDGE {
 set special4 {
  type ipv4_addr
  flags interval
  elements = { SPECIAL4 }
 }
 set special6 {
  type ipv6_addr
  flags interval
  elements = { SPECIAL6 }
 }
 set near6 {
  type ipv6_addr
  flags interval
 }
 map begins4 {
  type ipv4_addr : verdict
 }
 map begins6 {
  type ipv6_addr : verdict
 }
 map gets4 {
  type ipv4_addr : verdict
 }
 map gets6 {
  type ipv6_addr : verdict
 }
 map forwards4 {
  type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
 }
 map forwards6 {
  type ipv6_addr . inet_proto . inet_service : ipv6_addr . inet_service
 }
 chain strangers {
  type filter hook prerouting priority raw; policy accept;
  iifname "BRIDGE-*" drop
  iifname != { "BRIDGE", "lo" } ip saddr SUBNET drop
  iifname != { "BRIDGE", "lo" } ip6 saddr SUBNET6 drop
  iifname "BRIDGE" ip saddr != { SUBNET, 0.0.0.0 } drop
 }
 chain prerouting {
  type nat hook prerouting priority dstnat; policy accept;
  iifname != "BRIDGE" dnat ip to ip daddr . meta l4proto . th dport map @forwards4
  iifname != "BRIDGE" dnat ip6 to ip6 daddr . meta l4proto . th dport map @forwards6
 }
 chain local {
  type nat hook output priority -100; policy accept;
  dnat ip to ip daddr . meta l4proto . th dport map @forwards4
  dnat ip6 to ip6 daddr . meta l4proto . th dport map @forwards6
 }
 chain postrouting {
  type nat hook postrouting priority srcnat; policy accept;
  oifname != "BRIDGE" ip saddr SUBNET masquerade
  oifname != "BRIDGE" ip6 saddr SUBNET6 masquerade
 }
 chain input {
  type filter hook input priority filter; policy accept;
  iifname "BRIDGE" goto host
 }
 chain output {
  type filter hook output priority filter; policy accept;
  oifname "BRIDGE" goto guests
 }
 chain forward {
  type filter hook forward priority filter; policy accept;
  oifname != "BRIDGE" iifname != "BRIDGE" accept
  tcp flags syn / syn,rst tcp option maxseg size set rt mtu
  goto judge
 }
 chain host {
  udp dport 67 ip daddr { GATEWAY, 255.255.255.255 } accept
  udp dport 547 ip6 saddr fe80::/10 accept
  icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } accept
  icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } drop
  ct state invalid drop
  ct direction reply goto judge
  ct state related meta l4proto { N_ICMP, N_ICMPV6 } accept
  icmp type echo-request ip daddr GATEWAY accept
  icmpv6 type echo-request ip6 daddr { GATEWAY6, fe80::1 } accept
  ip daddr GATEWAY meta l4proto { N_TCP, N_UDP } th dport 53 ct original ip saddr vmap @begins4
  ip6 daddr GATEWAY6 meta l4proto { N_TCP, N_UDP } th dport 53 ct original ip6 saddr vmap @begins6
  goto refuse
 }
 chain guests {
  udp sport 67 udp dport 68 accept
  udp sport 547 udp dport 546 accept
  icmpv6 type { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept
  ct direction reply accept
  ct state related meta l4proto { N_ICMP, N_ICMPV6 } accept
  icmp type { destination-unreachable, time-exceeded, parameter-problem } accept
  icmpv6 type { destination-unreachable, packet-too-big, time-exceeded, parameter-problem } accept
  goto judge
 }
 chain judge {
  ct state invalid drop
  ct state related meta l4proto { N_ICMP, N_ICMPV6 } accept
  ct original ip saddr SUBNET jump outside
  ct original ip6 saddr SUBNET6 jump outside
  ct original ip saddr vmap @begins4
  ct original ip6 saddr vmap @begins6
  ct status & dnat == 0 goto refuse
  ct reply ip saddr vmap @gets4
  ct reply ip6 saddr vmap @gets6
  drop
 }
 chain outside {
  ct status dnat goto refuse
  ct original ip daddr @special4 goto refuse
  ct original ip6 daddr @special6 goto refuse
  ct original ip6 daddr @near6 goto refuse
  meta l4proto != { N_TCP, N_UDP, N_ICMP, N_ICMPV6 } goto refuse
 }
 chain refuse {
  meta l4proto N_TCP reject with tcp reset
  reject with icmpx admin-prohibited
 }
}
"#;
