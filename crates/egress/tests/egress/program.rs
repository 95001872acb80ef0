//! The program beside a machine, as a process; the test is its service, and plays the guest.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use berth_domain::firewall::{MAX_MEMBERS, Rules};
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::program::process;
use berth_egress::program::{Port, Protocol, VERSION};
use berth_egress::{GATEWAY, RESOLVER};
use serde_json::json;

use crate::beside::{Beside, IDLE_BYTES, PATIENCE, USER, is_root, note};
use crate::guest::{Guest, Outcome};
use crate::world::network;

/// A bound port of loopback that leads to a port of the guest.
fn port(guest_port: u16) -> (Port, OwnedFd) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (Port { protocol: Protocol::Tcp, at, guest_port }, listener.into())
}

/// A connection through a port, and the guest's end of it.
fn through(guest: &mut Guest, at: SocketAddr, guest_port: u16) -> (TcpStream, smoltcp::iface::SocketHandle) {
    let handle = guest.listen(guest_port);
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    guest.accepted(handle);
    (stream, handle)
}

/// Sends a word both ways.
fn talk(guest: &mut Guest, stream: &mut TcpStream, handle: smoltcp::iface::SocketHandle) {
    stream.write_all(b"ping").unwrap();
    assert_eq!(guest.receive(handle, 4), b"ping");
    guest.send(handle, b"pong");
    let mut answer = [0; 4];
    // What the guest sent goes while it lives.
    guest.until("it to be sent", |guest| (guest.tcp(handle).send_queue() == 0).then_some(()));
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
}

#[test]
fn a_connection_outlives_the_service() {
    let (mut beside, mut guest) = Beside::linked(&NetworkPolicy::default());
    let (open, socket) = port(22);
    beside.control(async |control| control.set_forwards(&[], &[(open, socket)]).await).unwrap();
    let (mut stream, handle) = through(&mut guest, open.at, 22);
    talk(&mut guest, &mut stream, handle);
    beside.another_service();
    let status = beside.control(async |control| control.status().await).unwrap();
    assert_eq!((status.version, status.is_linked, status.ports.as_slice()), (VERSION, true, &[open][..]));
    assert!(status.rx_bytes > 0 && status.tx_bytes > 0);
    talk(&mut guest, &mut stream, handle);
    // What stays open is not disturbed by what comes beside it.
    let (more, socket) = port(80);
    beside.control(async |control| control.set_forwards(&[open], &[(more, socket)]).await).unwrap();
    talk(&mut guest, &mut stream, handle);
    let (mut other, beside_it) = through(&mut guest, more.at, 80);
    talk(&mut guest, &mut other, beside_it);
}

#[test]
fn ports_are_exactly_those_that_were_set() {
    let (mut beside, mut guest) = Beside::linked(&NetworkPolicy::default());
    let ((one, first), (two, second)) = (port(22), port(80));
    beside.control(async |control| control.set_forwards(&[], &[(one, first), (two, second)]).await).unwrap();
    beside.control(async |control| control.set_forwards(&[two], &[]).await).unwrap();
    // One that was shut is free as soon as that is answered.
    let again = TcpListener::bind(one.at).unwrap();
    let refused = beside.control(async |control| control.set_forwards(&[one, two], &[]).await).unwrap_err();
    assert!(refused.to_string().contains("is not open"), "{refused}");
    let status = beside.control(async |control| control.status().await).unwrap();
    assert_eq!(status.ports, [two], "what is refused changes nothing");
    // A port of the host may lead elsewhere, and is open all the while.
    let elsewhere = Port { guest_port: 8080, ..two };
    beside.control(async |control| control.set_forwards(&[elsewhere], &[(one, again.into())]).await).unwrap();
    let (mut stream, handle) = through(&mut guest, two.at, 8080);
    talk(&mut guest, &mut stream, handle);
}

#[test]
fn without_a_link_it_ends_with_its_service() {
    let mut beside = Beside::new();
    let refused = beside.link().err().unwrap();
    assert!(refused.to_string().contains("no rules"), "{refused}");
    beside.control(async |control| control.set_rules(&NetworkPolicy::default()).await).unwrap();
    let (open, socket) = port(22);
    beside.control(async |control| control.set_forwards(&[], &[(open, socket)]).await).unwrap();
    assert!(beside.lives());
    beside.control = None;
    beside.ends();
    TcpListener::bind(open.at).unwrap();
}

#[test]
fn with_a_link_it_ends_with_the_link() {
    let (mut beside, guest) = Beside::linked(&NetworkPolicy::default());
    beside.control = None;
    let open = beside.says("{\"version\":1,\"ask\":\"status\"}\n");
    assert!(open.contains("\"is_linked\":true"), "{open}");
    guest.hang_up();
    beside.ends();
}

#[test]
fn what_is_no_request_is_refused_and_changes_nothing() {
    let (beside, mut guest) = Beside::linked(&network("deny", &[], &[]));
    let refused = |answer: &str| answer.starts_with("{\"answer\":\"refused\"");
    for line in [
        "\n",
        "{}\n",
        "{\"version\":1}\n",
        "{\"version\":2,\"ask\":\"status\"}\n",
        "{\"version\":1,\"ask\":\"set_rules\",\"network\":{\"egress\":\"maybe\"}}\n",
        "{\"version\":1,\"ask\":\"set_link\"}\n",
        "{\"version\":1,\"ask\":\"set_forwards\",\"ports\":[{\"protocol\":\"tcp\",\"at\":\"127.0.0.1:9\",\"guest_port\":9,\"is_new\":true}]}\n",
        "GET / HTTP/1.1\n",
    ] {
        let answer = beside.says(line);
        assert!(refused(&answer), "{line}: {answer}");
    }
    assert_eq!(beside.says(&"x".repeat(200 << 10)), "");
    assert_eq!(beside.says("half a line"), "");
    assert!(beside.says("{\"version\":1,\"ask\":\"status\"}\n").contains("\"is_linked\":true"));
    assert_eq!(guest.connect(SocketAddrV4::new([9, 9, 9, 9].into(), 9)).1, Outcome::Refused);
}

#[test]
fn a_guest_does_not_reach_its_host() {
    let (_beside, mut guest) = Beside::linked(&NetworkPolicy::default());
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (tcp, udp) = (service.local_addr().unwrap().port(), datagrams.local_addr().unwrap().port());
    for address in [GATEWAY, RESOLVER, Ipv4Addr::LOCALHOST, [127, 64, 0, 1].into(), [169, 254, 169, 254].into()] {
        assert_eq!(guest.connect(SocketAddrV4::new(address, tcp)).1, Outcome::Refused, "{address}");
        let socket = guest.datagrams();
        guest.datagram(socket, SocketAddrV4::new(address, udp), b"x");
        assert_eq!(guest.unreachable(address), 13, "{address}");
    }
    service.set_nonblocking(true).unwrap();
    datagrams.set_nonblocking(true).unwrap();
    assert!(service.accept().is_err() && datagrams.recv(&mut [0]).is_err(), "nothing came");
}

#[test]
fn it_is_told_what_rules_may_unlock() {
    // An address of this host, so that nothing leaves it.
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = SocketAddrV4::new(Ipv4Addr::new(169, 254, 169, 254), service.local_addr().unwrap().port());
    let rules = network("allow", &["169.254.169.254"], &[]);
    let locked = NetworkPolicy { unlock: Vec::new(), ..NetworkPolicy::clone(&rules) };
    let (_beside, mut guest) = Beside::linked(&locked);
    assert_eq!(guest.connect(to).1, Outcome::Refused);
}

#[test]
fn it_is_confined() {
    let (beside, _guest) = Beside::linked(&NetworkPolicy::default());
    let status = beside.proc("status");
    let line = |name: &str| {
        let found = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!((line("NoNewPrivs"), line("Seccomp"), line("CapEff")), ("1".into(), "2".into(), none()));
    if is_root() {
        let user = [USER.to_string().as_str(); 4].join(" ");
        assert_eq!((line("Uid"), line("Gid"), line("Groups")), (user.clone(), user, String::new()));
    }
    assert_eq!(beside.proc("environ"), "MALLOC_MMAP_THRESHOLD_=131072\0", "nothing of the service's");
    let here = fs::read_link(format!("/proc/{}/cwd", beside.pid())).unwrap();
    assert_eq!(fs::read_dir(here).unwrap().count(), 0);
    let session = beside.proc("stat").rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().to_owned();
    assert_eq!(session, beside.pid().to_string(), "a session of its own");
    let limits = beside.proc("limits");
    for (name, most) in [("Max open files", 4096), ("Max data size", 192 << 20), ("Max core file size", 0)] {
        let limit = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let limit: u64 = limit.split_whitespace().next().unwrap().parse().unwrap();
        assert!(limit <= most, "{name}: {limit}");
    }
    // Its link, where it listens, its service, what it says of itself, and what it waits by.
    let open = fs::read_dir(format!("/proc/{}/fd", beside.pid())).unwrap().count();
    assert!(open < 16, "{open} open files");
}

#[test]
fn it_has_no_descriptor_that_it_was_not_given() {
    let mut secret = tempfile::tempfile().unwrap();
    secret.write_all(b"a secret").unwrap();
    // What is not closed when a program begins is what whoever started the service handed down.
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let of = |file: &fs::Metadata| (file.dev(), file.ino());
    let (beside, _guest) = Beside::linked(&NetworkPolicy::default());
    let open = fs::read_dir(format!("/proc/{}/fd", beside.pid())).unwrap().flatten();
    let open: Vec<_> = open.filter_map(|entry| fs::metadata(entry.path()).ok()).map(|file| of(&file)).collect();
    assert!(open.len() > 3 && !open.contains(&of(&secret.metadata().unwrap())), "{open:?}");
}

/// No capability, as root has none by then and others never had one.
fn none() -> String {
    "0".repeat(16)
}

#[test]
fn it_takes_little_memory() {
    let (beside, mut guest) = Beside::linked(&NetworkPolicy::default());
    guest.assert_alive();
    let text = beside.proc("smaps_rollup");
    // The rest is the program's file, shared by all machines; pages of one that was just built may wait to be written.
    let private = text.lines().filter(|line| line.starts_with("Anonymous:") || line.starts_with("Private_Hugetlb"));
    let kilobytes: u64 = private.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum();
    assert!(kilobytes * 1024 <= IDLE_BYTES, "{kilobytes} KiB\n{text}");
}

#[test]
fn it_has_memory_for_rules_of_as_many_addresses_as_they_may_have() {
    let (mut beside, mut guest) = Beside::linked(&NetworkPolicy::default());
    let rule = |label: &str| json!({"direction": "in", "protocol": "any", "source": label, "action": "deny"});
    let rules: Vec<_> = (0..4).map(|number| rule(&format!("label:group={number}"))).collect();
    let rules: Rules = serde_json::from_value(rules.into()).unwrap();
    // As long as addresses are written.
    let first = u128::from_be_bytes([0xfd; 16]);
    let members = (0..MAX_MEMBERS as u128 / 4).map(|number| IpAddr::from((first + number).to_be_bytes())).collect();
    let rules = rules.with_members(|_| BTreeSet::clone(&members)).unwrap();
    // What was told before is there until it is replaced.
    for _ in 0..3 {
        beside.control(async |control| control.set_firewall(rules.clone()).await).unwrap();
    }
    guest.assert_alive();
}

#[test]
fn it_is_known_by_its_note_and_ended_by_it() {
    let (beside, guest) = Beside::linked(&NetworkPolicy::default());
    let (dir, true_note) = (beside.dir.path(), note(beside.dir.path()));
    for (name, false_value) in
        [("started", json!(1)), ("boot", json!("another")), ("pid", json!(1)), ("folder", json!([1, 2]))]
    {
        let mut other = true_note.clone();
        other[name] = false_value;
        fs::write(dir.join("egress.json"), other.to_string()).unwrap();
        assert!(!beside.lives(), "{name}");
        // What is not the machine's program goes on.
        beside.runtime.block_on(process::end(dir)).unwrap();
    }
    for nonsense in ["", "{}", "{\"pid\":-1,\"started\":0,\"boot\":\"\",\"folder\":[0,0]}"] {
        fs::write(dir.join("egress.json"), nonsense).unwrap();
        assert!(!beside.lives());
    }
    fs::write(dir.join("egress.json"), true_note.to_string()).unwrap();
    let running = process::find(dir).unwrap().unwrap();
    beside.runtime.block_on(process::end(dir)).unwrap();
    beside.runtime.block_on(running.ended()).unwrap();
    assert!(!beside.lives());
    let mut guest = guest;
    guest.until("the end of the link", |guest| guest.ended.then_some(()));
}

#[test]
fn by_hand_it_says_what_it_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_egress-alone")).arg("x").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("there is nothing to type"), "{said}");
}
