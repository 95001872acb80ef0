//! Bounds, on both sides.

use std::net::{Ipv4Addr, SocketAddrV4};

use smoltcp::socket::tcp::State;

use crate::guest::Outcome;
use crate::world::{SERVER, World, echo, network};

#[test]
fn so_many_connections_and_no_more() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.tcp_flows = 5);
    world.servers.tcp(SERVER, echo());
    let open: Vec<_> = (0..5).map(|_| guest.connected(SERVER)).collect();
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    guest.tcp(open[0]).close();
    guest.until("its end", |guest| matches!(guest.tcp(open[0]).state(), State::TimeWait | State::Closed).then_some(()));
    guest.until("room", |guest| (guest.connect(SERVER).1 == Outcome::Connected).then_some(()));
    guest.send(open[4], b"unharmed");
    assert_eq!(guest.receive(open[4], 8), b"unharmed");
}

#[test]
fn the_default_bound_of_connections_holds() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, echo());
    for _ in 0..1024 {
        guest.connected(SERVER);
    }
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
}

#[test]
fn so_many_sockets_and_no_more() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.sockets = 4);
    world.servers.tcp(SERVER, echo());
    let open: Vec<_> = (0..4).map(|_| guest.connected(SERVER)).collect();
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    guest.tcp(open[0]).abort();
    guest.until("room", |guest| (guest.connect(SERVER).1 == Outcome::Connected).then_some(()));
}

#[test]
fn connections_beyond_the_bytes_of_a_guest_are_refused_and_those_within_work() {
    let small = 40 << 10;
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.buffers = 3 * small);
    world.servers.tcp(SERVER, echo());
    let open: Vec<_> = (0..3).map(|_| guest.connected(SERVER)).collect();
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    let text: Vec<u8> = (0..100_000_u32).map(|n| n.to_be_bytes()[3]).collect();
    guest.send(open[1], &text[..4000]);
    assert_eq!(guest.receive(open[1], 4000), &text[..4000]);
    guest.tcp(open[0]).abort();
    guest.until("room", |guest| (guest.connect(SERVER).1 == Outcome::Connected).then_some(()));
}

#[test]
fn connections_being_made_wait_for_their_turn() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.half_open = 3);
    let port = |port| SocketAddrV4::new(Ipv4Addr::new(8, 8, 4, 4), port);
    for number in 1..=4 {
        world.servers.tcp(port(number), echo());
        world.servers.silent(port(number));
    }
    let waiting: Vec<_> = (1..=3).map(|number| guest.dial(port(number))).collect();
    guest.until("three attempts", |_| (world.servers.asked().len() == 3).then_some(()));
    let fourth = guest.dial(port(4));
    guest.assert_alive();
    assert_eq!(world.servers.asked().len(), 3, "the fourth is not answered");
    world.servers.speak(port(4));
    guest.tcp(waiting[0]).abort();
    assert_eq!(guest.until("its turn", |guest| guest.outcome(fourth)), Outcome::Connected);
}
