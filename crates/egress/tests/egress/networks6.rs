//! Machines of a network that has IPv6 addresses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use berth_domain::firewall::SetRules;
use berth_domain::ids::NetworkId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::network::At;
use berth_egress::{GATEWAY6, RESOLVER, RESOLVER6, ROUTER6};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use serde_json::{Value, json};
use smoltcp::wire::{Icmpv6Packet, IpProtocol, Ipv6Packet, UdpPacket};

use crate::beside::Beside;
use crate::guest::{GUEST6, Guest, Outcome, packet6};
use crate::networks::{Machine, carry, connect, machine, resolve, until};
use crate::switch::Switch;
use crate::world::network;

const CIDR6: &str = "fd00:20::/64";

/// A network with a machine for each name.
fn joined<const N: usize>(names: [&str; N]) -> (Switch, [Machine; N]) {
    let mut switch = Switch::with([10, 128, 0, 0], Some(CIDR6), &names);
    let machines = names.map(|name| {
        let mut machine = machine();
        switch.link(&mut machine.beside, name);
        machine
    });
    (switch, machines)
}

/// A message of ICMPv6, with its checksum as from the guest.
fn icmp(to: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let mut bytes = message.to_vec();
    Icmpv6Packet::new_unchecked(&mut bytes[..]).fill_checksum(&GUEST6, &to);
    packet6(IpProtocol::Icmpv6, to, &bytes)
}

/// A ping, or another message that looks like one.
fn ping(to: Ipv6Addr, kind: u8) -> Vec<u8> {
    icmp(to, &[&[kind, 0, 0, 0, 0, 7, 0, 9][..], b"data"].concat())
}

/// A datagram from an address that need not be the guest's.
fn datagram(from: (Ipv6Addr, u16), to: (Ipv6Addr, u16), data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + data.len()];
    let mut udp = UdpPacket::new_unchecked(&mut bytes);
    udp.set_src_port(from.1);
    udp.set_dst_port(to.1);
    udp.set_len(u16::try_from(8 + data.len()).unwrap());
    udp.payload_mut().copy_from_slice(data);
    udp.fill_checksum(&from.0.into(), &to.0.into());
    let mut frame = packet6(IpProtocol::Udp, to.0, &bytes);
    Ipv6Packet::new_unchecked(&mut frame[14..]).set_src_addr(from.0);
    frame
}

#[test]
fn machines_reach_each_other() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let (a, b) = (switch.address6("web"), switch.address6("db"));
    let (calling, listening) = connect(&mut web.guest, &mut db.guest, b, 5432);
    let remote = db.guest.tcp(listening).remote_endpoint().unwrap();
    let local = db.guest.tcp(listening).local_endpoint().unwrap();
    assert_eq!((remote.addr, local.addr), (a.into(), GUEST6.into()), "each has its usual address, the other its own");
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    carry(&mut web.guest, calling, &mut db.guest, listening, &bytes);
    carry(&mut db.guest, listening, &mut web.guest, calling, &bytes);
    web.guest.raw(&ping(b, 128));
    let answer = until("an answer", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].pongs.pop_front());
    assert_eq!(answer, (IpAddr::V6(b), 7, 9, b"data".to_vec()));
    let (one, other) = (web.guest.datagrams_at(1000), db.guest.datagrams_at(2000));
    for size in [0, 1, 1452] {
        web.guest.datagram(one, (IpAddr::V6(b), 2000), &vec![7; size]);
        let (got, from) = until("a datagram", &mut [&mut web.guest, &mut db.guest], |guests| {
            let (bytes, about) = guests[1].udp(other).recv().ok()?;
            Some((bytes.to_vec(), SocketAddr::from(about.endpoint)))
        });
        assert!(got == vec![7; size] && from == SocketAddr::from((a, 1000)), "{size}: {from}");
    }
    // Nobody listens there: the other guest says so.
    let refused = web.guest.dial((IpAddr::V6(b), 9));
    let outcome = until("a refusal", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].outcome(refused));
    assert_eq!(outcome, Outcome::Refused);
    web.guest.datagram(one, (IpAddr::V6(b), 9), b"x");
    let error = until("an error", &mut [&mut web.guest, &mut db.guest], |guests| guests[0].errors.pop());
    assert_eq!(error, (4, IpAddr::V6(b)));
}

#[test]
fn pieces_and_large_datagrams_arrive_in_pieces() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address6("db");
    let whole = datagram((GUEST6, 1000), (b, 2000), &[7; 3000]);
    let frames = db.guest.frames;
    web.guest.raw(&whole);
    until("three pieces", &mut [&mut web.guest, &mut db.guest], |guests| {
        (guests[1].frames >= frames + 3).then_some(())
    });
    // A piece is passed on as it is; what is behind the first one follows whoever sent that.
    let frames = db.guest.frames;
    for (range, offset_and_more) in [(0..1200, 1_u16), (1200..3008, 1200)] {
        let head = [&[17, 0][..], &offset_and_more.to_be_bytes(), &[0, 0, 0, 9]].concat();
        web.guest.raw(&packet6(IpProtocol::Ipv6Frag, b, &[&head, &whole[54..][range]].concat()));
    }
    until("three more", &mut [&mut web.guest, &mut db.guest], |guests| (guests[1].frames >= frames + 3).then_some(()));
}

#[test]
fn members_are_found_by_name_whatever_the_rules_are() {
    let (switch, [mut web, _db]) = joined(["web", "db"]);
    let (guest, b) = (&mut web.guest, switch.address6("db").to_string());
    let resolver: Ipv6Addr = "fd00:20::1".parse().unwrap();
    for at in [IpAddr::from(RESOLVER), RESOLVER6.into(), resolver.into()] {
        for name in ["db.", "DB.internal.", "db.front.internal."] {
            assert_eq!(resolve(guest, at, name, RecordType::AAAA), (ResponseCode::NoError, vec![b.clone()]), "{name}");
        }
        let digits = |address: &str| address.chars().rev().map(String::from).collect::<Vec<_>>().join(".");
        let reverse = format!("{}.ip6.arpa.", digits("fd000020000000000000000000000003"));
        let name = (ResponseCode::NoError, vec!["db.front.internal.".to_owned()]);
        assert_eq!(resolve(guest, at, &reverse, RecordType::PTR), name, "{at}");
    }
}

#[test]
fn what_is_forged_or_to_everybody_arrives_nowhere() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address6("db");
    let taking = db.guest.datagrams_at(2000);
    // It is known where it is, and that it has its address, so that nobody asks.
    connect(&mut db.guest, &mut web.guest, switch.address6("web"), 7);
    let frames = db.guest.frames;
    let six = |text: &str| text.parse::<Ipv6Addr>().unwrap();
    for from in ["fd00:20::2", "fd00:20::3", "fd00:20::1", "fd62:6572:7468::2", "fd62:6572:7468::16", "fe80::15", "::"]
    {
        web.guest.raw(&datagram((six(from), 1000), (b, 2000), b"forged"));
    }
    for to in ["fd00:20::", "fd00:20::9", "ff02::1", "ff02::2"] {
        web.guest.raw(&datagram((GUEST6, 1000), (six(to), 2000), b"to many"));
    }
    // What is said of routers, neighbours and other ways is for one link.
    for kind in [130, 131, 132, 133, 134, 135, 136, 137, 143, 255] {
        web.guest.raw(&ping(b, kind));
    }
    // Headers that say by which way a packet goes.
    for next in [0, 43, 60, 59, 135] {
        let mut frame = packet6(IpProtocol::from(next), b, &[17, 0, 0, 0, 0, 0, 0, 0, 3, 232, 7, 208, 0, 8, 0, 0]);
        frame[20] = next;
        web.guest.raw(&frame);
    }
    web.guest.raw(&datagram((GUEST6, 0), (b, 2000), b"of nobody"));
    web.guest.raw(&datagram((GUEST6, 1000), (b, 2000), b"of web"));
    // What is sent by one link arrives in order: what came first would be here by now.
    let got = until("a datagram", &mut [&mut web.guest, &mut db.guest], |guests| {
        guests[1].udp(taking).recv().ok().map(|(bytes, _)| bytes.to_vec())
    });
    assert_eq!(got, b"of web");
    assert_eq!(db.guest.frames, frames + 1);
}

#[test]
fn strangers_and_other_addresses_of_the_guest_are_told_at_once() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address6("db");
    db.guest.listen(80);
    let mut stranger = machine();
    let to = (IpAddr::V6(b), 80);
    let dialed = stranger.guest.dial(to);
    let outcome = until("a refusal", &mut [&mut stranger.guest, &mut db.guest], |guests| guests[0].outcome(dialed));
    assert_eq!(outcome, Outcome::Refused);
    // An address that a guest made itself has none that it stands for, and does not go outside either.
    let own: Ipv6Addr = "fd62:6572:7468::1:16".parse().unwrap();
    web.guest.raw(&datagram((own, 1000), (b, 80), b"x"));
    assert_eq!(web.guest.unreachable(b), 1);
    // A network without such addresses is as if there were none.
    let mut plain = Switch::at([10, 129, 0, 0], &["web"]);
    let mut other = machine();
    plain.link(&mut other.beside, "web");
    assert_eq!(other.guest.connect(to).1, Outcome::Refused);
}

#[test]
fn a_guest_is_told_to_ask_for_its_address_and_gets_it() {
    let (_switch, [mut web]) = joined(["web"]);
    let guest = &mut web.guest;
    let client = guest.datagrams_at(546);
    let solicit = [&[1, 1, 2, 3][..], &[0, 1, 0, 2, 0, 9], &[0, 3, 0, 12, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    for at in ["ff02::1:2".parse().unwrap(), ROUTER6] {
        guest.datagram(client, (IpAddr::V6(at), 547), &solicit);
        let (answer, from) = guest.receive_datagram_from(client);
        assert_eq!((answer[..4].to_vec(), from), (vec![2, 1, 2, 3], SocketAddr::from((ROUTER6, 547))));
        assert!(answer.windows(16).any(|bytes| bytes == GUEST6.octets()), "{answer:?}");
    }
    // Nobody answers there what is no question of it.
    guest.raw(&datagram((GUEST6, 546), (GATEWAY6, 547), b"x"));
    guest.assert_alive();
}

#[test]
fn a_machine_belongs_where_ipv6_addresses_are_not_its_own() {
    let mut machine = machine();
    let mut join = |number: u128, cidr: &str, cidr6: &str| {
        let network = NetworkId(uuid::Uuid::from_u128(number));
        let cidr = cidr.parse().unwrap();
        let [a, b, c, _] = std::net::Ipv4Addr::octets(&ipnet::Ipv4Net::network(&cidr));
        let at = At { cidr, cidr6: Some(cidr6.parse().unwrap()), own: [a, b, c, 2].into() };
        let joined = machine.beside.control(async |control| control.join(network, at, None).await);
        joined.err().map(|error| error.to_string())
    };
    for cidr6 in ["fd62:6572:7468::/64", "fd62:6572:7468:9::/64", "fd00::/8", "fd00:20::/113"] {
        assert!(join(9, "10.128.0.0/16", cidr6).unwrap().contains("overlaps"), "{cidr6}");
    }
    for cidr6 in ["fd62:6572:7467::/48", "fd62:6572:7469::/48", "fd00:20::/112", "fd00:20::/64"] {
        assert_eq!(join(9, "10.128.0.0/16", cidr6), None, "{cidr6}");
    }
    assert!(join(10, "10.129.0.0/24", "fd00:20::/48").unwrap().contains("overlaps"));
    assert_eq!(join(10, "10.129.0.0/24", "fd00:21::/64"), None);
}

#[test]
fn who_has_no_ipv6_is_told_to_be_out_of_reach_until_it_is_heard_of() {
    let (switch, [mut web, mut db]) = joined(["web", "db"]);
    let b = switch.address6("db");
    let (one, other) = (web.guest.datagrams_at(1000), db.guest.datagrams_at(2000));
    db.guest.assert_alive();
    db.guest.deaf = true;
    let error = until("an error", &mut [&mut web.guest, &mut db.guest], |guests| {
        guests[0].datagram(one, (IpAddr::V6(b), 2000), b"x");
        guests[0].errors.pop()
    });
    assert_eq!(error, (3, IpAddr::V6(b)));
    web.guest.errors.clear();
    // Of IPv4 nothing is asked; what is there is reached.
    db.guest.deaf = false;
    let got = until("a datagram", &mut [&mut web.guest, &mut db.guest], |guests| {
        guests[0].datagram(one, (IpAddr::V6(b), 2000), b"y");
        guests[1].udp(other).recv().ok().map(|(bytes, _)| bytes.to_vec())
    });
    assert_eq!(got, b"y");
    connect(&mut web.guest, &mut db.guest, b, 80);
}

fn rules(rules: &Value) -> berth_domain::firewall::Rules {
    SetRules::try_from(&json!({ "rules": rules })).unwrap().rules
}

#[test]
fn rules_speak_of_ipv6_as_of_ipv4() {
    let (mut switch, [mut web, mut db, mut other]) = joined(["web", "db", "other"]);
    let (a, b) = (switch.address6("web"), switch.address6("db"));
    let (calling, listening) = connect(&mut web.guest, &mut db.guest, b, 80);
    // A guest answers no ping before it knows its gateway.
    connect(&mut other.guest, &mut db.guest, b, 81);
    // Whether a ping is answered: what goes by the same links behind it, and back, is there after it.
    let is_answered = |web: &mut Guest, db: &mut Guest| {
        web.raw(&ping(b, 128));
        carry(web, calling, db, listening, b"behind the ping");
        carry(db, listening, web, calling, b"and back");
        web.pongs.pop_front().is_some()
    };
    assert!(is_answered(&mut web.guest, &mut db.guest));
    // The machine's own: of everything that comes in, only web's connections to one port.
    let of_db = rules(&json!([
        {"direction": "in", "protocol": "tcp", "ports": [80], "source": format!("{a}/128"), "action": "allow"},
        {"direction": "in", "protocol": "any", "source": "fd00:20::/64", "action": "deny"},
    ]));
    db.beside.control(async |control| control.set_firewall(of_db).await).unwrap();
    assert!(!is_answered(&mut web.guest, &mut db.guest));
    connect(&mut web.guest, &mut db.guest, b, 80);
    let none = rules(&json!([]));
    db.beside.control(async |control| control.set_firewall(none).await).unwrap();
    // The network's: pings of one member.
    let of_network =
        rules(&json!([{"direction": "in", "protocol": "icmp", "source": a.to_string(), "action": "deny"}]));
    switch.control(async |control| control.set_firewall(of_network).await).unwrap();
    other.guest.raw(&ping(b, 128));
    let answer = until("an answer", &mut [&mut other.guest, &mut db.guest], |guests| guests[0].pongs.pop_front());
    assert_eq!(answer.0, IpAddr::V6(b));
    assert!(!is_answered(&mut web.guest, &mut db.guest));
}

#[test]
fn a_machine_that_belongs_to_no_such_network_makes_itself_addresses_as_ever() {
    let (_beside, mut guest) = Beside::linked(&NetworkPolicy::clone(&network("deny", &[], &[])));
    let own = guest.autoconfigure();
    assert_eq!(own.segments()[..4], GUEST6.segments()[..4]);
}
