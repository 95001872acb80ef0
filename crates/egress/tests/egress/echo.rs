//! Pings to the outside.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Icmpv6Packet, Icmpv6Repr, IpProtocol};

use crate::guest::{GUEST6, Guest, packet, packet6};
use crate::world::{SERVER, World, network, v4};

/// A kernel's socket for pings, with a host behind it that answers.
fn host() -> SocketAddrV4 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = v4(socket.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            assert!([8, 128].contains(&buffer[0]), "only requests are sent");
            // What else a network says; it answers nobody.
            socket.send_to(&[3, 1, 0, 0, 0, 0, 0, 0], from).unwrap();
            buffer[0] = if buffer[0] == 8 { 0 } else { 129 };
            // The identifier is the kernel's.
            buffer[4..6].copy_from_slice(&from.port().to_be_bytes());
            socket.send_to(&buffer[..count], from).unwrap();
        }
    });
    address
}

impl Guest {
    /// Pings an address.
    pub fn ping(&mut self, to: impl Into<IpAddr>, ident: u16, seq_no: u16, data: &[u8]) {
        match to.into() {
            IpAddr::V4(to) => {
                let request = Icmpv4Repr::EchoRequest { ident, seq_no, data };
                let mut message = vec![0; request.buffer_len()];
                request.emit(&mut Icmpv4Packet::new_unchecked(&mut message), &ChecksumCapabilities::default());
                self.raw(&packet(IpProtocol::Icmp, to, &message));
            }
            IpAddr::V6(to) => {
                let request = Icmpv6Repr::EchoRequest { ident, seq_no, data };
                let mut message = vec![0; request.buffer_len()];
                let checks = ChecksumCapabilities::default();
                request.emit(&GUEST6, &to, &mut Icmpv6Packet::new_unchecked(&mut message), &checks);
                self.raw(&packet6(IpProtocol::Icmpv6, to, &message));
            }
        }
    }

    /// Waits for an answer to a ping.
    pub fn pong(&mut self) -> (IpAddr, u16, u16, Vec<u8>) {
        self.until("an answer to a ping", |guest| guest.pongs.pop_front())
    }
}

#[test]
fn who_may_be_reached_may_be_pinged() {
    let (world, mut guest) = World::new();
    let (one, two): (IpAddr, IpAddr) = ((*SERVER.ip()).into(), [0x2600, 0, 0, 0, 0, 0, 0, 9].into());
    world.servers.echo(one, host());
    world.servers.echo(two, host());
    let long = [5; 1400];
    for (to, ident, seq_no, data) in
        [(one, 7, 1, &b"one"[..]), (one, 7, 2, b""), (two, 7, 2, b"two"), (one, 8, 1, &long)]
    {
        guest.ping(to, ident, seq_no, data);
        assert_eq!(guest.pong(), (to, ident, seq_no, data.to_vec()));
    }
    assert_eq!(world.servers.asked().len(), 3, "a flow for each identifier and address");
}

#[test]
fn who_may_not_be_reached_may_not_be_pinged() {
    let (world, mut guest) = World::with(network("allow", &[], &["9.9.9.0/24"]), |_| ());
    let own = guest.frames;
    let special = [[127, 0, 0, 1], [10, 1, 2, 3], [169, 254, 169, 254], [224, 0, 0, 1]];
    for refused in special.into_iter().chain([[8, 8, 8, 1], [10, 9, 9, 9], [9, 9, 9, 9]]) {
        world.servers.echo(refused, host());
        guest.ping(refused, 1, 1, b"?");
    }
    for refused in crate::ipv6::SPECIAL {
        let refused: IpAddr = refused.parse().unwrap();
        world.servers.echo(refused, host());
        guest.ping(refused, 1, 1, b"?");
    }
    guest.assert_alive();
    assert_eq!((guest.frames, world.servers.asked().len()), (own + 1, 0));

    world.servers.echo(*SERVER.ip(), host());
    guest.ping(*SERVER.ip(), 1, 1, b"before");
    assert_eq!(guest.pong().3, b"before");
    world.policy.send_replace(network("deny", &[], &[]));
    guest.until("the new rules", |guest| {
        guest.ping(*SERVER.ip(), 1, 2, b"after");
        guest.assert_alive();
        guest.pongs.pop_front().is_none().then_some(())
    });
}

#[test]
fn where_the_kernel_has_no_such_socket_nothing_answers() {
    let (world, mut guest) = World::new();
    guest.ping(*SERVER.ip(), 1, 1, b"?");
    guest.until("the attempt", |_| (!world.servers.asked().is_empty()).then_some(()));
    guest.assert_alive();
    assert!(guest.errors.is_empty());
}

#[test]
fn so_many_are_pinged_at_once_and_no_more() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.echo_flows = 2);
    world.servers.echo(*SERVER.ip(), host());
    for (ident, sockets) in [(1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4)] {
        guest.ping(*SERVER.ip(), ident, 1, b"?");
        assert_eq!(guest.pong().1, ident);
        assert_eq!(world.servers.asked().len(), sockets, "the one idle longest gives way");
    }
}
