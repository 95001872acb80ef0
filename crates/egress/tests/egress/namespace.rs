//! The real outside: addresses of interfaces and routes of a network namespace of this test's own.
//!
//! Where the kernel lets nobody make one, the same is asked of this machine's loopback.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::process::Command;
use std::sync::Arc;

use berth_egress::{Config, GATEWAY, RealOutside};
use nix::sched::{CloneFlags, unshare};

use crate::guest::Outcome;
use crate::world::{World, network};

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).status().is_ok_and(|status| status.success())
}

/// A server that lets everybody in, in this thread's namespace.
fn listen(address: Ipv4Addr) -> SocketAddrV4 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    SocketAddrV4::new(address, port)
}

fn real(config: &mut Config) {
    *config = Config { host_loopback: true, ..Config::default() };
    config.outside = Arc::new(RealOutside);
}

fn pings_go_over_a_socket_of_the_kernel(host: Ipv4Addr) {
    // The namespace's own, which lets nobody have one at first.
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
    let (_world, mut guest) = World::with(network("allow", &[&host.to_string()], &[]), real);
    guest.ping(host, 5, 6, b"is anybody there?");
    assert_eq!(guest.pong(), (host.into(), 5, 6, b"is anybody there?".to_vec()));
}

fn neighbours_of_the_host_are_refused() {
    // There are kernels without IPv6.
    if !ip("-6 address add 2600:1:2:3::1/64 dev lo") {
        return;
    }
    let (_world, mut guest) = World::with(network("allow", &[], &[]), real);
    for (last, code) in [([3, 0, 0, 0, 1], 1), ([3, 0, 0, 0, 2], 1), ([4, 0, 0, 0, 1], 0)] {
        let [network, rest @ ..] = last;
        let to = SocketAddr::from(([0x2600, 1, 2, network, rest[0], rest[1], rest[2], rest[3]], 80));
        let socket = guest.datagrams();
        guest.datagram(socket, to, b"x");
        assert_eq!(guest.unreachable(to.ip()), code, "{to}");
    }
}

#[test]
fn the_real_outside_knows_the_host_by_its_interfaces() {
    let namespace = std::thread::spawn(|| {
        // Threads made from here on are in the namespace, too, and it goes with the last of them.
        let own =
            unshare(CloneFlags::CLONE_NEWNET).is_ok() && ip("link set lo up") && ip("address add 9.9.9.1/32 dev lo");
        let host = if own { Ipv4Addr::new(9, 9, 9, 1) } else { Ipv4Addr::LOCALHOST };
        let server = listen(host);
        let exact = host.to_string();
        for (rules, expected) in [
            (network("allow", &[], &[]), Outcome::Refused),
            (network("allow", &["0.0.0.0/0", "9.9.9.0/24"], &[]), Outcome::Refused),
            (network("deny", &[&exact], &[]), Outcome::Connected),
            (network("allow", &[&exact], &[&exact]), Outcome::Refused),
        ] {
            let (_world, mut guest) = World::with(rules, real);
            assert_eq!(guest.connect(server).1, expected);
        }
        if own {
            // Of a network that is the host's by a route, no address is an interface's.
            assert!(ip("route add local 9.9.8.0/30 dev lo"));
            let routed = listen(Ipv4Addr::new(9, 9, 8, 2));
            let (_world, mut guest) = World::with(network("allow", &["9.9.8.0/24"], &[]), real);
            assert_eq!(guest.connect(routed).1, Outcome::Refused);
        }
        let loopback = listen(Ipv4Addr::LOCALHOST);
        let (_world, mut guest) = World::with(network("allow", &[], &[]), real);
        for to in [loopback, SocketAddrV4::new(GATEWAY, loopback.port()), server] {
            assert_eq!(guest.connect(to).1, Outcome::Refused, "{to}");
            guest.errors.clear();
            let socket = guest.datagrams();
            guest.datagram(socket, to, b"x");
            assert_eq!(guest.unreachable(*to.ip()), 13, "{to}");
        }
        if own {
            pings_go_over_a_socket_of_the_kernel(host);
            neighbours_of_the_host_are_refused();
            let (_world, mut guest) = World::with(network("allow", &[], &[]), real);
            let nowhere = SocketAddrV4::new(Ipv4Addr::new(8, 8, 8, 8), 53);
            assert_eq!(guest.connect(nowhere).1, Outcome::Refused);
            assert_eq!(guest.unreachable(*nowhere.ip()), 0, "a namespace without a way out");
            let nowhere = SocketAddr::from(([0x2600, 0, 0, 0, 0, 0, 0, 9], 53));
            assert_eq!(guest.connect(nowhere).1, Outcome::Refused);
            // Where a host has no IPv6 at all, its kernel says so by another error.
            assert!([0, 3].contains(&guest.unreachable(nowhere.ip())), "at once");
        }
    });
    namespace.join().unwrap();
}
