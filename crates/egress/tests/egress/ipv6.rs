//! A guest's IPv6.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use berth_egress::{GATEWAY6, NETWORK6, RESOLVER6, ROUTER6};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, IpProtocol, UdpPacket};

use crate::guest::{GUEST6, Guest, Outcome, packet6};
use crate::tcp::noise;
use crate::world::{World, echo, greeter, network};

/// An address of each range that is not the outside, one of the host's, and IPv4 addresses, allowed and denied ones, in
/// disguise.
pub const SPECIAL: [&str; 26] = [
    "::1",
    "::8.8.8.8",
    "::127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::8.8.8.8",
    "64:ff9b::127.0.0.1",
    "64:ff9b:1::10.0.0.1",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:0:7f00:1::1",
    "2001:2::1",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fe80::99",
    "fec0::1",
    "2600::1",
];

fn server() -> SocketAddr {
    SocketAddr::from(([0x2600, 0, 0, 0, 0, 0, 0, 9], 7))
}

fn at(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), 80)
}

#[test]
fn a_machine_makes_itself_an_address_and_goes_on_with_it() {
    let (world, mut guest) = World::new();
    world.servers.tcp(server(), echo());
    let own = guest.autoconfigure();
    assert_eq!(own.segments()[..4], NETWORK6.segments()[..4]);
    let handle = guest.connected(server());
    guest.send(handle, b"at home");
    assert_eq!(guest.receive(handle, 7), b"at home");
}

#[test]
fn bytes_and_datagrams_go_and_come() {
    let (world, mut guest) = World::new();
    world.servers.tcp(server(), echo());
    world.servers.udp(server(), crate::udp::echo());
    let handle = guest.connected(server());
    let bytes = noise(300_000);
    let (mut got, mut at) = (Vec::new(), 0);
    guest.until("an echo of everything", |guest| {
        guest.take(handle, &mut got);
        if guest.tcp(handle).can_send() {
            at += guest.tcp(handle).send_slice(&bytes[at..]).unwrap();
        }
        (got.len() == bytes.len()).then_some(())
    });
    assert!(got == bytes);
    guest.tcp(handle).close();
    assert!(guest.receive_all(handle).is_empty());

    let socket = guest.datagrams();
    for len in [0, 1, 1452] {
        guest.datagram(socket, server(), &bytes[..len]);
        assert_eq!(guest.receive_datagram_from(socket), (bytes[..len].to_vec(), server()));
    }
}

#[test]
fn a_large_datagram_comes_in_pieces() {
    let (world, mut guest) = World::new();
    world.servers.udp(server(), crate::udp::echo());
    guest.set_mtu(berth_egress::MTU);
    let socket = guest.datagrams();
    guest.datagram(socket, server(), &noise(1453));
    let frames = guest.frames;
    guest.until("two pieces", |guest| (guest.frames >= frames + 2).then_some(()));
}

#[test]
fn a_datagram_in_pieces_is_put_together() {
    let (world, mut guest) = World::new();
    world.servers.udp(server(), crate::udp::echo());
    let socket = guest.datagrams_at(5000);
    let IpAddr::V6(to) = server().ip() else { panic!("an IPv6 address") };
    let payload = noise(2000);
    let mut datagram =
        [&5000_u16.to_be_bytes()[..], &7_u16.to_be_bytes(), &2008_u16.to_be_bytes(), &[0; 2], &payload].concat();
    UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&GUEST6.into(), &to.into());
    // The second piece comes first; an offset counts in eights, its lowest bit says that there is more.
    for (range, offset_and_more) in [(1200..2008, 1200), (0..1200, 1_u16)] {
        let head = [&[17, 0][..], &offset_and_more.to_be_bytes(), &[0, 0, 0, 9]].concat();
        guest.raw(&packet6(IpProtocol::Ipv6Frag, to, &[&head, &datagram[range]].concat()));
    }
    let frames = guest.frames;
    guest.until("the echo, in two pieces", |guest| (guest.frames >= frames + 2).then_some(()));
    assert_eq!(world.servers.asked(), [server()]);
    let _ = socket;
}

#[test]
fn special_addresses_and_the_host_are_refused() {
    let (world, mut guest) = World::new();
    // A stack that asks for itself does not ask on the link; a guest with another one may.
    let (loopback, others) = SPECIAL.split_first().unwrap();
    let IpAddr::V6(loopback) = at(loopback).ip() else { panic!("an IPv6 address") };
    let mut datagram = [5000_u16, 80, 8, 0].map(u16::to_be_bytes).concat();
    UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&GUEST6.into(), &loopback.into());
    guest.raw(&packet6(IpProtocol::Udp, loopback, &datagram));
    assert_eq!(guest.unreachable(loopback), 1);
    for address in others.iter().copied().map(at) {
        world.servers.tcp(address, echo());
        world.servers.udp(address, crate::udp::echo());
        assert_eq!(guest.connect(address).1, Outcome::Refused, "{address}");
        let socket = guest.datagrams();
        guest.datagram(socket, address, b"x");
        assert_eq!(guest.unreachable(address.ip()), 1, "{address}");
    }
    for own in [GATEWAY6, RESOLVER6] {
        assert_eq!(guest.connect((IpAddr::from(own), 80)).1, Outcome::Refused, "{own}");
    }
    assert!(world.servers.asked().is_empty(), "nothing went out");
}

#[test]
fn a_rule_unlocks_what_it_names_but_no_ipv4_address_in_disguise() {
    let rules = network("allow", &["fd00::/8", "2600::1", "8.8.8.8", "127.0.0.1", "::1"], &["2600::bad"]);
    let (world, mut guest) = World::with(rules, |config| config.host_loopback = true);
    for (address, expected) in [
        ("fd00::1", Outcome::Connected),
        ("2600::1", Outcome::Connected),
        ("2600::bad", Outcome::Refused),
        ("fe80::99", Outcome::Refused),
        ("::ffff:8.8.8.8", Outcome::Refused),
        ("::ffff:127.0.0.1", Outcome::Refused),
    ] {
        world.servers.tcp(at(address), greeter(b"hello"));
        assert_eq!(guest.connect(at(address)).1, expected, "{address}");
    }
}

#[test]
fn the_gateway_is_the_hosts_loopback_where_both_agree() {
    for (allow, loopback, expected) in [
        (&[][..], true, Outcome::Refused),
        (&["fd62:6572:7468::2"][..], true, Outcome::Connected),
        (&["fd62:6572:7468::2"][..], false, Outcome::Refused),
        (&["fd62:6572:7468::/48"][..], true, Outcome::Refused),
    ] {
        let (world, mut guest) = World::with(network("allow", allow, &[]), |config| config.host_loopback = loopback);
        world.servers.tcp(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 80), greeter(b"hello"));
        assert_eq!(guest.connect((IpAddr::from(GATEWAY6), 80)).1, expected, "{allow:?} {loopback}");
    }
}

#[test]
fn where_there_is_no_way_out_the_guest_is_told_at_once() {
    let (_world, mut guest) = World::new();
    assert_eq!(guest.connect(server()).1, Outcome::Refused);
    assert_eq!(guest.unreachable(server().ip()), 0, "no route");
    guest.errors.clear();
    let socket = guest.datagrams();
    guest.datagram(socket, server(), b"x");
    assert_eq!(guest.unreachable(server().ip()), 0);
}

#[test]
fn a_change_of_rules_ends_what_is_no_longer_allowed() {
    let (world, mut guest) = World::new();
    world.servers.tcp(server(), echo());
    let open = guest.connected(server());
    world.policy.send_replace(network("allow", &[], &["2600::/16"]));
    guest.reset(open);
}

#[test]
fn the_gateway_answers_pings_at_each_of_its_addresses() {
    let (_world, mut guest) = World::new();
    for own in [GATEWAY6, RESOLVER6, ROUTER6] {
        let request = Icmpv6Repr::EchoRequest { ident: 1, seq_no: 2, data: b"?" };
        let mut message = vec![0; request.buffer_len()];
        let checks = ChecksumCapabilities::default();
        request.emit(&GUEST6, &own, &mut Icmpv6Packet::new_unchecked(&mut message), &checks);
        guest.raw(&packet6(IpProtocol::Icmpv6, own, &message));
        let answer = guest.until("an answer", |guest: &mut Guest| guest.pongs.pop_front());
        assert_eq!(answer, (own.into(), 1, 2, b"?".to_vec()));
    }
}

#[test]
fn addresses_of_others_are_not_believed() {
    let (world, mut guest) = World::new();
    world.servers.udp(server(), crate::udp::echo());
    let IpAddr::V6(to) = server().ip() else { panic!("an IPv6 address") };
    for forged in ["fd62:6572:7469::15", "2600::15", "::", "fd62:6572:7468::2", "2600::9"] {
        let forged: Ipv6Addr = forged.parse().unwrap();
        let mut datagram = [5000_u16, 7, 9, 0].map(u16::to_be_bytes).concat();
        datagram.push(b'x');
        UdpPacket::new_unchecked(&mut datagram[..]).fill_checksum(&forged.into(), &to.into());
        let mut frame = packet6(IpProtocol::Udp, to, &datagram);
        frame[14 + 8..14 + 24].copy_from_slice(&forged.octets());
        guest.raw(&frame);
    }
    guest.assert_alive();
    assert!(world.servers.asked().is_empty() && guest.errors.is_empty());
}
