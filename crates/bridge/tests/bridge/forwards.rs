//! Ports of the host that lead to guests.

use std::net::SocketAddr;

use serde_json::json;

use crate::packets::{Answered, Refused, at, carries, dial, serve, tcp, udp};
use crate::world::{HOST, HOST6, World};

#[test]
fn a_port_leads_to_its_guest_and_no_other_one_does() {
    let Some(world) = World::new() else { return };
    let ports = [("tcp/9.9.9.1:2222", 22), ("udp/9.9.9.1:5353", 53), ("tcp/[2600:1:2:3::1]:2222", 22)];
    let guest = world.guest(7, json!([]), &ports);
    let other = world.guest(8, json!([]), &[("tcp/9.9.9.1:2223", 22)]);
    serve(&guest.place, 22);
    serve(&guest.place, 53);
    serve(&other.place, 22);
    let came_from = world.internet.run(|| [HOST, HOST6].map(|to| dial(at(to, 2222), true).unwrap().1));
    assert_eq!(came_from, ["9.9.9.9", "2600:1:2:3::9"], "the guest sees who comes");
    assert_eq!(world.internet.run(|| udp(at(HOST, 5353), Answered)), Answered);
    assert_eq!(world.internet.run(|| tcp(at(HOST, 2223), Answered)), Answered, "the other guest's");
    for (to, port) in [(HOST, 22), (HOST, 5353), ("192.168.7.1", 2222), (HOST6, 22)] {
        assert_eq!(world.internet.run(move || tcp(at(to, port), Refused)), Refused, "{to} {port}");
    }
    assert_eq!(dial(at(HOST, 2222), true).unwrap().1, HOST, "this host goes the same way");
    // A guest does not come to another one by the host.
    assert_eq!(other.place.run(|| tcp(at(HOST, 2222), Refused)), Refused);
}

#[test]
fn ports_come_and_go_while_others_stay_open() {
    let Some(world) = World::new() else { return };
    let guest = world.guest(7, json!([]), &[("tcp/9.9.9.1:2222", 22), ("tcp/9.9.9.1:8080", 80)]);
    serve(&guest.place, 22);
    serve(&guest.place, 80);
    let mut open = world.internet.run(|| dial(at(HOST, 2222), true).unwrap().0);
    world.set(&world.machine(7, json!([]), &[("tcp/9.9.9.1:2222", 22), ("tcp/9.9.9.1:8081", 80)]));
    let (before, now): (SocketAddr, SocketAddr) = (at(HOST, 8080), at(HOST, 8081));
    assert_eq!(world.internet.run(move || [tcp(before, Refused), tcp(now, Answered)]), [Refused, Answered]);
    assert!(carries(&mut open, true));
    // A port leads somewhere else from one moment to the next.
    world.set(&world.machine(7, json!([]), &[("tcp/9.9.9.1:2222", 22), ("tcp/9.9.9.1:8081", 22)]));
    assert_eq!(world.internet.run(move || tcp(now, Answered)), Answered);
    world.block(world.bridge().remove(crate::world::id(7))).unwrap();
    assert_eq!(world.internet.run(move || tcp(now, Refused)), Refused);
    assert!(!carries(&mut open, false));
}
