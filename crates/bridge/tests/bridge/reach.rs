//! What a guest reaches, and who reaches it.

use std::net::IpAddr;

use berth_bridge::Settings;
use serde_json::json;

use crate::packets::{Answered, Outcome, Refused, Silent, at, carries, dial, listen, ping, serve, tcp, udp};
use crate::place::{ip, nft, set};
use crate::world::{HOST, HOST6, LAN, NEAR6, OUTSIDE, OUTSIDE6, World};

/// Tries all three protocols from a place.
fn tries(place: &crate::place::Place, to: &'static str, port: u16, expected: [Outcome; 3]) {
    let got = place.run(move || {
        let ip: IpAddr = to.parse().unwrap();
        [tcp(at(to, port), expected[0]), udp(at(to, port), expected[1]), ping(ip, expected[2])]
    });
    assert_eq!(got, expected, "{to}");
}

#[test]
fn a_guest_reaches_the_outside_world() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    let guest = world.guest(7, json!([]), &[]);
    tries(&guest.place, OUTSIDE, 80, [Answered; 3]);
    tries(&guest.place, OUTSIDE6, 80, [Answered; 3]);
    let came_from = guest.place.run(|| [OUTSIDE, OUTSIDE6].map(|to| dial(at(to, 80), true).unwrap().1));
    assert_eq!(came_from, [HOST, HOST6], "as the host");
}

#[test]
fn a_guest_reaches_nothing_of_the_host_and_nothing_private() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    listen(80);
    // Ports of containers: another's rule leads from an address of the host.
    ip("address add 7.7.7.7/32 dev lo");
    nft(
        "table ip others { chain c { type nat hook prerouting priority -101; ip daddr 6.6.6.6 tcp dport 80 dnat to 8.8.8.8; }; }",
    );
    let guest = world.guest(7, json!([]), &[]);
    for to in [HOST, "192.168.7.1", "7.7.7.7", LAN, "169.254.169.254", "172.16.5.5", HOST6, NEAR6, "fd99::8"] {
        tries(&guest.place, to, 80, [Refused; 3]);
    }
    // The gateway answers echo, and nothing else.
    tries(&guest.place, "10.127.0.1", 80, [Refused, Refused, Answered]);
    tries(&guest.place, "fd62:6572:7469::1", 80, [Refused, Refused, Answered]);
    assert_ne!(guest.place.run(|| tcp(at("6.6.6.6", 80), Silent)), Answered, "where another's rule leads elsewhere");
    assert_eq!(guest.place.run(|| tcp(at(OUTSIDE, 80), Answered)), Answered, "the same guest is not cut off");
    assert_ne!(
        guest.place.run(|| {
            ip("route add 127.0.0.0/8 via 10.127.0.1 table 7");
            ip("rule add to 127.0.0.1 lookup 7 priority 0");
            set("ipv4/conf/eth0/route_localnet", "1");
            set("ipv4/conf/lo/route_localnet", "1");
            tcp(at("127.0.0.1", 80), Silent)
        }),
        Answered,
        "the host's loopback"
    );
}

#[test]
fn guests_do_not_reach_each_other_and_strangers_reach_none() {
    let Some(world) = World::new() else { return };
    let (one, other) = (world.guest(1, json!([]), &[]), world.guest(2, json!([]), &[]));
    serve(&other.place, 80);
    let to = other.machine.address;
    // On the link: nobody answers for it.
    assert_ne!(one.place.run(move || tcp((to, 80).into(), Silent)), Answered);
    // By the gateway, whose link address is no secret, and by the other's own, which may be guessed.
    for mac in ["52:54:00:62:00:00", "52:54:00:62:00:02"] {
        one.place.ip(&format!("neighbour replace {to} lladdr {mac} dev eth0"));
        assert_ne!(one.place.run(move || tcp((to, 80).into(), Silent)), Answered, "{mac}");
        assert_ne!(one.place.run(move || udp((to, 80).into(), Silent)), Answered, "{mac}");
    }
    let (v4, v6) = (other.machine.address, other.machine.address6.unwrap());
    for to in [IpAddr::V4(v4), IpAddr::V6(v6)] {
        let stranger =
            world.internet.run(move || [tcp((to, 80).into(), Silent), udp((to, 80).into(), Silent), ping(to, Silent)]);
        assert!(!stranger.contains(&Answered), "a stranger who knows the way to {to}: {stranger:?}");
    }
    // The host itself: no port leads there.
    assert_eq!(tcp((v4, 80).into(), Refused), Refused);
    let here = world.internet.run(|| tcp(at("8.8.8.8", 1), Refused));
    assert_eq!(here, Refused);
}

#[test]
fn bridged_packets_that_pass_rules_of_ip_come_out_the_same() {
    let Some(world) = World::new() else { return };
    for family in ["iptables", "ip6tables", "arptables"] {
        // Only where the kernel has that.
        if std::fs::exists(format!("/proc/sys/net/bridge/bridge-nf-call-{family}")).unwrap() {
            set(&format!("bridge/bridge-nf-call-{family}"), "1");
        }
    }
    serve(&world.internet, 80);
    let guest = world.guest(7, json!([]), &[("tcp/9.9.9.1:2222", 22)]);
    serve(&guest.place, 22);
    tries(&guest.place, OUTSIDE, 80, [Answered; 3]);
    tries(&guest.place, OUTSIDE6, 80, [Answered; 3]);
    tries(&guest.place, LAN, 80, [Refused; 3]);
    assert_eq!(world.internet.run(|| dial(at(HOST, 2222), true).unwrap().1), "9.9.9.9");
}

#[test]
fn large_packets_pass() {
    let Some(world) = World::new() else { return };
    serve(&world.internet, 80);
    let guest = world.guest(7, json!([]), &[]);
    // A way with smaller packets than the guest's link.
    ip("link set up0 mtu 1300");
    world.internet.ip("link set up1 mtu 1300");
    let echoed = guest.place.run(|| {
        use std::io::{Read, Write};
        let (mut stream, _) = dial(at(OUTSIDE, 80), true).unwrap();
        let mut writer = stream.try_clone().unwrap();
        std::thread::spawn(move || writer.write_all(&vec![7; 300_000]).unwrap());
        let mut got = vec![0; 300_000];
        stream.read_exact(&mut got).map(|()| got.iter().all(|byte| *byte == 7))
    });
    assert!(echoed.unwrap());
}

#[test]
fn a_machine_has_so_many_connections_and_leaves_others_theirs() {
    const MOST: u32 = 5;
    let Some(world) = World::with(Settings { connections: MOST, ..Settings::default() }) else { return };
    serve(&world.internet, 80);
    let ports = [("tcp/9.9.9.1:2222", 22)];
    let (one, other) = (world.guest(7, json!([]), &ports), world.guest(8, json!([]), &[]));
    serve(&one.place, 22);
    let dial_all = |to| (0..MOST).map(|_| dial(to, true).unwrap().0).collect::<Vec<_>>();
    let mut begun = one.place.run(move || dial_all(at(OUTSIDE, 80)));
    assert_eq!(one.place.run(|| [tcp(at(OUTSIDE, 80), Refused), udp(at(OUTSIDE, 80), Refused)]), [Refused; 2]);
    assert_eq!(one.place.run(|| tcp(at(OUTSIDE6, 80), Refused)), Refused, "of both families");
    let got = world.internet.run(move || dial_all(at(HOST, 2222)));
    assert_eq!(world.internet.run(|| tcp(at(HOST, 2222), Refused)), Refused);
    // Other rules do not make room for more.
    let deny25 = json!([{"direction": "out", "protocol": "tcp", "ports": [25], "action": "deny"}]);
    world.set(&world.machine(7, deny25, &ports));
    assert_eq!(one.place.run(|| tcp(at(OUTSIDE, 80), Refused)), Refused);
    assert!(begun.iter_mut().all(|stream| carries(stream, true)), "those that it has go on");
    assert_eq!(other.place.run(|| tcp(at(OUTSIDE, 80), Answered)), Answered);
    drop((begun, got));
    let since = std::time::Instant::now();
    while one.place.run(|| tcp(at(OUTSIDE, 80), Answered)) != Answered {
        assert!(since.elapsed() < std::time::Duration::from_secs(20), "those that ended are not counted");
    }
}
