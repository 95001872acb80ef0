//! Names: which are looked up, and what they let through.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use berth_egress::network::Memberships;
use berth_egress::{RESOLVER, Resolvers};
use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::{Value, json};

use crate::guest::{Guest, Outcome};
use crate::world::{World, echo, network, v4};

const DNS: SocketAddrV4 = SocketAddrV4::new(RESOLVER, 53);

/// A resolver that knows a few names, and remembers what it was asked.
struct Resolver {
    address: SocketAddrV4,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Resolver {
    fn new(records: &[(&str, RData)]) -> Self {
        let records: HashMap<String, RData> = records.iter().map(|(n, data)| ((*n).to_owned(), data.clone())).collect();
        let (udp, tcp) = sockets();
        let address = v4(udp.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answer = {
            let asked = Arc::clone(&asked);
            Arc::new(move |query: &[u8]| {
                let query = Message::from_vec(query).unwrap();
                let name = query.queries[0].name.clone();
                asked.lock().unwrap().push(name.to_ascii());
                reply(&query, &records, name).to_vec().unwrap()
            })
        };
        let by_datagram = Arc::clone(&answer);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((count, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(&by_datagram(&buffer[..count]), from);
            }
        });
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let mut len = [0; 2];
                stream.read_exact(&mut len).unwrap();
                let mut query = vec![0; u16::from_be_bytes(len).into()];
                stream.read_exact(&mut query).unwrap();
                let answer = answer(&query);
                stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).unwrap();
                stream.write_all(&answer).unwrap();
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The same port for datagrams and connections.
fn sockets() -> (UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
            return (udp, tcp);
        }
    }
}

fn reply(query: &Message, records: &HashMap<String, RData>, mut name: Name) -> Message {
    let mut reply = Message::response(query.metadata.id, OpCode::Query);
    reply.add_query(query.queries[0].clone());
    while let Some(data) = records.get(&name.to_ascii()) {
        reply.add_answer(Record::from_rdata(name.clone(), 1, data.clone()));
        match data {
            RData::CNAME(target) => name = target.0.clone(),
            _ => return reply,
        }
    }
    reply.metadata.response_code = ResponseCode::NXDomain;
    reply
}

fn a(address: [u8; 4]) -> RData {
    RData::A(A(address.into()))
}

fn alias(name: &str) -> RData {
    RData::CNAME(CNAME(Name::from_ascii(name).unwrap()))
}

fn query(name: &str) -> Message {
    let mut query = Message::query();
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query
}

fn resolve(guest: &mut Guest, name: &str) -> Message {
    let query = query(name);
    let socket = guest.datagrams();
    guest.datagram(socket, DNS, &query.to_vec().unwrap());
    let answer = Message::from_vec(&guest.receive_datagram(socket)).unwrap();
    assert_eq!((answer.metadata.id, &answer.queries), (query.metadata.id, &query.queries));
    answer
}

fn code(guest: &mut Guest, name: &str) -> ResponseCode {
    resolve(guest, name).metadata.response_code
}

fn world(egress: &str, allow: &[&str], deny: &[&str], resolver: &Resolver) -> (World, Guest) {
    let resolvers = Resolvers::Fixed(vec![resolver.address.into()]);
    World::with(network(egress, allow, deny), |config| config.resolvers = resolvers)
}

fn at(address: [u8; 4]) -> SocketAddrV4 {
    SocketAddrV4::new(address.into(), 443)
}

#[test]
fn names_are_resolved_by_the_platform() {
    let resolver = Resolver::new(&[("a.test.", a([8, 1, 1, 1]))]);
    let (_world, mut guest) = world("allow", &[], &[], &resolver);
    let answer = resolve(&mut guest, "a.test.");
    assert_eq!(answer.answers[0].data, a([8, 1, 1, 1]));
    assert_eq!(code(&mut guest, "none.test."), ResponseCode::NXDomain);
    let odd = Name::from_labels([&b"x.a"[..], b"test"]).unwrap();
    assert_eq!(code(&mut guest, &odd.to_ascii()), ResponseCode::Refused);
    assert_eq!(resolver.asked(), ["a.test.", "none.test."]);
}

#[test]
fn names_are_resolved_over_connections() {
    let resolver = Resolver::new(&[("a.test.", a([8, 1, 1, 1]))]);
    let (_world, mut guest) = world("allow", &[], &["b.test"], &resolver);
    let handle = guest.connected(DNS);
    for (name, expected) in [("a.test.", ResponseCode::NoError), ("b.test.", ResponseCode::Refused)] {
        let query = query(name).to_vec().unwrap();
        let len = u16::try_from(query.len()).unwrap().to_be_bytes();
        guest.send(handle, &[&len[..], &query].concat());
        let mut got = Vec::new();
        let answer = guest.until("an answer", |guest| {
            guest.take(handle, &mut got);
            let (len, rest) = got.split_first_chunk::<2>()?;
            rest.get(..u16::from_be_bytes(*len).into()).map(|bytes| Message::from_vec(bytes).unwrap())
        });
        assert_eq!(answer.metadata.response_code, expected);
    }
    guest.tcp(handle).close();
    assert!(guest.receive_all(handle).is_empty());
    assert_eq!(guest.connect(SocketAddrV4::new(RESOLVER, 80)).1, Outcome::Refused);
}

#[test]
fn with_egress_deny_only_allowed_names_are_resolved_and_reached() {
    let resolver = Resolver::new(&[
        ("a.test.", a([8, 1, 1, 1])),
        ("x.b.test.", alias("cdn.other.")),
        ("cdn.other.", a([8, 1, 1, 2])),
        ("secret.a.test.", a([8, 1, 1, 3])),
    ]);
    let (world, mut guest) = world("deny", &["a.test", "*.b.test"], &["bad.b.test"], &resolver);
    for last in 1..=3 {
        world.servers.tcp(at([8, 1, 1, last]), echo());
    }
    assert_eq!(guest.connect(at([8, 1, 1, 1])).1, Outcome::Refused, "nobody asked yet");
    assert_eq!(code(&mut guest, "A.Test."), ResponseCode::NXDomain, "the resolver of the test minds the case");
    assert_eq!(code(&mut guest, "a.test."), ResponseCode::NoError);
    assert_eq!(code(&mut guest, "x.b.test."), ResponseCode::NoError);
    for refused in ["b.test.", "secret.a.test.", "bad.b.test.", "cdn.other.", "."] {
        assert_eq!(code(&mut guest, refused), ResponseCode::Refused, "{refused}");
    }
    assert_eq!(resolver.asked(), ["A.Test.", "a.test.", "x.b.test."], "no refused name has left");
    guest.connected(at([8, 1, 1, 1]));
    guest.connected(at([8, 1, 1, 2]));
    assert_eq!(guest.connect(at([8, 1, 1, 3])).1, Outcome::Refused);
}

#[test]
fn a_name_is_a_way_to_its_ipv6_address_too() {
    let address = [0x2600, 0, 0, 0, 0, 0, 0, 9];
    let resolver = Resolver::new(&[("six.test.", RData::AAAA(AAAA(address.into())))]);
    let (world, mut guest) = world("deny", &["six.test"], &[], &resolver);
    let to = SocketAddr::from((address, 443));
    world.servers.tcp(to, echo());
    assert_eq!(guest.connect(to).1, Outcome::Refused, "it was not asked for");
    resolve(&mut guest, "six.test.");
    guest.connected(to);
}

#[test]
fn a_name_does_not_unlock_what_is_special_or_the_host() {
    let inside = [[10, 1, 2, 3], [169, 254, 169, 254], [127, 0, 0, 1], [8, 8, 8, 1]];
    for (address, egress) in inside.into_iter().flat_map(|address| [(address, "allow"), (address, "deny")]) {
        let resolver = Resolver::new(&[("rebind.test.", a(address))]);
        let (world, mut guest) = world(egress, &["rebind.test"], &[], &resolver);
        world.servers.tcp(at(address), echo());
        assert_eq!(resolve(&mut guest, "rebind.test.").answers[0].data, a(address), "the answer itself is passed");
        assert_eq!(guest.connect(at(address)).1, Outcome::Refused);
        assert!(world.servers.asked().is_empty());
    }
}

#[test]
fn denied_names_win_also_as_aliases() {
    let resolver = Resolver::new(&[("a.test.", alias("bad.test.")), ("bad.test.", a([8, 1, 1, 1]))]);
    let (world, mut guest) = world("allow", &["bad.test", "a.test"], &["*.bad.test", "bad.test"], &resolver);
    world.servers.tcp(at([8, 1, 1, 1]), echo());
    assert_eq!(code(&mut guest, "bad.test."), ResponseCode::Refused);
    assert_eq!(code(&mut guest, "x.bad.test."), ResponseCode::Refused);
    guest.connected(at([8, 1, 1, 1]));
    assert_eq!(code(&mut guest, "a.test."), ResponseCode::NoError);
    assert_eq!(guest.connect(at([8, 1, 1, 1])).1, Outcome::Refused, "now it is known whose address it is");
}

#[test]
fn a_change_of_rules_judges_by_the_names_of_the_beginning() {
    let resolver = Resolver::new(&[("a.test.", a([8, 1, 1, 1])), ("b.test.", a([8, 1, 1, 2]))]);
    let (world, mut guest) = world("deny", &["*.test", "a.test"], &[], &resolver);
    for (name, last) in [("a.test.", 1), ("b.test.", 2)] {
        world.servers.tcp(at([8, 1, 1, last]), echo());
        assert_eq!(code(&mut guest, name), ResponseCode::NoError);
    }
    let (stays, goes) = (guest.connected(at([8, 1, 1, 1])), guest.connected(at([8, 1, 1, 2])));
    world.policy.send_replace(network("deny", &["a.test"], &[]));
    guest.reset(goes);
    guest.send(stays, b"still");
    assert_eq!(guest.receive(stays, 5), b"still");
    assert_eq!(code(&mut guest, "b.test."), ResponseCode::Refused);
}

#[test]
fn a_resolver_that_fails_is_not_waited_for() {
    let resolver = Resolver::new(&[("a.test.", a([8, 1, 1, 1]))]);
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let short = std::time::Duration::from_millis(50);
    let with = |resolvers| {
        World::with(network("allow", &[], &[]), |config| {
            config.resolvers = Resolvers::Fixed(resolvers);
            config.limits.resolver = short;
        })
    };
    let (_world, mut guest) = with(vec![silent.local_addr().unwrap(), resolver.address.into()]);
    assert_eq!(code(&mut guest, "a.test."), ResponseCode::NoError);
    for resolvers in [vec![silent.local_addr().unwrap()], vec![]] {
        let (_world, mut guest) = with(resolvers);
        assert_eq!(code(&mut guest, "a.test."), ResponseCode::ServFail);
    }
}

#[test]
fn another_resolver_is_an_address_like_any_other() {
    let resolver = Resolver::new(&[("a.test.", a([8, 1, 1, 1]))]);
    let other = SocketAddrV4::new(Ipv4Addr::new(1, 1, 1, 1), 53);
    let question = query("a.test.").to_vec().unwrap();
    let (open, mut guest) = world("allow", &[], &["a.test"], &resolver);
    open.servers.udp(other, resolver.address);
    let socket = guest.datagrams();
    guest.datagram(socket, other, &question);
    guest.receive_datagram(socket);
    let (closed, mut guest) = world("deny", &["a.test"], &[], &resolver);
    closed.servers.udp(other, resolver.address);
    let socket = guest.datagrams();
    guest.datagram(socket, other, &question);
    assert_eq!(guest.unreachable(*other.ip()), 13);
    assert!(closed.servers.asked().is_empty());
}

#[test]
fn what_may_not_go_out_does_not_go_out_as_a_name() {
    let resolver = Resolver::new(&[("open.test.", a([8, 8, 4, 4]))]);
    let machine = Arc::<Memberships>::default();
    let set = |rules: Value| machine.set_rules(serde_json::from_value(rules).unwrap());
    set(json!([{"direction": "out", "protocol": "any", "action": "deny"}]));
    let (_world, mut guest) = World::with(network("allow", &[], &[]), |config| {
        config.resolvers = Resolvers::Fixed(vec![resolver.address.into()]);
        config.networks = Arc::clone(&machine);
    });
    assert_eq!(code(&mut guest, "open.test."), ResponseCode::Refused);
    assert!(resolver.asked().is_empty(), "nobody outside heard of it");
    set(json!([
        {"direction": "out", "protocol": "udp", "ports": [53], "source": "10.0.2.3", "action": "allow"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ]));
    assert_eq!(code(&mut guest, "open.test."), ResponseCode::NoError);
}
