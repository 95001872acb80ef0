//! The real outside: addresses of interfaces and routes of a network namespace of this test's own.
//!
//! Where the kernel lets nobody make one, the same is asked of this machine's loopback.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::Command;
use std::sync::Arc;

use berth_egress::{Config, RealOutside};
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
            let (_world, mut guest) = World::with(network("allow", &[], &[]), real);
            let nowhere = SocketAddrV4::new(Ipv4Addr::new(8, 8, 8, 8), 53);
            assert_eq!(guest.connect(nowhere).1, Outcome::Refused);
            assert_eq!(guest.unreachable(*nowhere.ip()), 0, "a namespace without a way out");
        }
    });
    namespace.join().unwrap();
}
