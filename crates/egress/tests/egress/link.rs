//! The link itself: addresses, pings, counters, ends and beginnings.

use std::io::ErrorKind;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Ipv4Address};

use crate::guest::{MAC, ping};
use crate::world::{SERVER, World, echo, greeter};

fn arp(wanted: Ipv4Address) -> Vec<u8> {
    let mut frame = vec![0; 42];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_src_addr(MAC);
    ethernet.set_dst_addr(EthernetAddress::BROADCAST);
    ethernet.set_ethertype(EthernetProtocol::Arp);
    let request = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr: MAC,
        source_protocol_addr: berth_egress::GUEST,
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: wanted,
    };
    request.emit(&mut ArpPacket::new_unchecked(ethernet.payload_mut()));
    frame
}

#[test]
fn the_gateway_and_the_resolver_are_there_and_nobody_else() {
    let (_world, mut guest) = World::new();
    for (wanted, answers) in [(1, 0), (2, 1), (3, 1), (4, 0), (15, 0)] {
        let frames = guest.frames;
        guest.raw(&arp(Ipv4Address::new(10, 0, 2, wanted)));
        // The answer to the ping comes behind the answer to the question, if there is one.
        guest.raw(&ping());
        guest.until("answers", |guest| (guest.frames > frames + answers).then_some(()));
        assert_eq!(guest.frames, frames + answers + 1, "10.0.2.{wanted}");
    }
}

#[test]
fn bytes_are_counted_as_the_guest_sees_them() {
    let (world, mut guest) = World::new();
    let frame = ping();
    guest.raw(&frame);
    guest.until("the answer", |guest| (guest.frames == 1).then_some(()));
    let bytes = frame.len() as u64;
    assert_eq!(world.sent_and_received(), (bytes, bytes));
}

#[test]
fn the_end_of_the_stream_ends_everything_and_a_new_one_begins_anew() {
    let (mut world, mut guest) = World::new();
    let (told, ends) = std::sync::mpsc::channel();
    let server = crate::world::server(move |mut stream| {
        let end = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        told.send(end.map_err(|error| error.kind())).unwrap();
    });
    world.servers.tcp(SERVER, server);
    let open = guest.connected(SERVER);
    guest.send(open, b"half a request");
    guest.hang_up();
    world.ended().unwrap();
    ends.recv().unwrap().map_or_else(|kind| assert_eq!(kind, ErrorKind::ConnectionReset), |_| ());

    world.servers.tcp(SERVER, echo());
    let mut guest = world.attach_again();
    let handle = guest.connected(SERVER);
    guest.send(handle, b"again");
    assert_eq!(guest.receive(handle, 5), b"again");
}

#[test]
fn a_stream_that_ends_in_the_middle_of_a_frame_ends_the_link() {
    let (mut world, mut guest) = World::new();
    guest.bytes(&[0, 0, 1, 0, 1, 2, 3]);
    guest.hang_up();
    world.ended().unwrap();
}

#[test]
fn frames_too_large_are_skipped_and_insane_ones_end_the_link() {
    let (mut world, mut guest) = World::new();
    world.servers.tcp(SERVER, greeter(b"hello"));
    guest.raw(&vec![0xff; 14 + 4 + berth_egress::MTU + 1]);
    guest.raw(&vec![0xff; 68 * 1024]);
    guest.assert_alive();
    let handle = guest.connected(SERVER);
    assert_eq!(guest.receive(handle, 5), b"hello");
    guest.bytes(&(68 * 1024 + 1_u32).to_be_bytes());
    assert_eq!(world.ended().unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn a_policy_whose_sender_is_gone_stays() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, greeter(b"hello"));
    drop(world.policy);
    let handle = guest.connected(SERVER);
    assert_eq!(guest.receive(handle, 5), b"hello");
}
