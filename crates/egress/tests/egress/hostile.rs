//! A guest that means harm.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use smoltcp::wire::{Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet, TcpPacket, UdpPacket};

use crate::guest::{GUEST6, packet, packet6, ping};
use crate::world::{SERVER, World, echo};

fn segment(flags: u8, port: u16) -> Vec<u8> {
    let mut bytes = [0; 20];
    let mut tcp = TcpPacket::new_unchecked(&mut bytes[..]);
    tcp.set_src_port(port);
    tcp.set_dst_port(SERVER.port());
    tcp.set_header_len(20);
    tcp.set_syn(flags & 1 != 0);
    tcp.set_ack(flags & 2 != 0);
    tcp.set_fin(flags & 4 != 0);
    tcp.set_rst(flags & 8 != 0);
    tcp.set_window_len(1000);
    tcp.fill_checksum(&IpAddress::Ipv4(berth_egress::GUEST), &IpAddress::Ipv4(*SERVER.ip()));
    packet(IpProtocol::Tcp, *SERVER.ip(), &bytes)
}

fn datagram(port: u16, to: u16, resolver: bool) -> Vec<u8> {
    let address = if resolver { berth_egress::RESOLVER } else { *SERVER.ip() };
    let mut bytes = *b"________payload payload payload";
    let len = u16::try_from(bytes.len()).unwrap();
    let mut udp = UdpPacket::new_unchecked(&mut bytes[..]);
    udp.set_src_port(port);
    udp.set_dst_port(to);
    udp.set_len(len);
    udp.fill_checksum(&IpAddress::Ipv4(berth_egress::GUEST), &IpAddress::Ipv4(address));
    packet(IpProtocol::Udp, address, &bytes)
}

fn fragment(flags: u8, offset: u8) -> Vec<u8> {
    let mut frame = datagram(1000, SERVER.port(), false);
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
    ip.set_more_frags(flags & 1 != 0);
    ip.set_frag_offset(u16::from(offset) * 8);
    ip.set_ident(u16::from(flags >> 6));
    ip.fill_checksum();
    frame
}

/// Somebody looks for a router, or for a neighbour.
fn neighbours(router: bool) -> Vec<u8> {
    let wanted: &[u8] = if router { &[] } else { &[0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2] };
    let kind: u8 = if router { 133 } else { 135 };
    let mut message = [&[kind, 0, 0, 0, 0, 0, 0, 0], wanted].concat();
    Icmpv6Packet::new_unchecked(&mut message[..]).fill_checksum(&GUEST6, &berth_egress::ROUTER6);
    let mut frame = packet6(IpProtocol::Icmpv6, berth_egress::ROUTER6, &message);
    frame[14 + 7] = 255;
    frame
}

fn dhcp(options: &[u8]) -> Vec<u8> {
    let mut message = [&[1, 1, 6][..], &[0; 233], &[99, 130, 83, 99, 53, 1, 1], options].concat();
    let len = u16::try_from(8 + message.len()).unwrap();
    message.splice(..0, [0, 68, 0, 67, len.to_be_bytes()[0], len.to_be_bytes()[1], 0, 0]);
    packet(IpProtocol::Udp, berth_egress::GATEWAY, &message)
}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let valid = prop_oneof![
        (any::<u8>(), any::<u16>()).prop_map(|(flags, port)| segment(flags, port)),
        // A connection that goes on with anything.
        any::<u8>().prop_map(|flags| segment(flags, 4242)),
        (any::<u16>(), any::<u16>()).prop_map(|(port, to)| datagram(port, to, false)),
        any::<u16>().prop_map(|port| datagram(port, 53, true)),
        Just(ping()),
        (any::<u8>(), any::<u8>()).prop_map(|(flags, offset)| fragment(flags, offset)),
        (prop::sample::select(vec![6_u8, 17, 44, 58]), prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(protocol, payload)| packet6(protocol.into(), berth_egress::GATEWAY6, &payload)),
        any::<bool>().prop_map(neighbours),
        prop::collection::vec(any::<u8>(), 0..400).prop_map(|options| dhcp(&options)),
    ];
    let mutated = (
        valid,
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(mut frame, changes, cut, cuts)| {
            for (at, to) in changes {
                let at = at.index(frame.len());
                frame[at] = to;
            }
            if cuts {
                frame.truncate(cut.index(frame.len()) + 1);
            }
            frame
        });
    prop_oneof![4 => mutated, 1 => prop::collection::vec(any::<u8>(), 0..1600)]
}

#[test]
fn garbage_neither_ends_nor_stalls_the_link() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, echo());
    world.servers.udp(SERVER, crate::udp::echo());
    let handle = guest.connected(SERVER);
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let guest = std::cell::RefCell::new(guest);
    runner
        .run(&prop::collection::vec(frames(), 1..60), |frames| {
            let mut guest = guest.borrow_mut();
            for frame in &frames {
                guest.raw(frame);
            }
            guest.assert_alive();
            Ok(())
        })
        .unwrap();
    let mut guest = guest.into_inner();
    guest.send(handle, b"unharmed");
    assert_eq!(guest.receive(handle, 8), b"unharmed");
}

#[test]
fn addresses_of_others_are_not_believed() {
    let (world, mut guest) = World::new();
    world.servers.udp(SERVER, crate::udp::echo());
    let mut forged = datagram(1000, SERVER.port(), false);
    forged[14 + 15] = 16;
    guest.raw(&forged);
    let mut fragment = datagram(1000, SERVER.port(), false);
    fragment[14 + 6] = 0x20;
    guest.raw(&fragment);
    guest.assert_alive();
    assert!(world.servers.asked().is_empty());
}

#[test]
fn a_guest_that_never_reads_is_bounded_and_ends_in_order() {
    let (mut world, mut guest) = World::new();
    // Nobody takes the answers; what does not fit the wire is dropped, and the gateway goes on reading.
    for _ in 0..20_000 {
        guest.raw(&ping());
    }
    guest.hang_up();
    let _ = world.ended();
}
