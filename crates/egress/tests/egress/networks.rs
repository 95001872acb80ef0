//! Machines of a network: their programs, its switch, and guests with stacks of their own, all of which are real.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::{GUEST, RESOLVER};
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use smoltcp::iface::SocketHandle;
use smoltcp::wire::{IpProtocol, Ipv4Packet, UdpPacket};

use crate::beside::{Beside, PATIENCE};
use crate::guest::{Guest, Outcome, packet};
use crate::switch::Switch;
use crate::world::network;

/// A machine that reaches nothing outside.
pub struct Machine {
    pub beside: Beside,
    pub guest: Guest,
}

/// A network with a machine for each name.
pub fn joined<const N: usize>(names: [&str; N]) -> (Switch, [Machine; N]) {
    let mut switch = Switch::of(&names);
    let machines = names.map(|name| {
        let mut machine = machine();
        switch.link(&mut machine.beside, name);
        machine
    });
    (switch, machines)
}

pub fn machine() -> Machine {
    let (beside, guest) = Beside::linked(&NetworkPolicy::clone(&network("deny", &[], &[])));
    Machine { beside, guest }
}

/// Has guests live until something is so.
pub fn until<T>(what: &str, guests: &mut [&mut Guest], mut so: impl FnMut(&mut [&mut Guest]) -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for guest in &mut *guests {
            guest.step(Duration::from_millis(1));
        }
        if let Some(result) = so(guests) {
            return result;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
    }
}

/// A connection from one guest to another, and both of its ends.
pub fn connect(
    from: &mut Guest,
    to: &mut Guest,
    address: impl Into<IpAddr>,
    port: u16,
) -> (SocketHandle, SocketHandle) {
    let listening = to.listen(port);
    let calling = from.dial(SocketAddr::new(address.into(), port));
    until("a connection", &mut [from, to], |guests| {
        let [from, to] = guests else { return None };
        (from.outcome(calling)? == Outcome::Connected && to.tcp(listening).may_send()).then_some(())
    });
    (calling, listening)
}

/// Sends bytes over a connection, and waits until they are there.
pub fn carry(from: &mut Guest, sends: SocketHandle, to: &mut Guest, takes: SocketHandle, bytes: &[u8]) {
    let (mut rest, mut got) = (bytes, Vec::new());
    until("bytes", &mut [from, to], |guests| {
        let [from, to] = guests else { return None };
        if !rest.is_empty() && from.tcp(sends).can_send() {
            rest = &rest[from.tcp(sends).send_slice(rest).unwrap()..];
        }
        to.take(takes, &mut got);
        (got.len() >= bytes.len()).then_some(())
    });
    assert!(got == bytes, "they are what was sent");
}

fn datagram(from: u16, to: (Ipv4Addr, u16), data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + data.len()];
    let mut udp = UdpPacket::new_unchecked(&mut bytes);
    udp.set_src_port(from);
    udp.set_dst_port(to.1);
    udp.set_len(u16::try_from(8 + data.len()).unwrap());
    udp.payload_mut().copy_from_slice(data);
    udp.fill_checksum(&GUEST.into(), &to.0.into());
    packet(IpProtocol::Udp, to.0, &bytes)
}

/// The code of an answer, and what it says.
pub fn resolve(guest: &mut Guest, at: impl Into<IpAddr>, name: &str, kind: RecordType) -> (ResponseCode, Vec<String>) {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    let socket = guest.datagrams();
    guest.datagram(socket, SocketAddr::new(at.into(), 53), &query.to_vec().unwrap());
    let answer = Message::from_vec(&guest.receive_datagram(socket)).unwrap();
    assert_eq!((answer.metadata.id, &answer.queries), (query.metadata.id, &query.queries));
    (answer.metadata.response_code, answer.answers.iter().map(|record| record.data.to_string()).collect())
}

#[test]
fn machines_reach_each_other() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let (a, b) = (switch.address("web"), switch.address("db"));
    let (calling, listening) = connect(&mut web.guest, &mut db.guest, b, 5432);
    let remote = db.guest.tcp(listening).remote_endpoint().unwrap();
    let local = db.guest.tcp(listening).local_endpoint().unwrap();
    assert_eq!((remote.addr, local.addr), (a.into(), GUEST.into()), "each has its usual address, the other its own");
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    carry(&mut web.guest, calling, &mut db.guest, listening, &bytes);
    carry(&mut db.guest, listening, &mut web.guest, calling, &bytes);
    // Pings, and datagrams in pieces.
    let ping = [&[8, 0, 0, 0, 0, 7, 0, 9][..], b"data"].concat();
    web.guest.raw(&packet(IpProtocol::Icmp, b, &with_checksum(ping)));
    let answer = until("an answer", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].pongs.pop_front());
    assert_eq!(answer, (IpAddr::V4(b), 7, 9, b"data".to_vec()));
    let (one, other) = (web.guest.datagrams_at(1000), db.guest.datagrams_at(2000));
    for size in [0, 1, 1472, 1473, 3000] {
        web.guest.datagram(one, SocketAddrV4::new(b, 2000), &vec![7; size]);
        let (got, from) = until("a datagram", &mut [&mut web.guest, &mut db.guest], |guests| {
            let (bytes, about) = guests[1].udp(other).recv().ok()?;
            Some((bytes.to_vec(), SocketAddr::from(about.endpoint)))
        });
        assert!(got == vec![7; size] && from == SocketAddr::from((a, 1000)), "{size}: {from}");
    }
    // Nobody listens there: the other guest says so.
    let refused = web.guest.dial(SocketAddrV4::new(b, 9));
    let outcome = until("a refusal", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].outcome(refused));
    assert_eq!(outcome, Outcome::Refused);
    web.guest.datagram(one, SocketAddrV4::new(b, 9), b"x");
    let error = until("an error", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].errors.pop());
    assert_eq!(error, (3, IpAddr::V4(b)));
}

fn with_checksum(mut message: Vec<u8>) -> Vec<u8> {
    smoltcp::wire::Icmpv4Packet::new_unchecked(&mut message[..]).fill_checksum();
    message
}

#[test]
fn a_machine_reaches_itself_by_its_address() {
    let (switch, [mut web]) = joined(["web"]);
    let own = switch.address("web");
    let listening = web.guest.listen(80);
    let calling = web.guest.connected(SocketAddrV4::new(own, 80));
    web.guest.send(calling, b"to myself");
    assert_eq!(web.guest.receive(listening, 9), b"to myself");
    assert_eq!(web.guest.tcp(listening).remote_endpoint().unwrap().addr, own.into());
}

#[test]
fn members_are_found_by_name_whatever_the_rules_are() {
    let (switch, [mut web, _db]) = joined(["web", "db"]);
    let (guest, b) = (&mut web.guest, switch.address("db").to_string());
    for name in ["db.", "DB.internal.", "db.front.internal."] {
        assert_eq!(resolve(guest, RESOLVER, name, RecordType::A), (ResponseCode::NoError, vec![b.clone()]), "{name}");
    }
    assert_eq!(resolve(guest, RESOLVER, "db.", RecordType::AAAA), (ResponseCode::NoError, vec![]));
    let name = (ResponseCode::NoError, vec!["db.front.internal.".to_owned()]);
    assert_eq!(resolve(guest, RESOLVER, "3.0.128.10.in-addr.arpa.", RecordType::PTR), name);
    // What no network knows is judged by the rules, which let nothing out here.
    for name in
        ["nobody.", "nobody.internal.", "db.example.org.", "9.0.128.10.in-addr.arpa.", "1.2.0.192.in-addr.arpa."]
    {
        assert_eq!(resolve(guest, RESOLVER, name, RecordType::A), (ResponseCode::Refused, vec![]), "{name}");
    }
    // At the network's own resolver it is told who there is.
    let resolver = Ipv4Addr::new(10, 128, 0, 1);
    assert_eq!(resolve(guest, resolver, "db.", RecordType::A), (ResponseCode::NoError, vec![b]));
    assert_eq!(resolve(guest, resolver, "nobody.", RecordType::A), (ResponseCode::NXDomain, vec![]));
}

#[test]
fn machines_of_other_networks_and_strangers_reach_nobody() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address("db");
    let mut other = Switch::at([10, 129, 0, 0], &["web"]);
    let (mut foreign, mut stranger) = (machine(), machine());
    other.link(&mut foreign.beside, "web");
    db.guest.listen(80);
    let mut dials = Vec::new();
    for guest in [&mut foreign.guest, &mut stranger.guest] {
        dials.push(guest.dial(SocketAddrV4::new(b, 80)));
    }
    // They are told at once, as of whatever rules do not let out.
    let guests = &mut [&mut foreign.guest, &mut stranger.guest, &mut db.guest];
    let outcomes =
        until("refusals", guests, |guests| Some([guests[0].outcome(dials[0])?, guests[1].outcome(dials[1])?]));
    assert_eq!(outcomes, [Outcome::Refused; 2]);
    for guest in [&mut foreign.guest, &mut stranger.guest] {
        assert_eq!(resolve(guest, RESOLVER, "db.", RecordType::A), (ResponseCode::Refused, vec![]));
    }
    // Who has left is a stranger.
    let network = switch.network;
    web.beside.control(async |control| control.leave(network).await).unwrap();
    assert_eq!(web.guest.connect(SocketAddrV4::new(b, 80)).1, Outcome::Refused);
    assert!(db.guest.calls.is_empty(), "{:?}", db.guest.calls);
}

#[test]
fn what_is_forged_or_to_everybody_arrives_nowhere() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address("db");
    let taking = db.guest.datagrams_at(2000);
    let forged = |from: [u8; 4], to: Ipv4Addr| {
        let mut frame = datagram(1000, (to, 2000), b"forged");
        let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
        ip.set_src_addr(from.into());
        ip.fill_checksum();
        let mut udp = UdpPacket::new_unchecked(&mut frame[34..]);
        udp.fill_checksum(&Ipv4Addr::from(from).into(), &to.into());
        frame
    };
    for from in [[10, 128, 0, 2], [10, 128, 0, 3], [10, 128, 0, 1], [10, 0, 2, 2], [10, 0, 2, 16], [8, 8, 8, 8]] {
        web.guest.raw(&forged(from, b));
    }
    for to in [[10, 128, 0, 255], [10, 128, 0, 0], [255, 255, 255, 255], [224, 0, 0, 1], [10, 128, 0, 9]] {
        web.guest.raw(&datagram(1000, (to.into(), 2000), b"to many"));
    }
    web.guest.raw(&datagram(0, (b, 2000), b"of nobody"));
    web.guest.raw(&datagram(1000, (b, 2000), b"of web"));
    // What is sent by one link arrives in order: what came first would be here by now.
    let got = until("a datagram", &mut [&mut web.guest, &mut db.guest], |guests| {
        guests[1].udp(taking).recv().ok().map(|(bytes, _)| bytes.to_vec())
    });
    assert_eq!(got, b"of web");
}

#[test]
fn a_guest_that_takes_nothing_holds_nobody_up() {
    let (switch, [mut web, mut db, slow]) = joined(["web", "db", "slow"]);
    let full = vec![7; 1400];
    for _ in 0..3000 {
        web.guest.raw(&datagram(1000, (switch.address("slow"), 2000), &full));
    }
    let (calling, listening) = connect(&mut web.guest, &mut db.guest, switch.address("db"), 80);
    carry(&mut web.guest, calling, &mut db.guest, listening, &vec![3; 500_000]);
    drop(slow);
}

#[test]
fn connections_go_on_when_the_service_or_the_switch_ends() {
    let (mut switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address("db");
    let (calling, listening) = connect(&mut web.guest, &mut db.guest, b, 80);
    carry(&mut web.guest, calling, &mut db.guest, listening, b"before");
    for machine in [&mut web, &mut db] {
        machine.beside.another_service();
    }
    switch.control = None;
    carry(&mut web.guest, calling, &mut db.guest, listening, b"without a service");
    switch.kill();
    let linked = |machine: &mut Machine| {
        let status = machine.beside.control(async |control| control.status().await).unwrap();
        status.networks.iter().map(|network| (network.address, network.is_linked)).collect::<Vec<_>>()
    };
    for (machine, name) in [(&mut web, "web"), (&mut db, "db")] {
        let address = switch.address(name);
        crate::beside::eventually("the end of the link", || (linked(machine) == [(address, false)]).then_some(()));
    }
    // To be told that one belongs to it brings no link, nor ends one.
    switch.announce(&mut web.beside, "web");
    assert_eq!(linked(&mut web), [(switch.address("web"), false)]);
    // Nothing of the network goes elsewhere meanwhile.
    web.guest.raw(&datagram(1000, (b, 2000), b"lost"));
    web.guest.assert_alive();
    switch.start();
    switch.link(&mut web.beside, "web");
    switch.link(&mut db.beside, "db");
    switch.announce(&mut web.beside, "web");
    carry(&mut db.guest, listening, &mut web.guest, calling, b"by another switch");
    assert_eq!(linked(&mut web), [(switch.address("web"), true)]);
}

#[test]
fn a_machine_belongs_where_addresses_are_not_its_own() {
    let mut machine = machine();
    let network = berth_domain::ids::NetworkId(uuid::Uuid::from_u128(9));
    let mut join = |network, cidr: &str, own: [u8; 4]| {
        let (link, _other) = berth_egress::program::pair().unwrap();
        let at = (cidr.parse().unwrap(), own.into());
        machine
            .beside
            .control(async |control| control.join(network, at, Some(&link)).await)
            .err()
            .map(|e| e.to_string())
    };
    for (cidr, own) in [("10.0.0.0/16", [10, 0, 9, 9]), ("10.0.2.0/28", [10, 0, 2, 9]), ("10.0.2.0/24", [10, 0, 2, 9])]
    {
        assert!(join(network, cidr, own).unwrap().contains("overlaps"), "{cidr}");
    }
    for own in [[10, 128, 0, 0], [10, 128, 0, 1], [10, 128, 0, 255], [10, 128, 1, 2]] {
        assert!(join(network, "10.128.0.0/24", own).unwrap().contains("nobody's"), "{own:?}");
    }
    for (cidr, own) in
        [("10.0.1.0/24", [10, 0, 1, 2]), ("10.0.3.0/24", [10, 0, 3, 254]), ("10.128.0.0/16", [10, 128, 0, 2])]
    {
        assert_eq!(join(network, cidr, own), None, "{cidr}");
    }
    let another = berth_domain::ids::NetworkId(uuid::Uuid::from_u128(10));
    assert!(join(another, "10.128.9.0/24", [10, 128, 9, 2]).unwrap().contains("overlaps"));
    assert_eq!(join(another, "10.129.0.0/24", [10, 129, 0, 2]), None);
}

#[test]
fn names_that_may_be_of_a_network_are_not_asked_for_outside_while_its_switch_is_silent() {
    let (mut switch, [mut web, _db]) = joined(["web", "db"]);
    let reverse = "2.0.128.10.in-addr.arpa.";
    assert_eq!(resolve(&mut web.guest, RESOLVER, "db.internal.", RecordType::A).0, ResponseCode::NoError);
    switch.kill();
    for (name, kind) in [("db.internal.", RecordType::A), ("db.", RecordType::A), (reverse, RecordType::PTR)] {
        let (code, records) = resolve(&mut web.guest, RESOLVER, name, kind);
        // What the rules are asked for, who deny all, would be refused.
        assert_eq!((code, records), (ResponseCode::ServFail, vec![]), "{name}");
    }
    assert_eq!(resolve(&mut web.guest, RESOLVER, "db.test.", RecordType::A).0, ResponseCode::Refused);
    switch.start();
    switch.link(&mut web.beside, "web");
    assert_eq!(resolve(&mut web.guest, RESOLVER, "db.internal.", RecordType::A).0, ResponseCode::NoError);
}
