//! A guest that nobody has configured.

use std::net::{Ipv4Addr, SocketAddrV4};

use berth_egress::{GATEWAY, GUEST, PREFIX, RESOLVER};
use smoltcp::wire::Ipv4Cidr;

use crate::guest::Lease;
use crate::world::{SERVER, World, echo};

#[test]
fn a_machine_is_told_its_address_and_goes_on_with_it() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, echo());
    let lease = Lease { address: Ipv4Cidr::new(GUEST, PREFIX), router: GATEWAY, servers: vec![RESOLVER] };
    assert_eq!(guest.configure(), lease);
    let handle = guest.connected(SERVER);
    guest.send(handle, b"at home");
    assert_eq!(guest.receive(handle, 7), b"at home");
}

#[test]
fn nothing_but_a_question_goes_to_where_it_is_answered() {
    let (world, mut guest) = World::new();
    let socket = guest.datagrams();
    for to in [GATEWAY, Ipv4Addr::BROADCAST] {
        guest.datagram(socket, SocketAddrV4::new(to, 67), b"no message");
    }
    guest.assert_alive();
    assert!(guest.errors.is_empty() && world.servers.asked().is_empty());
}
