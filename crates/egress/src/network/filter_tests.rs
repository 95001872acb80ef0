use berth_domain::firewall::SetRules;
use proptest::prelude::*;
use serde_json::{Value, json};
use smoltcp::wire::Ipv4Packet;

use super::super::header::IPV4;
use super::*;

const A: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 2);
const B: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 3);
const C: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 4);
/// Flags of segments.
const FIRST: u8 = SYN;
const SECOND: u8 = SYN | ACK;
const LATER: u8 = ACK;

fn rules(rules: &Value) -> Rules {
    SetRules::try_from(&json!({ "rules": rules })).unwrap().rules
}

fn packet((from, to): (Ipv4Addr, Ipv4Addr), protocol: u8, data: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV4];
    packet[0] = 0x45;
    packet[8..10].copy_from_slice(&[64, protocol]);
    packet[12..16].copy_from_slice(&from.octets());
    packet[16..20].copy_from_slice(&to.octets());
    packet.extend_from_slice(data);
    let length = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    sealed(packet)
}

fn sealed(mut packet: Vec<u8>) -> Vec<u8> {
    Ipv4Packet::new_unchecked(&mut packet[..]).fill_checksum();
    packet
}

fn ports(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes()].concat()
}

fn tcp(ends: (Ipv4Addr, Ipv4Addr), (from, to): (u16, u16), flags: u8) -> Vec<u8> {
    packet(ends, 6, &[ports(from, to), vec![0; 8], vec![0x50, flags, 0, 0, 0, 0, 0, 0]].concat())
}

fn udp(ends: (Ipv4Addr, Ipv4Addr), (from, to): (u16, u16)) -> Vec<u8> {
    packet(ends, 17, &[ports(from, to), vec![0, 8, 0, 0]].concat())
}

fn icmp(ends: (Ipv4Addr, Ipv4Addr), kind: u8, ident: u16) -> Vec<u8> {
    packet(ends, 1, &[vec![kind, 0, 0, 0], ports(ident, 1)].concat())
}

fn error(ends: (Ipv4Addr, Ipv4Addr), about: &[u8]) -> Vec<u8> {
    packet(ends, 1, &[&[3, 3, 0, 0, 0, 0, 0, 0], &about[..IPV4 + 8]].concat())
}

/// A filter, what it follows, and the time.
struct Tried {
    filter: Filter,
    rules: Rules,
    now: Instant,
}

impl Tried {
    fn new(filter: Filter, list: &Value) -> Self {
        Self { filter, rules: rules(list), now: Instant::now() }
    }

    fn passes(&mut self, packet: &[u8]) -> bool {
        self.filter.passes(&self.rules, packet, self.now)
    }
}

/// B answers those who begin and begins nothing; of what comes, only one port is open.
fn server() -> Value {
    json!([
        {"direction": "in", "protocol": "tcp", "ports": [80], "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ])
}

#[test]
fn answers_pass_and_beginnings_are_judged() {
    let mut b = Tried::new(Filter::of(vec![B.into()]), &server());
    assert!(!b.passes(&tcp((B, A), (80, 9), SECOND)), "an answer to nothing");
    assert!(b.passes(&tcp((A, B), (9, 80), FIRST)));
    assert!(b.passes(&tcp((B, A), (80, 9), SECOND)));
    assert!(b.passes(&tcp((A, B), (9, 80), LATER)));
    assert!(!b.passes(&tcp((A, B), (9, 81), FIRST)), "another port");
    assert!(!b.passes(&tcp((B, A), (80, 10), LATER)), "another connection");
    assert!(!b.passes(&tcp((B, A), (80, 9), FIRST)), "the same ports, begun from the other side");
    assert!(!b.passes(&udp((A, B), (9, 80))) && !b.passes(&icmp((A, B), PING, 7)));
}

#[test]
fn whose_way_a_rule_speaks_of_is_told_by_who_judges() {
    let out = json!([{"direction": "out", "protocol": "tcp", "action": "deny"}]);
    assert!(Tried::new(Filter::of(vec![B.into()]), &out).passes(&tcp((A, B), (9, 80), FIRST)));
    assert!(!Tried::new(Filter::of(vec![A.into()]), &out).passes(&tcp((A, B), (9, 80), FIRST)));
    let from = json!([{"direction": "in", "protocol": "any", "source": "10.128.0.2", "action": "deny"}]);
    let mut network = Tried::new(Filter::default(), &from);
    assert!(!network.passes(&tcp((A, B), (9, 80), FIRST)));
    assert!(network.passes(&tcp((C, B), (9, 80), FIRST)));
    assert!(network.passes(&tcp((B, A), (9, 80), FIRST)));
    assert!(network.passes(&tcp((A, B), (80, 9), SECOND)), "it answers");
}

#[test]
fn a_change_ends_what_it_does_not_allow_and_nothing_else() {
    let mut b = Tried::new(Filter::of(vec![B.into()]), &json!([]));
    let open = [(9, 80), (9, 81)];
    for ports in open {
        assert!(b.passes(&tcp((A, B), ports, FIRST)));
        assert!(b.passes(&tcp((B, A), (ports.1, ports.0), SECOND)));
    }
    b.rules = rules(&server());
    for (ports, stays) in open.into_iter().zip([true, false]) {
        assert_eq!(b.passes(&tcp((A, B), ports, LATER)), stays);
        assert_eq!(b.passes(&tcp((B, A), (ports.1, ports.0), LATER)), stays, "nor does the other side go on with it");
    }
    b.rules = rules(&json!([{"direction": "in", "protocol": "tcp", "ports": [81], "action": "deny"}]));
    assert!(!b.passes(&tcp((B, A), (81, 9), LATER)), "what was ended stays ended, though B may begin now");
    assert!(b.passes(&tcp((B, A), (81, 9), FIRST)));
    assert!(b.passes(&tcp((A, B), (9, 81), SECOND)));
}

#[test]
fn what_was_ended_stays_ended_whatever_is_begun_beside_it() {
    let mut b = Tried::new(Filter::of(vec![B.into()]), &json!([]));
    assert!(b.passes(&tcp((A, B), (9, 81), FIRST)) && b.passes(&tcp((B, A), (81, 9), SECOND)));
    b.rules = rules(&json!([{"direction": "in", "protocol": "tcp", "ports": [81], "action": "deny"}]));
    assert!(!b.passes(&tcp((A, B), (9, 81), LATER)));
    for port in 1024..u16::MAX {
        b.passes(&tcp((A, B), (port, 80), FIRST));
    }
    assert!(!b.passes(&tcp((B, A), (81, 9), LATER)), "as if B had begun it");
    assert!(!b.passes(&tcp((A, B), (9, 81), LATER)));
}

#[test]
fn what_began_before_anything_was_remembered_goes_on() {
    let mut b = Tried::new(Filter::of(vec![B.into()]), &server());
    assert!(b.passes(&tcp((A, B), (9, 80), LATER)));
    assert!(b.passes(&tcp((B, A), (80, 9), LATER)));
    assert!(!b.passes(&tcp((A, B), (9, 81), LATER)));
}

#[test]
fn datagrams_and_pings_are_answered() {
    let out = json!([{"direction": "in", "protocol": "any", "action": "deny"}]);
    let mut a = Tried::new(Filter::of(vec![A.into()]), &out);
    assert!(!a.passes(&udp((B, A), (53, 5))));
    assert!(a.passes(&udp((A, B), (5, 53))) && a.passes(&udp((B, A), (53, 5))));
    assert!(!a.passes(&udp((C, A), (53, 5))) && !a.passes(&udp((B, A), (53, 6))));
    assert!(!a.passes(&icmp((B, A), PONG, 7)));
    assert!(a.passes(&icmp((A, B), PING, 7)) && a.passes(&icmp((B, A), PONG, 7)));
    assert!(!a.passes(&icmp((B, A), PONG, 8)) && !a.passes(&icmp((B, A), PING, 7)));
    // An error is about something that was sent, and from whom it went to.
    let sent = udp((A, B), (5, 53));
    assert!(a.passes(&error((B, A), &sent)));
    assert!(!a.passes(&error((C, A), &sent)) && !a.passes(&error((B, A), &udp((A, B), (6, 53)))));
}

#[test]
fn later_pieces_follow_the_first() {
    let mut b = Tried::new(
        Filter::of(vec![B.into()]),
        &json!([{"direction": "in", "protocol": "udp", "ports": [53], "action": "deny"}]),
    );
    let piece = |ident: u8, port: u16, at: u8| {
        let mut packet = udp((A, B), (9, port));
        packet[5] = ident;
        packet[6..8].copy_from_slice(&[0x20, at]);
        sealed(packet)
    };
    assert!(!b.passes(&piece(1, 54, 1)), "it came before the first");
    assert!(b.passes(&piece(1, 54, 0)) && b.passes(&piece(1, 54, 1)));
    assert!(!b.passes(&piece(2, 53, 0)) && !b.passes(&piece(2, 53, 1)));
    // A first piece that ends before its flags says nothing of a connection.
    let mut short = packet((A, B), 6, &ports(9, 80));
    short.extend_from_slice(&[0; 4]);
    short[3] = 28;
    short[6] = 0x20;
    assert!(!b.passes(&sealed(short)));
}

#[test]
fn what_is_silent_is_forgotten() {
    let deny = json!([{"direction": "in", "protocol": "any", "action": "deny"}]);
    let mut a = Tried::new(Filter::of(vec![A.into()]), &deny);
    assert!(a.passes(&tcp((A, B), (9, 80), FIRST)) && a.passes(&udp((A, B), (5, 53))));
    a.now += FLOW;
    assert!(a.passes(&udp((B, A), (53, 5))), "it is remembered that long at least");
    a.now += FLOW * 2;
    assert!(!a.passes(&udp((B, A), (53, 5))));
    assert!(a.passes(&tcp((B, A), (80, 9), LATER)));
    a.now += CONNECTION * 2;
    assert!(!a.passes(&tcp((B, A), (80, 9), LATER)));
}

#[test]
fn memories_are_bounded_and_nobody_fills_anothers() {
    let deny = json!([{"direction": "in", "protocol": "udp", "ports": ["1-1023"], "action": "deny"}]);
    let mut network = Tried::new(Filter::default(), &deny);
    assert!(network.passes(&udp((A, B), (1, 5000))));
    for port in 1024..u16::MAX {
        network.passes(&udp((C, B), (port, 5000)));
    }
    assert!(network.passes(&udp((B, A), (5000, 1))), "A's flow is remembered");
    let kept = |begun: &Begun| begun.flows.young.len() + begun.flows.old.len();
    assert!(network.filter.begun.values().all(|begun| kept(begun) <= 2 * MOST));
    network.filter.retain(|address| address == A);
    assert_eq!(network.filter.begun.len(), 1);
}

#[test]
fn without_rules_everything_between_machines_passes() {
    let mut all = Tried::new(Filter::default(), &json!([]));
    let error = error((B, A), &udp((A, B), (5, 53)));
    for packet in [icmp((A, B), PONG, 1), tcp((A, B), (1, 2), LATER), udp((A, B), (1, 2)), error] {
        assert!(all.passes(&packet));
    }
    assert!(!all.passes(b"x"));
}

proptest! {
    #[test]
    fn no_packet_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..80), protocol in prop::sample::select(vec![1u8, 6, 17])) {
        let mut tried = Tried::new(Filter::default(), &server());
        tried.passes(&bytes);
        tried.passes(&packet((A, B), protocol, &bytes));
    }

    #[test]
    fn nobody_who_may_not_begin_is_heard_first(port in 1u16.., to in 1u16.., flags in any::<u8>()) {
        let mut a = Tried::new(Filter::of(vec![A.into()]), &json!([{"direction": "in", "protocol": "any", "action": "deny"}]));
        prop_assert!(!a.passes(&tcp((B, A), (port, to), flags)));
        prop_assert!(!a.passes(&udp((B, A), (port, to))));
    }
}
