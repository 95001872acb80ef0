//! Who may be reached.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::GATEWAY;

use crate::guest::Outcome;
use crate::world::{SERVER, World, echo, greeter, network};

/// One address of each special range that a packet can go to.
const SPECIAL: &[[u8; 4]] = &[
    [0, 0, 0, 1],
    [10, 1, 2, 3],
    [100, 64, 0, 1],
    [127, 0, 0, 1],
    [127, 64, 0, 9],
    [168, 63, 129, 16],
    [169, 254, 1, 1],
    [169, 254, 169, 254],
    [172, 16, 0, 1],
    [192, 0, 0, 8],
    [192, 0, 2, 1],
    [192, 88, 99, 1],
    [192, 168, 1, 1],
    [198, 18, 0, 1],
    [198, 51, 100, 1],
    [203, 0, 113, 1],
    [240, 0, 0, 1],
];

fn at(address: [u8; 4]) -> SocketAddrV4 {
    SocketAddrV4::new(address.into(), 80)
}

#[test]
fn special_addresses_and_the_host_are_refused() {
    let (world, mut guest) = World::new();
    let server = echo();
    let host = [[8, 8, 8, 1], [10, 9, 9, 9], [10, 0, 2, 2], [10, 0, 2, 3]];
    for address in SPECIAL.iter().chain(&host) {
        world.servers.tcp(at(*address), server);
        world.servers.udp(at(*address), server);
        assert_eq!(guest.connect(at(*address)).1, Outcome::Refused, "{address:?}");
        let socket = guest.datagrams();
        guest.datagram(socket, at(*address), b"x");
        assert_eq!(guest.unreachable(*address), 13, "{address:?}");
    }
    assert!(world.servers.asked().is_empty(), "nothing went out");
    world.servers.tcp(SERVER, server);
    guest.connected(SERVER);
}

#[test]
fn a_rule_unlocks_what_it_names() {
    let rules = network("allow", &["169.254.169.254", "10.1.0.0/16", "8.8.8.1", "127.0.0.1", "10.0.2.2"], &[]);
    let locked = NetworkPolicy { unlock: Vec::new(), ..NetworkPolicy::clone(&rules) };
    let (world, mut guest) = World::with(Arc::new(locked), |_| ());
    for address in [[169, 254, 169, 254], [10, 1, 2, 3], [8, 8, 8, 1]] {
        assert_eq!(guest.connect(at(address)).1, Outcome::Refused, "{address:?}: the operator unlocks nothing");
    }
    assert!(world.servers.asked().is_empty(), "nothing went out");
    let (world, mut guest) = World::with(rules, |_| ());
    for address in SPECIAL.iter().chain(&[[8, 8, 8, 1], [10, 0, 2, 2]]) {
        world.servers.tcp(at(*address), greeter(b"hello"));
    }
    for address in [[169, 254, 169, 254], [10, 1, 2, 3], [8, 8, 8, 1]] {
        guest.connected(at(address));
    }
    // Loopback needs the operator's consent, too.
    for address in [[10, 2, 0, 1], [127, 0, 0, 1], [10, 0, 2, 2], [192, 168, 1, 1]] {
        assert_eq!(guest.connect(at(address)).1, Outcome::Refused, "{address:?}");
    }
}

#[test]
fn the_gateway_is_the_hosts_loopback_where_both_agree() {
    let server = greeter(b"hello");
    let here = SocketAddrV4::new(GATEWAY, server.port());
    for (rules, loopback, expected) in [
        (network("allow", &["10.0.2.2"], &[]), true, Outcome::Connected),
        (network("deny", &["10.0.2.2"], &[]), true, Outcome::Connected),
        (network("allow", &["10.0.2.2"], &["10.0.2.0/24"]), true, Outcome::Refused),
        (network("allow", &["10.0.0.0/8", "0.0.0.0/0"], &[]), true, Outcome::Refused),
        (network("allow", &["10.0.2.2"], &[]), false, Outcome::Refused),
        (network("allow", &[], &[]), true, Outcome::Refused),
    ] {
        let (world, mut guest) = World::with(rules, |config| config.host_loopback = loopback);
        world.servers.tcp(SocketAddrV4::new(Ipv4Addr::LOCALHOST, server.port()), server);
        let (handle, outcome) = guest.connect(here);
        assert_eq!(outcome, expected);
        if outcome == Outcome::Connected {
            assert_eq!(guest.receive(handle, 5), b"hello");
        }
    }
}

#[test]
fn deny_wins_and_egress_deny_is_the_rest() {
    let rules = network("deny", &["8.8.4.0/24", "9.9.9.9"], &["8.8.4.8/29"]);
    let (world, mut guest) = World::with(rules, |_| ());
    let server = echo();
    for (address, expected) in [
        ([8, 8, 4, 7], Outcome::Connected),
        ([8, 8, 4, 8], Outcome::Refused),
        ([8, 8, 4, 15], Outcome::Refused),
        ([8, 8, 4, 16], Outcome::Connected),
        ([9, 9, 9, 9], Outcome::Connected),
        ([9, 9, 9, 10], Outcome::Refused),
    ] {
        world.servers.tcp(at(address), server);
        assert_eq!(guest.connect(at(address)).1, expected, "{address:?}");
    }
}

#[test]
fn a_change_of_rules_ends_what_is_no_longer_allowed() {
    let (world, mut guest) = World::new();
    let other = SocketAddrV4::new(Ipv4Addr::new(9, 9, 9, 9), 7);
    world.servers.tcp(SERVER, echo());
    world.servers.tcp(other, echo());
    world.servers.udp(SERVER, crate::udp::echo());
    let (open, stays) = (guest.connected(SERVER), guest.connected(other));
    let socket = guest.datagrams();
    guest.datagram(socket, SERVER, b"one");
    assert_eq!(guest.receive_datagram(socket), b"one");

    world.policy.send_replace(network("allow", &[], &["8.8.0.0/16"]));
    guest.reset(open);
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    guest.datagram(socket, SERVER, b"two");
    assert_eq!(guest.unreachable(*SERVER.ip()), 13);
    guest.send(stays, b"still");
    assert_eq!(guest.receive(stays, 5), b"still");

    world.policy.send_replace(network("allow", &[], &[]));
    guest.until("the new rules", |guest| (guest.connect(SERVER).1 == Outcome::Connected).then_some(()));
}

#[test]
fn a_change_of_rules_ends_what_is_being_connected() {
    let (world, mut guest) = World::new();
    world.servers.silent(SERVER);
    let handle = guest.dial(SERVER);
    guest.until("the attempt", |_| world.servers.asked().contains(&SERVER.into()).then_some(()));
    world.policy.send_replace(network("deny", &[], &[]));
    guest.until("the refusal", |guest| (guest.outcome(handle) == Some(Outcome::Refused)).then_some(()));
}
