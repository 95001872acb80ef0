//! Datagrams.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use crate::world::{SERVER, World, network, v4};

/// A server that sends each datagram back.
pub fn echo() -> SocketAddrV4 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = v4(socket.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok((count, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..count], from);
        }
    });
    address
}

/// A server that tells from which port it was asked.
fn port_teller() -> SocketAddrV4 {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = v4(socket.local_addr().unwrap());
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
            let _ = socket.send_to(from.port().to_string().as_bytes(), from);
        }
    });
    address
}

#[test]
fn datagrams_go_and_come() {
    let (world, mut guest) = World::new();
    world.servers.udp(SERVER, echo());
    let (one, two) = (guest.datagrams(), guest.datagrams());
    guest.datagram(one, SERVER, b"one");
    guest.datagram(two, SERVER, b"");
    assert_eq!(guest.receive_datagram(one), b"one");
    assert_eq!(guest.receive_datagram(two), b"");
    for whole in [1472, 1473, 4000] {
        let bytes = crate::tcp::noise(whole);
        guest.datagram(one, SERVER, &bytes);
        assert_eq!(guest.receive_datagram(one), bytes, "{whole}");
    }
    guest.set_mtu(berth_egress::MTU);
    let largest = crate::tcp::noise(berth_egress::MTU - 28);
    guest.datagram(one, SERVER, &largest);
    assert_eq!(guest.receive_datagram(one), largest);
}

#[test]
fn what_waits_for_the_outside_is_bounded() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.datagrams = 100);
    world.servers.udp(SERVER, echo());
    let handle = guest.datagrams();
    guest.datagram(handle, SERVER, &[1; 101]);
    guest.datagram(handle, SERVER, &[2; 100]);
    assert_eq!(guest.receive_datagram(handle), [2; 100]);
}

#[test]
fn a_datagram_comes_in_pieces_that_every_guest_takes() {
    let (world, mut guest) = World::new();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // The guest goes on while it is looked for.
    socket.set_nonblocking(true).unwrap();
    world.servers.udp(SERVER, v4(socket.local_addr().unwrap()));
    let handle = guest.datagrams();
    guest.datagram(handle, SERVER, b"answer me at length");
    let (_, from) = guest.until("the question", |_| socket.recv_from(&mut [0; 64]).ok());
    let frames = guest.frames;
    socket.send_to(&[1; 1472], from).unwrap();
    assert_eq!(guest.receive_datagram(handle), [1; 1472]);
    assert_eq!(guest.frames, frames + 1);
    let longest = crate::tcp::noise(65_507);
    socket.send_to(&longest, from).unwrap();
    assert_eq!(guest.receive_datagram(handle), longest);
    assert_eq!(guest.frames, frames + 1 + 45);
}

#[test]
fn a_port_where_nobody_listens_is_told() {
    let (world, mut guest) = World::new();
    // A connected socket keeps its port and takes nothing from anybody else.
    let deaf = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    deaf.connect((Ipv4Addr::LOCALHOST, 1)).unwrap();
    world.servers.udp(SERVER, v4(deaf.local_addr().unwrap()));
    let handle = guest.datagrams();
    guest.datagram(handle, SERVER, b"anybody?");
    assert_eq!(guest.unreachable(*SERVER.ip()), 3);
    let nowhere: SocketAddrV4 = "8.8.4.5:80".parse().unwrap();
    guest.datagram(handle, nowhere, b"anybody?");
    assert_eq!(guest.unreachable(*nowhere.ip()), 1);
}

#[test]
fn what_goes_to_many_is_not_answered() {
    let (world, mut guest) = World::new();
    let handle = guest.datagrams();
    for group in [[224, 0, 0, 251], [239, 255, 255, 250], [255, 255, 255, 255], [10, 0, 2, 255]] {
        guest.datagram(handle, SocketAddrV4::new(group.into(), 5353), b"who is there?");
    }
    guest.assert_alive();
    assert!(guest.errors.is_empty() && world.servers.asked().is_empty());
}

#[test]
fn an_idle_flow_ends_and_the_next_datagram_makes_another() {
    let idle = Duration::from_millis(50);
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.udp_idle = idle);
    world.servers.udp(SERVER, port_teller());
    let handle = guest.datagrams();
    guest.datagram(handle, SERVER, b"?");
    let first = guest.receive_datagram(handle);
    let again = guest.until("another flow", |guest| {
        // Nothing is sent for longer than a flow lives.
        std::thread::sleep(idle * 3);
        guest.datagram(handle, SERVER, b"?");
        let port = guest.receive_datagram(handle);
        (port != first).then_some(port)
    });
    assert_ne!(again, first);
}

#[test]
fn the_flow_idle_longest_gives_way() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.udp_flows = 2);
    world.servers.udp(SERVER, port_teller());
    let sockets = [guest.datagrams(), guest.datagrams(), guest.datagrams()];
    let mut ask = |socket| {
        guest.datagram(socket, SERVER, b"?");
        guest.receive_datagram(socket)
    };
    let (first, second) = (ask(sockets[0]), ask(sockets[1]));
    assert_eq!(ask(sockets[0]), first, "two have room");
    ask(sockets[2]);
    assert_eq!(ask(sockets[0]), first, "it was used after the second");
    assert_ne!(ask(sockets[1]), second, "it had to give way");
}
