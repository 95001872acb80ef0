//! What a guest says of who it is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use serde_json::json;

use crate::guest::{Frames, has, sum6};
use crate::packets::{Answered, Outcome, Silent, at, ping, serve, tcp};
use crate::world::{OUTSIDE, OUTSIDE6, World, id};

const OWN: [u8; 6] = [0x52, 0x54, 0, 0x62, 0, 7];
const OTHER: [u8; 6] = [0x52, 0x54, 0, 0x62, 0, 8];
const GATEWAY: [u8; 6] = [0x52, 0x54, 0, 0x62, 0, 0];
const EVERYBODY: [u8; 6] = [0xff; 6];
const IP: [u8; 4] = [10, 127, 0, 8];
const OTHER_IP: [u8; 4] = [10, 127, 0, 9];
const GATEWAY_IP: [u8; 4] = [10, 127, 0, 1];

fn frame(to: [u8; 6], from: [u8; 6], kind: u16, body: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), body].concat()
}

/// ARP: who says it, in the frame and in the message, which address they say they have, and whose is asked for.
fn arp(from: [u8; 6], says: [u8; 6], has: [u8; 4], asks: [u8; 4]) -> Vec<u8> {
    let body = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &says, &has, &[0; 6], &asks].concat();
    frame(EVERYBODY, from, 0x0806, &body)
}

/// A datagram.
fn udp(from: [u8; 6], ip: [u8; 4], to: [u8; 4], ports: (u16, u16), data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).unwrap();
    let head = [0x45, 0, (20 + len).to_be_bytes()[0], (20 + len).to_be_bytes()[1], 0, 0, 0, 0, 64, 17, 0, 0];
    let datagram = [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &len.to_be_bytes(), &[0, 0], data].concat();
    let link = if to == [255; 4] { EVERYBODY } else { GATEWAY };
    let mut packet = [&head[..], &ip, &to, &datagram].concat();
    // Where bridged packets pass rules of IP, their sum is looked at.
    let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    packet[10..12].copy_from_slice(&folded.to_be_bytes());
    frame(link, from, 0x0800, &packet)
}

fn dhcp(from: [u8; 6], says: [u8; 6]) -> Vec<u8> {
    let mut message = vec![0; 240];
    message[..3].copy_from_slice(&[1, 1, 6]);
    message[28..34].copy_from_slice(&says);
    udp(from, [0; 4], [255; 4], (68, 67), &message)
}

/// A message of ICMPv6 about a target.
fn icmp6(link: [u8; 6], from: &str, kind: u8, target: &str) -> Vec<u8> {
    let (from, target): (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), target.parse().unwrap());
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    let len = u8::try_from(message.len()).unwrap();
    let head = [0x60, 0, 0, 0, 0, len, 58, 255];
    frame([0x33, 0x33, 0, 0, 0, 1], link, 0x86dd, &[&head[..], &from.octets(), &to.octets(), &message].concat())
}

/// How many frames have come to the bridge.
fn arrived() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let line = text.lines().find(|line| line.trim().starts_with("berth0:")).unwrap();
    line.split_once(':').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER: u8 = 134;
const REDIRECT: u8 = 137;
const LINK: &str = "fe80::5054:ff:fe62:7";
const OWN6: &str = "fd62:6572:7469::8";
const OTHER6: &str = "fd62:6572:7469::9";

#[test]
fn only_frames_of_its_own_addresses_pass() {
    let Some(world) = World::new() else { return };
    world.set(&world.machine(7, json!([]), &[]));
    let mut guest = Frames::new("berth0-7");
    let cases = [
        ("its own ARP", arp(OWN, OWN, IP, GATEWAY_IP), true),
        ("ARP about another address", arp(OWN, OWN, OTHER_IP, GATEWAY_IP), false),
        ("ARP as the gateway", arp(OWN, OWN, GATEWAY_IP, GATEWAY_IP), false),
        ("ARP about another card", arp(OWN, OTHER, IP, GATEWAY_IP), false),
        ("ARP from another card", arp(OTHER, OTHER, IP, GATEWAY_IP), false),
        ("its own datagram", udp(OWN, IP, GATEWAY_IP, (1, 53), b"x"), true),
        ("a datagram of another's", udp(OWN, OTHER_IP, GATEWAY_IP, (1, 53), b"x"), false),
        ("a datagram from another card", udp(OTHER, IP, GATEWAY_IP, (1, 53), b"x"), false),
        ("a datagram of nobody's", udp(OWN, [0; 4], GATEWAY_IP, (1, 53), b"x"), false),
        ("its own DHCP", dhcp(OWN, OWN), true),
        ("DHCP for another card", dhcp(OWN, OTHER), false),
        ("DHCP from another card", dhcp(OTHER, OTHER), false),
        ("its own solicitation", icmp6(OWN, OWN6, SOLICITATION, "fe80::1"), true),
        ("one of the link", icmp6(OWN, LINK, SOLICITATION, "fe80::1"), true),
        ("one of another's of the link", icmp6(OWN, "fe80::5", SOLICITATION, "fe80::1"), false),
        ("one before it has an address", icmp6(OWN, "::", SOLICITATION, OWN6), true),
        ("its own advertisement", icmp6(OWN, OWN6, ADVERTISEMENT, OWN6), true),
        ("one of the link's", icmp6(OWN, LINK, ADVERTISEMENT, LINK), true),
        ("one of another's of the link", icmp6(OWN, "fe80::5", ADVERTISEMENT, "fe80::5"), false),
        ("one about another's of the link", icmp6(OWN, LINK, ADVERTISEMENT, "fe80::5"), false),
        ("an advertisement of another's", icmp6(OWN, OWN6, ADVERTISEMENT, OTHER6), false),
        ("one of another's by the link", icmp6(OWN, LINK, ADVERTISEMENT, OTHER6), false),
        ("one from another's address", icmp6(OWN, OTHER6, ADVERTISEMENT, OTHER6), false),
        ("a solicitation from another's", icmp6(OWN, OTHER6, SOLICITATION, "fe80::1"), false),
        ("a router's", icmp6(OWN, LINK, ROUTER, "::"), false),
        ("a router's from its own address", icmp6(OWN, OWN6, ROUTER, "::"), false),
        ("a redirect", icmp6(OWN, LINK, REDIRECT, OUTSIDE6), false),
        ("IPv6 from another card", icmp6(OTHER, OWN6, SOLICITATION, "fe80::1"), false),
        ("another protocol", frame(EVERYBODY, OWN, 0x88cc, &[0; 46]), false),
        ("a tagged frame", frame(EVERYBODY, OWN, 0x8100, &arp(OWN, OWN, OTHER_IP, GATEWAY_IP)[12..]), false),
    ];
    for (what, frame, passes) in cases {
        let before = arrived();
        guest.send(&frame);
        assert_eq!(arrived() - before, u64::from(passes), "{what}");
    }
}

/// What is for a bridge's own protocols (IEEE 802.1D, 7.12.6) would come to the host by the tap, past the bridge.
#[test]
fn frames_for_the_bridges_own_protocols_come_to_nobody() {
    let Some(world) = World::new() else { return };
    world.set(&world.machine(7, json!([]), &[]));
    for device in ["all", "berth0", "berth0-7"] {
        crate::place::set(&format!("ipv4/conf/{device}/rp_filter"), "0");
    }
    let socket = UdpSocket::bind("0.0.0.0:7777").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut guest = Frames::new("berth0-7");
    for last in 0..16 {
        for ip in [IP, OTHER_IP, [9, 9, 9, 77]] {
            for to in [GATEWAY_IP, [9, 9, 9, 1], [192, 168, 7, 1]] {
                let mut datagram = udp(OWN, ip, to, (1, 7777), b"guest");
                let mut asks = arp(OWN, OWN, ip, to);
                for frame in [&mut datagram, &mut asks] {
                    frame[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, last]);
                    guest.send(frame);
                }
            }
        }
    }
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"host", "127.0.0.1:7777").unwrap();
    let mut buffer = [0; 64];
    let len = socket.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..len], b"host", "what came later is first");
    assert_eq!(neighbours("berth0-7"), "");
    assert!(!neighbours("berth0").contains("9.9.9.77"));
}

#[test]
fn a_guest_takes_no_place_among_the_hosts_neighbours_but_its_own() {
    let Some(world) = World::new() else { return };
    world.set(&world.machine(7, json!([]), &[]));
    let before = neighbours("berth0");
    let mut guest = Frames::new("berth0-7");
    for n in 0x100..0x140 {
        let from = format!("fe80::{n:x}");
        // Whoever asks says where it is (RFC 4861, 4.3).
        let mut frame = icmp6(OWN, &from, SOLICITATION, "fe80::1");
        frame.extend([&[1, 1][..], &OWN].concat());
        frame[19] += 8;
        sum6(&mut frame);
        guest.send(&frame);
    }
    assert_eq!(neighbours("berth0"), before);
}

/// What the kernel knows of who is at a device.
fn neighbours(device: &str) -> String {
    let output = std::process::Command::new("ip").args(["neighbour", "show", "dev", device]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_guest_with_anothers_address_reaches_nobody() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    let guest = world.guest(7, json!([]), &[]);
    let other = world.guest(8, json!([]), &[]);
    let all = |expected: Outcome| {
        guest.place.run(move || [tcp(at(OUTSIDE, 80), expected), ping(IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)), expected)])
    };
    assert_eq!(all(Answered), [Answered; 2]);
    guest.place.ip("address del 10.127.0.8/16 dev eth0");
    guest.place.ip("address add 10.127.0.9/16 dev eth0");
    guest.place.ip("route replace default via 10.127.0.1");
    guest.place.ip("neighbour replace 10.127.0.1 lladdr 52:54:00:62:00:00 dev eth0");
    assert_eq!(all(Silent), [Silent; 2]);
    guest.place.ip("link set eth0 address 52:54:00:62:00:08");
    assert_eq!(all(Silent), [Silent; 2]);
    assert_eq!(other.place.run(|| tcp(at(OUTSIDE, 80), Answered)), Answered, "whose address it is goes on");
    guest.place.ip("-6 address add fd62:6572:7469::9/128 dev eth0 nodad");
    guest.place.ip("-6 address del fd62:6572:7469::8/128 dev eth0");
    assert_eq!(guest.place.run(|| tcp(at(OUTSIDE6, 80), Silent)), Silent);
    // A stranger outside with a machine's address.
    world.internet.ip("address add 10.127.0.8/32 dev lo");
    let port = world.machine(9, json!([]), &[("udp/9.9.9.1:99", 99)]);
    world.set(&port);
    let mut victim = Frames::new("berth0-9");
    world.internet.run(|| {
        let socket = std::net::UdpSocket::bind("10.127.0.8:99").unwrap();
        socket.send_to(b"x", "9.9.9.1:99").unwrap();
    });
    // What is not refused comes after it.
    world.internet.run(|| {
        let socket = UdpSocket::bind("9.9.9.9:99").unwrap();
        socket.send_to(b"the last", "9.9.9.1:99").unwrap();
    });
    let came = victim.until(|frame| has(frame, b"the last"));
    assert!(!came.iter().any(|frame| has(frame, &[10, 127, 0, 8])), "it came through");
}

#[test]
fn what_is_sent_to_a_machine_that_is_gone_does_not_come_to_the_next_one() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    let ports = [("udp/9.9.9.1:99", 99)];
    world.set(&world.machine(7, json!([]), &ports));
    let mut gone = Frames::new("berth0-7");
    // One flow that it begins, and one that comes to it.
    gone.send(&udp(OWN, IP, [9, 9, 9, 9], (5000, 5001), b"begins"));
    let (begun, comes) = world.internet.run(|| {
        let [begun, comes] = [5001, 5002].map(|port| UdpSocket::bind(("9.9.9.9", port)).unwrap());
        (begun, comes)
    });
    gone.send(&udp(OWN, IP, [9, 9, 9, 9], (5000, 5001), b"begins"));
    begun.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let back = begun.recv_from(&mut [0; 64]).unwrap().1;
    let tell = |what: &[u8]| {
        begun.send_to(what, back).unwrap();
        comes.send_to(what, "9.9.9.1:99").unwrap();
    };
    tell(b"before");
    for _ in 0..2 {
        gone.until(|frame| has(frame, b"before"));
    }
    gone.send(&udp(OWN, IP, [9, 9, 9, 9], (99, 5002), b"answers"));
    drop(gone);
    world.block(world.bridge().remove(id(7))).unwrap();
    for rules in [json!([{"direction": "in", "protocol": "any", "action": "deny"}]), json!([])] {
        world.block(world.bridge().set(id(77), &world.machine(7, rules, &[]))).unwrap();
        let mut next = Frames::new("berth0-7");
        tell(b"after");
        next.send(&udp(OWN, IP, [8, 8, 8, 8], (6000, 80), b"the last"));
        let came = next.until(|frame| has(frame, b"the last"));
        assert!(!came.iter().any(|frame| has(frame, b"after")), "it came to another one");
    }
}
