//! Firewall rules: of a machine, at its own program, and of a network, at its switch.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::sync::Arc;

use berth_domain::firewall::{Rules, SetRules};
use berth_egress::network::Memberships;
use serde_json::{Value, json};
use smoltcp::iface::SocketHandle;
use smoltcp::wire::IpProtocol;

use crate::forwards::{PORT, client, end, forwarded};
use crate::guest::{Guest, Outcome, packet};
use crate::networks::{Machine, carry, connect, joined};
use crate::world::{SERVER, World, echo, network};

fn rules(rules: &Value) -> Rules {
    SetRules::try_from(&json!({ "rules": rules })).unwrap().rules
}

/// A world whose machine has rules, which may be changed.
fn world(list: &Value) -> (World, Guest, Arc<Memberships>) {
    let machine = Arc::<Memberships>::default();
    machine.set_rules(rules(list));
    let (world, guest) = World::with(network("allow", &[], &[]), |config| config.networks = Arc::clone(&machine));
    (world, guest, machine)
}

#[test]
fn what_a_guest_begins_outside_is_judged_by_protocol_port_and_address() {
    let (world, mut guest, _) = world(&json!([
        {"direction": "out", "protocol": "tcp", "ports": [7], "source": "8.8.4.0/24", "action": "allow"},
        {"direction": "out", "protocol": "udp", "ports": [9], "action": "allow"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ]));
    let (other, far) = (SocketAddrV4::new(*SERVER.ip(), 8), SocketAddrV4::new([9, 9, 9, 9].into(), 7));
    for address in [SERVER, other, far] {
        world.servers.tcp(address, echo());
    }
    let open = guest.connected(SERVER);
    guest.send(open, b"hello");
    assert_eq!(guest.receive(open, 5), b"hello");
    for address in [other, far] {
        assert_eq!(guest.connect(address).1, Outcome::Refused, "{address}");
    }
    let socket = guest.datagrams();
    world.servers.udp(far, crate::udp::echo());
    guest.datagram(socket, far, b"x");
    assert_eq!(guest.unreachable(far.ip().octets()), 13);
    let allowed = SocketAddrV4::new(*far.ip(), 9);
    world.servers.udp(allowed, crate::udp::echo());
    guest.datagram(socket, allowed, b"one");
    assert_eq!(guest.receive_datagram(socket), b"one");
    let asked = world.servers.asked();
    guest.raw(&packet(IpProtocol::Icmp, *far.ip(), &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]));
    assert_eq!(guest.connect(other).1, Outcome::Refused, "what was sent before was looked at");
    assert_eq!(world.servers.asked(), asked, "nothing of that went out");
}

#[test]
fn no_rule_opens_what_the_platform_refuses() {
    let (world, mut guest, _) = world(&json!([{"direction": "out", "protocol": "any", "action": "allow"}]));
    for address in [[10, 1, 2, 3], [127, 0, 0, 1], [169, 254, 169, 254], [8, 8, 8, 1], [10, 0, 2, 2]] {
        let address = SocketAddrV4::new(address.into(), 80);
        world.servers.tcp(address, echo());
        assert_eq!(guest.connect(address).1, Outcome::Refused, "{address}");
    }
    assert!(world.servers.asked().is_empty());
}

#[test]
fn a_change_ends_what_went_out_and_leaves_the_rest() {
    let (world, mut guest, machine) = world(&json!([]));
    let other = SocketAddrV4::new(Ipv4Addr::new(9, 9, 9, 9), 7);
    for address in [SERVER, other] {
        world.servers.tcp(address, echo());
    }
    let (ends, stays) = (guest.connected(SERVER), guest.connected(other));
    machine.set_rules(rules(&json!([
        {"direction": "out", "protocol": "tcp", "source": "8.8.4.4", "action": "deny"},
    ])));
    guest.reset(ends);
    guest.send(stays, b"still");
    assert_eq!(guest.receive(stays, 5), b"still");
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    machine.set_rules(Rules::default());
    guest.until("the new rules", |guest| (guest.connect(SERVER).1 == Outcome::Connected).then_some(()));
}

#[test]
fn who_comes_in_is_judged_by_port_and_address() {
    let machine = Arc::<Memberships>::default();
    let (_world, mut guest, address) = forwarded(|config| config.networks = Arc::clone(&machine));
    let handle = guest.listen(PORT);
    let first = client(address, end);
    guest.accepted(handle);
    // It goes on while the rules allow it, and ends with them.
    let from = |source: &str| json!([{"direction": "in", "protocol": "tcp", "ports": [PORT], "source": source, "action": "deny"}]);
    machine.set_rules(rules(&from("127.0.0.2")));
    guest.send(handle, b"still");
    let another = guest.listen(PORT);
    let second = client(address, end);
    guest.accepted(another);
    machine.set_rules(rules(&from("127.0.0.0/8")));
    assert!(guest.told(&first).is_err() && guest.told(&second).is_err());
    let refused = client(address, end);
    assert!(guest.told(&refused).is_err());
    machine.set_rules(rules(&json!([{"direction": "in", "protocol": "udp", "action": "deny"}])));
    let again = guest.listen(PORT);
    guest.until("the new rules", |guest| {
        drop(TcpStream::connect(address).unwrap());
        guest.tcp(again).remote_endpoint().map(drop)
    });
}

#[test]
fn who_is_outside_is_in_no_group_whatever_their_address() {
    // The network has addresses that others have outside, such as those of the host's own network.
    let told = |direction: &str, member: &str| -> Rules {
        serde_json::from_value(json!([
            {"direction": direction, "protocol": "any", "source": "label:role=web", "members": [member], "action": "allow"},
            {"direction": direction, "protocol": "any", "action": "deny"},
        ]))
        .unwrap()
    };
    let (world, mut guest, machine) = world(&json!([]));
    world.servers.tcp(SERVER, echo());
    guest.connected(SERVER);
    machine.set_rules(told("out", &SERVER.ip().to_string()));
    guest.until("the new rules", |guest| (guest.connect(SERVER).1 == Outcome::Refused).then_some(()));

    let machine = Arc::<Memberships>::default();
    let (_world, mut guest, address) = forwarded(|config| config.networks = Arc::clone(&machine));
    let handle = guest.listen(PORT);
    let caller = client(address, end);
    guest.accepted(handle);
    machine.set_rules(told("in", "127.0.0.1"));
    assert!(guest.told(&caller).is_err(), "it ends with the new rules");
    let refused = client(address, end);
    assert!(guest.told(&refused).is_err());
}

/// Whether a connection comes about before one that is allowed and began later.
fn reaches(from: &mut Machine, to: &mut Machine, at: SocketAddrV4, witness: (Ipv4Addr, u16)) -> bool {
    let calling = from.guest.dial(at);
    connect(&mut from.guest, &mut to.guest, witness.0, witness.1);
    from.guest.outcome(calling) == Some(Outcome::Connected)
}

fn says(machines: &mut [Machine; 2], (calling, listening): (SocketHandle, SocketHandle)) {
    let [web, db] = machines;
    carry(&mut web.guest, calling, &mut db.guest, listening, b"a question");
    carry(&mut db.guest, listening, &mut web.guest, calling, b"an answer");
}

#[test]
fn a_machines_rules_hold_in_its_networks() {
    let (switch, mut machines) = joined(["web", "db"]);
    let (a, b) = (switch.address("web"), switch.address("db"));
    // The database takes one port, and begins nothing.
    let list = rules(&json!([
        {"direction": "in", "protocol": "tcp", "ports": [5432], "source": a.to_string(), "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ]));
    let [web, db] = &mut machines;
    let before = connect(&mut web.guest, &mut db.guest, b, 22);
    db.beside.control(async |control| control.set_firewall(list).await).unwrap();
    let open = connect(&mut web.guest, &mut db.guest, b, 5432);
    db.guest.listen(80);
    assert!(!reaches(web, db, SocketAddrV4::new(b, 80), (b, 5432)));
    web.guest.listen(80);
    // What the database sent had its time before it answered what came after.
    let begun = db.guest.dial(SocketAddrV4::new(a, 80));
    connect(&mut web.guest, &mut db.guest, b, 5432);
    assert_ne!(db.guest.outcome(begun), Some(Outcome::Connected));
    says(&mut machines, open);
    // What was open before and is not allowed now carries nothing more.
    machines[0].guest.tcp(before.0).send_slice(b"lost").unwrap();
    says(&mut machines, open);
    assert!(!machines[1].guest.tcp(before.1).can_recv());
    machines[1].beside.control(async |control| control.set_firewall(Rules::default()).await).unwrap();
    let [web, db] = &mut machines;
    connect(&mut web.guest, &mut db.guest, b, 81);
}

#[test]
fn a_networks_rules_hold_between_all_its_members() {
    let (mut switch, mut machines) = joined(["web", "db"]);
    let b = switch.address("db");
    let list = rules(&json!([
        {"direction": "in", "protocol": "tcp", "ports": [5432], "action": "allow"},
        {"direction": "in", "protocol": "any", "source": "10.128.0.0/24", "action": "deny"},
    ]));
    switch.control(async |control| control.set_firewall(list).await).unwrap();
    let [web, db] = &mut machines;
    let open = connect(&mut web.guest, &mut db.guest, b, 5432);
    db.guest.listen(80);
    assert!(!reaches(web, db, SocketAddrV4::new(b, 80), (b, 5432)));
    says(&mut machines, open);
    // Who asks for a name is heard, whatever the rules are.
    switch.control(async |control| control.set_firewall(Rules::default()).await).unwrap();
    let [web, db] = &mut machines;
    connect(&mut web.guest, &mut db.guest, b, 81);
    says(&mut machines, open);
}

#[test]
fn datagrams_from_outside_are_judged_too() {
    let machine = Arc::<Memberships>::default();
    machine.set_rules(rules(&json!([{"direction": "in", "protocol": "udp", "ports": [PORT], "action": "deny"}])));
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.networks = Arc::clone(&machine));
    let entered = world.runtime.enter();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let socket = berth_egress::ForwardSocket::Udp(tokio::net::UdpSocket::from_std(socket).unwrap());
    drop(entered);
    world.forwards.send_replace(Arc::new(vec![Arc::new(berth_egress::Forward { guest_port: PORT, socket })]));
    let inside = guest.datagrams_at(PORT);
    let caller = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    caller.send_to(b"denied", address).unwrap();
    // A connection that is made afterwards tells that the datagram had its turn.
    world.servers.tcp(SERVER, echo());
    guest.connected(SERVER);
    machine.set_rules(Rules::default());
    guest.until("what is allowed", |guest| {
        caller.send_to(b"allowed", address).unwrap();
        guest.udp(inside).can_recv().then_some(())
    });
    assert_eq!(guest.receive_datagram(inside), b"allowed");
}
