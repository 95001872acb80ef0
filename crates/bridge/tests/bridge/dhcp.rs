//! The program that answers guests.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use berth_bridge::{Machine, Settings, program};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::json;

use crate::guest::{Frames, Guest, sum6};
use crate::world::{World, id};

/// The user that the program becomes.
const USER: u32 = 0x7080_0007;
const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(400);

struct Running(World);

impl Running {
    fn new() -> Option<Self> {
        let resolvers = vec!["8.8.8.8:53".parse().unwrap()];
        let world = World::with(Settings { resolvers, mtu: Some(1400), ..Settings::default() })?;
        resolve(&world);
        let program = Path::new(env!("CARGO_BIN_EXE_bridge-alone"));
        world.block(program::start(Some(program), &world.folder(), Some(USER))).unwrap();
        Some(Self(world))
    }

    fn bare(&self, slot: u16) -> (Guest, Machine) {
        let machine = self.0.machine(slot, json!([]), &[]);
        self.0.set(&machine);
        (Guest::bare(&self.0.settings.tap(slot), machine.clone()), machine)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.block(program::end(&self.0.folder())).unwrap();
    }
}

/// A resolver outside that knows of every name that it has no address.
fn resolve(world: &World) {
    world.internet.run(|| {
        let socket = UdpSocket::bind("8.8.8.8:53").unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                buffer[2] |= 0x80;
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
        let listener = TcpListener::bind("8.8.8.8:53").unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut buffer = [0; 512];
                let len = stream.read(&mut buffer).unwrap();
                buffer[4] |= 0x80;
                stream.write_all(&buffer[..len]).unwrap();
            }
        });
    });
}

/// Asks as a client that has no address; what is answered, if anything.
fn discover(chaddr: [u8; 6], patience: Duration) -> Option<Vec<u8>> {
    // Not for programs that other tests start meanwhile; until one has replaced what forked, it holds the former
    // call's socket, so the port is shared.
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    setsockopt(&socket, sockopt::BindToDevice, &"eth0".into()).unwrap();
    setsockopt(&socket, sockopt::ReuseAddr, &true).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from(([0, 0, 0, 0], 68))).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_broadcast(true).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    let mut message = vec![0; 240];
    message[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    message[10] = 0x80;
    message[28..34].copy_from_slice(&chaddr);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, 1, 255]);
    socket.send_to(&message, "255.255.255.255:67").unwrap();
    let mut buffer = vec![0; 1500];
    let len = socket.recv(&mut buffer).ok()?;
    buffer.truncate(len);
    Some(buffer)
}

fn option(message: &[u8], wanted: u8) -> Option<Vec<u8>> {
    let mut rest = &message[240..];
    while let [kind, len, data @ ..] = rest {
        let (data, after) = data.split_at(usize::from(*len));
        if *kind == wanted {
            return Some(data.to_vec());
        }
        rest = after;
    }
    None
}

#[test]
fn a_guest_is_told_its_address_and_nobody_elses() {
    let Some(running) = Running::new() else { return };
    // Machines that came after the program began.
    let (one, machine) = running.bare(7);
    let (_other, others) = running.bare(8);
    let offer = one.place.run(move || discover(machine.mac.0, PATIENCE)).unwrap();
    assert_eq!(offer[16..20], [10, 127, 0, 8]);
    assert_eq!(option(&offer, 1), Some(vec![255, 255, 0, 0]));
    assert_eq!(option(&offer, 3), Some(vec![10, 127, 0, 1]));
    assert_eq!(option(&offer, 6), Some(vec![10, 127, 0, 1]));
    assert_eq!(option(&offer, 26), Some(1400_u16.to_be_bytes().to_vec()));
    assert_eq!(one.place.run(move || discover(others.mac.0, SILENCE)), None, "for another card");
    // One that changed, and one that is gone.
    let changed = Machine { address: [10, 127, 9, 9].into(), ..running.0.machine(7, json!([]), &[]) };
    running.0.set(&changed);
    let offer = one.place.run(move || discover(changed.mac.0, PATIENCE)).unwrap();
    assert_eq!(offer[16..20], [10, 127, 9, 9]);
    running.0.block(running.0.bridge().remove(id(7))).unwrap();
    assert!(!running.0.block(running.0.bridge().wanted()).contains_key(&id(7)));
}

#[test]
fn a_guest_learns_its_router_and_its_ipv6_address() {
    let Some(running) = Running::new() else { return };
    let (one, machine) = running.bare(7);
    let own = machine.address6.unwrap();
    // The kernel's own: it asks for a router once its card is up.
    one.place.run(|| {
        crate::place::set("ipv6/conf/eth0/accept_ra", "1");
        crate::place::ip("link set eth0 down");
        crate::place::ip("link set eth0 up");
    });
    let routes = || {
        let output = std::process::Command::new("ip").args(["-6", "route", "show", "default"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let since = std::time::Instant::now();
    let mut found = String::new();
    while found.is_empty() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        found = one.place.run(routes);
    }
    assert!(found.contains("via fe80::1 dev eth0 proto ra"), "{found}");
    assert!(found.contains("mtu 1400"), "{found}");
    let solicit = |patience| {
        let device = nix::net::if_::if_nametoindex("eth0").unwrap();
        let socket = UdpSocket::bind("[::]:546").unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        // A client by a number of its own, with an identity.
        let message = b"\x01\x01\x02\x03\0\x01\0\x04\0\x04\x07\x07\0\x03\0\x0c\0\0\0\x07\0\0\0\0\0\0\0\0";
        let servers = std::net::SocketAddrV6::new("ff02::1:2".parse().unwrap(), 547, 0, device);
        socket.send_to(message, servers).unwrap();
        let mut buffer = [0; 512];
        socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())
    };
    let answer = one.place.run(move || solicit(PATIENCE)).unwrap();
    assert_eq!(answer[..4], [2, 1, 2, 3]);
    assert!(answer.windows(16).any(|bytes| bytes == own.octets()), "{answer:?}");
    running.0.set(&Machine { address6: None, ..machine });
    assert_eq!(one.place.run(move || solicit(SILENCE)), None);
}

/// A question who the router is, from an address.
fn solicitation(link: [u8; 6], from: &str) -> Vec<u8> {
    let (from, to): (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), "ff02::2".parse().unwrap());
    let head = [0x60, 0, 0, 0, 0, 8, 58, 255];
    let packet = [&head[..], &from.octets(), &to.octets(), &[133, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut frame = [&[0x33, 0x33, 0, 0, 0, 2][..], &link, &[0x86, 0xdd], &packet].concat();
    sum6(&mut frame);
    frame
}

#[test]
fn who_asks_for_the_router_often_bothers_nobody_else() {
    const ALL: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
    const ROUTER: u8 = 134;
    let Some(running) = Running::new() else { return };
    let mut frames = [7, 8].map(|slot| {
        let machine = running.0.machine(slot, json!([]), &[]);
        running.0.set(&machine);
        (Frames::new(&running.0.settings.tap(slot)), machine.mac)
    });
    let [(one, own), (other, others)] = &mut frames;
    let is_router = |frame: &[u8]| frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(54) == Some(&ROUTER);
    for _ in 0..100 {
        one.send(&solicitation(own.0, "::"));
    }
    // What is asked for afterwards is answered to who asks, and comes afterwards.
    other.send(&solicitation(others.0, "fe80::5054:ff:fe62:8"));
    let came = other.until(|frame| is_router(frame) && frame[..6] == others.0);
    let to_all = came.iter().filter(|frame| is_router(frame) && frame[..6] == ALL).count();
    assert!(to_all <= 1, "{to_all} times");
    // All are told once, though later.
    let told = one.until(|frame| is_router(frame) && frame[..6] == ALL);
    assert_eq!(told.iter().filter(|frame| is_router(frame)).count(), 1);
}

#[test]
fn names_are_asked_for_at_the_gateway_unless_a_rule_denies_it() {
    const QUERY: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x05berth\x04test\x00\x00\x01\x00\x01";
    let Some(running) = Running::new() else { return };
    let guest = running.0.guest(7, json!([]), &[]);
    let by_udp = |patience| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        socket.send_to(QUERY, "10.127.0.1:53").unwrap();
        let mut buffer = [0; 512];
        socket.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())
    };
    let answer = guest.place.run(move || by_udp(PATIENCE)).unwrap();
    assert_eq!((&answer[..2], answer[2] & 0x80), (&QUERY[..2], 0x80));
    let answer = guest.place.run(|| {
        let mut stream = TcpStream::connect("10.127.0.1:53").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&[&u16::try_from(QUERY.len()).unwrap().to_be_bytes(), QUERY].concat()).unwrap();
        let mut buffer = vec![0; 4];
        stream.read_exact(&mut buffer).unwrap();
        buffer
    });
    assert_eq!(answer[2..], QUERY[..2]);
    let deny = json!([{"direction": "out", "protocol": "udp", "ports": [53], "action": "deny"}]);
    running.0.set(&running.0.machine(7, deny, &[]));
    assert_eq!(guest.place.run(move || by_udp(SILENCE)), None);
}

#[test]
fn the_program_has_no_rights_and_outlives_the_service() {
    let Some(mut running) = Running::new() else { return };
    let note = std::fs::read(running.0.folder().join("program.json")).unwrap();
    let pid = serde_json::from_slice::<serde_json::Value>(&note).unwrap()["pid"].as_u64().unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert!(status.contains(&format!("Uid:\t{USER}\t{USER}\t{USER}")), "{status}");
    running.0.open();
    let program = Path::new(env!("CARGO_BIN_EXE_bridge-alone"));
    running.0.block(program::start(Some(program), &running.0.folder(), Some(USER))).unwrap();
    let again = std::fs::read(running.0.folder().join("program.json")).unwrap();
    assert_eq!(again, note, "it is the same");
}

#[test]
fn one_of_another_version_is_replaced() {
    let Some(running) = Running::new() else { return };
    let (folder, program) = (running.0.folder(), Path::new(env!("CARGO_BIN_EXE_bridge-alone")));
    let now = || {
        running.0.block(program::start(Some(program), &folder, Some(USER))).unwrap();
        std::fs::read(folder.join("program.json")).unwrap()
    };
    let first = now();
    assert_eq!(now(), first, "of the same version");
    std::fs::write(folder.join("program.version"), "0.0.1").unwrap();
    let second = now();
    assert_ne!(second, first);
    // As those left it that noted none.
    std::fs::remove_file(folder.join("program.version")).unwrap();
    let third = now();
    assert_ne!(third, second);
    assert_eq!(now(), third);
    let (guest, machine) = running.bare(7);
    assert!(guest.place.run(move || discover(machine.mac.0, PATIENCE)).is_some(), "it answers");
}

#[test]
fn what_cannot_be_read_is_said_once() {
    let Some(running) = Running::new() else { return };
    let (guest, machine) = running.bare(7);
    let (folder, mac) = (running.0.folder(), machine.mac.0);
    let asks = || guest.place.run(move || discover(mac, PATIENCE)).expect("an answer");
    let log = || std::fs::read_to_string(folder.join("program.log")).unwrap();
    asks();
    let (new, wanted) = (folder.join("new"), folder.join("bridge.json"));
    let replace = |bytes: &[u8]| {
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(&new, &wanted).unwrap();
    };
    let good = std::fs::read(&wanted).unwrap();
    for times in 1..=2 {
        replace(b"{");
        for _ in 0..3 {
            asks();
        }
        assert_eq!(log().lines().count(), times, "{}", log());
    }
    replace(&good);
    asks();
    std::fs::remove_file(&wanted).unwrap();
    for _ in 0..3 {
        asks();
    }
    assert_eq!(log().lines().count(), 3, "{}", log());
    replace(&good);
}
