//! Who comes in: connections and datagrams.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::time::Duration;

use berth_egress::{Forward, ForwardSocket, GATEWAY, GUEST};
use smoltcp::socket::tcp::State;
use smoltcp::wire::{Icmpv4Packet, IpProtocol, Ipv4Packet};

use crate::guest::{Guest, Outcome, packet};
use crate::tcp::noise;
use crate::world::{SERVER, World, echo, network};

/// A port of the guest.
pub const PORT: u16 = 8000;

/// A forward to a port of the guest, and where to come to.
fn forward(world: &World, guest_port: u16) -> (Arc<Forward>, SocketAddr) {
    let _entered = world.runtime.enter();
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let socket = ForwardSocket::Tcp(tokio::net::TcpListener::from_std(listener).unwrap());
    (Arc::new(Forward { guest_port, socket }), address)
}

/// A world with a forward to `PORT`.
pub fn forwarded(change: impl FnOnce(&mut berth_egress::Config)) -> (World, Guest, SocketAddr) {
    let (world, guest) = World::with(network("allow", &[], &[]), change);
    let (forward, address) = forward(&world, PORT);
    world.forwards.send_replace(Arc::new(vec![forward]));
    (world, guest, address)
}

/// Somebody outside, who connects and does something.
pub fn client<T: Send + 'static>(to: SocketAddr, act: impl FnOnce(TcpStream) -> T + Send + 'static) -> Receiver<T> {
    let (told, result) = mpsc::channel();
    std::thread::spawn(move || told.send(act(TcpStream::connect(to).unwrap())));
    result
}

/// How a connection ends for somebody who waits for bytes.
pub fn end(mut stream: TcpStream) -> Result<Vec<u8>, ErrorKind> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes).map_err(|error| error.kind())
}

impl Guest {
    pub fn told<T>(&mut self, result: &Receiver<T>) -> T {
        self.until("what came of it", |_| result.try_recv().ok())
    }
}

#[test]
fn who_comes_by_a_forward_comes_from_the_gateway() {
    let (_world, mut guest, address) = forwarded(|_| ());
    let (one, two) = (guest.listen(PORT), guest.listen(PORT));
    let greeting = |mut stream: TcpStream| {
        stream.write_all(b"hello").unwrap();
        let mut answer = [0; 7];
        stream.read_exact(&mut answer).unwrap();
        answer
    };
    let (first, second) = (client(address, greeting), client(address, greeting));
    let from = [one, two].map(|handle| {
        let from = guest.accepted(handle);
        assert_eq!(guest.receive(handle, 5), b"hello");
        guest.send(handle, b"welcome");
        from
    });
    assert_eq!((guest.told(&first), guest.told(&second)), (*b"welcome", *b"welcome"));
    assert!(from.iter().all(|from| from.ip() == GATEWAY && from.port() >= 1024) && from[0] != from[1], "{from:?}");
}

#[test]
fn who_comes_over_ipv6_is_let_in_by_ipv4() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |_| ());
    let entered = world.runtime.enter();
    let listener = std::net::TcpListener::bind((std::net::Ipv6Addr::LOCALHOST, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let socket = ForwardSocket::Tcp(tokio::net::TcpListener::from_std(listener).unwrap());
    drop(entered);
    world.forwards.send_replace(Arc::new(vec![Arc::new(Forward { guest_port: PORT, socket })]));
    let handle = guest.listen(PORT);
    let heard = client(address, end);
    guest.accepted(handle);
    guest.send(handle, b"welcome");
    guest.tcp(handle).close();
    assert_eq!(guest.told(&heard), Ok(b"welcome".to_vec()));
}

/// What a guest sends to everybody that has no address yet.
fn nobodys_question() -> Vec<u8> {
    let mut frame = packet(IpProtocol::Udp, Ipv4Addr::BROADCAST, &[0, 68, 0, 67, 0, 9, 0, 0, 0]);
    frame[..6].fill(0xff);
    let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
    ip.set_src_addr(Ipv4Addr::UNSPECIFIED);
    ip.fill_checksum();
    frame
}

#[test]
fn a_guest_is_called_once_it_has_its_address() {
    let (_world, mut guest, address) = forwarded(|_| ());
    let handle = guest.listen(PORT);
    for had_one_before in [false, true] {
        guest.deaf = true;
        guest.raw(&nobodys_question());
        let frames = guest.frames;
        let heard = client(address, end);
        guest.until("questions who has the address", |guest| (guest.frames > frames + 3).then_some(()));
        assert!(guest.calls.is_empty(), "called without an address; had one before: {had_one_before}");
        guest.deaf = false;
        guest.accepted(handle);
        guest.tcp(handle).abort();
        assert_eq!(guest.told(&heard), Err(ErrorKind::ConnectionReset));
        guest.calls.clear();
        guest.tcp(handle).listen(PORT).unwrap();
    }
}

#[test]
fn megabytes_come_and_go_at_once() {
    const COUNT: usize = 4 << 20;
    let (_world, mut guest, address) = forwarded(|_| ());
    let handle = guest.listen(PORT);
    let result = client(address, |mut stream| {
        let mut writing = stream.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            writing.write_all(&noise(COUNT)).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        got
    });
    guest.accepted(handle);
    let (mut got, sent, mut at) = (Vec::new(), noise(COUNT), 0);
    guest.until("both to be through", |guest| {
        guest.take(handle, &mut got);
        if guest.tcp(handle).can_send() {
            at += guest.tcp(handle).send_slice(&sent[at..]).unwrap();
        }
        (got.len() == COUNT && at == COUNT).then_some(())
    });
    guest.tcp(handle).close();
    assert!(got == noise(COUNT) && guest.told(&result) == sent);
}

#[test]
fn either_end_may_end_first() {
    let (_world, mut guest, address) = forwarded(|_| ());
    let handle = guest.listen(PORT);
    let asks = client(address, |mut stream| {
        stream.write_all(&noise(100_000)).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        end(stream)
    });
    guest.accepted(handle);
    assert_eq!(guest.receive_all(handle), noise(100_000));
    guest.send(handle, b"100000");
    guest.tcp(handle).close();
    assert_eq!(guest.told(&asks), Ok(b"100000".to_vec()));

    let handle = guest.listen(PORT);
    let answers = client(address, |mut stream| {
        let mut greeting = Vec::new();
        stream.read_to_end(&mut greeting).unwrap();
        stream.write_all(&noise(100_000)).unwrap();
        greeting
    });
    guest.accepted(handle);
    guest.send(handle, b"I am done");
    guest.tcp(handle).close();
    assert_eq!(guest.receive_all(handle), noise(100_000));
    assert_eq!(guest.told(&answers), b"I am done");
}

#[test]
fn resets_go_through_both_ways() {
    let (_world, mut guest, address) = forwarded(|_| ());
    let handle = guest.listen(PORT);
    let waits = client(address, end);
    guest.accepted(handle);
    guest.tcp(handle).abort();
    assert_eq!(guest.told(&waits), Err(ErrorKind::ConnectionReset));

    let handle = guest.listen(PORT);
    // Bytes that nobody has read make the end of a socket a reset.
    let leaves = client(address, |mut stream| stream.read_exact(&mut [0]).unwrap());
    guest.accepted(handle);
    guest.send(handle, b"more than one byte");
    guest.told(&leaves);
    guest.reset(handle);
}

#[test]
fn what_the_guest_refuses_is_reset_outside() {
    let (_world, mut guest, address) = forwarded(|_| ());
    let refused = client(address, end);
    assert_eq!(guest.told(&refused), Err(ErrorKind::ConnectionReset));
}

#[test]
fn what_a_guest_says_it_cannot_be_reached_at_is_reset_outside() {
    let (_world, mut guest, address) = forwarded(|_| ());
    guest.assert_alive();
    let open = guest.listen(PORT);
    let stays = client(address, |mut stream| {
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    });
    guest.accepted(open);
    let (established, _) = guest.calls.pop_first().unwrap();
    guest.deaf = true;
    let refused = client(address, end);
    let (attempt, _) = guest.until("a call", |guest| guest.calls.pop_first());
    for from in [established, attempt] {
        let mut quoted =
            packet(IpProtocol::Tcp, GUEST, &[&from.port().to_be_bytes()[..], &PORT.to_be_bytes(), &[0; 4]].concat())
                .split_off(14);
        quoted[12..16].copy_from_slice(&GATEWAY.octets());
        quoted[10..12].fill(0);
        smoltcp::wire::Ipv4Packet::new_unchecked(&mut quoted[..]).fill_checksum();
        let mut error = [&[3, 13, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
        Icmpv4Packet::new_unchecked(&mut error[..]).fill_checksum();
        guest.raw(&packet(IpProtocol::Icmp, GATEWAY, &error));
    }
    assert_eq!(guest.told(&refused), Err(ErrorKind::ConnectionReset));
    guest.deaf = false;
    guest.send(open, b"still");
    assert_eq!(guest.told(&stays), *b"still");
}

#[test]
fn who_waits_for_a_silent_guest_waits_outside() {
    let (_world, mut guest, address) = forwarded(|config| config.limits.forward_half_open = 2);
    guest.assert_alive();
    guest.deaf = true;
    let clients: Vec<_> = (0..3).map(|_| client(address, end)).collect();
    guest.until("two calls", |guest| (guest.calls.len() == 2).then_some(()));
    guest.assert_alive();
    assert_eq!(guest.calls.len(), 2, "the third waits");
    let open: Vec<_> = (0..3).map(|_| guest.listen(PORT)).collect();
    guest.deaf = false;
    for handle in open {
        guest.accepted(handle);
        guest.tcp(handle).close();
    }
    for client in &clients {
        assert_eq!(guest.told(client), Ok(Vec::new()));
    }
    assert_eq!(guest.calls.len(), 3);
}

#[test]
fn a_guest_that_does_not_answer_in_time_is_given_up() {
    for known in [true, false] {
        let (_world, mut guest, address) = forwarded(|config| config.limits.handshake = Duration::from_millis(50));
        if known {
            guest.assert_alive();
        }
        guest.deaf = true;
        let given_up = client(address, end);
        assert_eq!(guest.told(&given_up), Err(ErrorKind::ConnectionReset));
        assert_eq!(!guest.calls.is_empty(), known, "who is not known is asked for, and not called");
    }
}

#[test]
fn who_goes_away_before_the_guest_is_known_does_not_come() {
    let (_world, mut guest, address) = forwarded(|config| config.limits.forward_half_open = 1);
    let gone = client(address, |stream| {
        stream.shutdown(Shutdown::Write).unwrap();
        end(stream)
    });
    assert_eq!(gone.recv_timeout(Duration::from_secs(10)), Ok(Err(ErrorKind::ConnectionReset)));
    let handle = guest.listen(PORT);
    let comes = client(address, |mut stream| {
        stream.write_all(b"hello").unwrap();
        end(stream)
    });
    assert_eq!(guest.receive(handle, 5), b"hello");
    guest.tcp(handle).close();
    assert_eq!((guest.told(&comes), guest.calls.len()), (Ok(Vec::new()), 1));
}

#[test]
fn beyond_a_limit_who_comes_is_reset() {
    let limits: [fn(&mut berth_egress::Config); 3] = [
        |config| config.limits.tcp_flows = 2,
        |config| config.sockets = 2,
        |config| config.limits.buffers = 2 * (40 << 10),
    ];
    for change in limits {
        let (world, mut guest, address) = forwarded(change);
        world.servers.tcp(SERVER, echo());
        let handle = guest.listen(PORT);
        let first = client(address, end);
        guest.accepted(handle);
        guest.connected(SERVER);
        guest.listen(PORT);
        let beyond = client(address, end);
        assert_eq!(guest.told(&beyond), Err(ErrorKind::ConnectionReset));
        assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
        guest.send(handle, b"unharmed");
        guest.tcp(handle).close();
        assert_eq!(guest.told(&first), Ok(b"unharmed".to_vec()));
    }
}

#[test]
fn forwards_are_what_the_newest_value_says() {
    let (world, mut guest) = World::new();
    let (stays, stays_at) = forward(&world, PORT);
    let (goes, goes_at) = forward(&world, PORT + 1);
    world.forwards.send_replace(Arc::new(vec![Arc::clone(&stays), Arc::clone(&goes)]));
    let (kept, cut) = (guest.listen(PORT), guest.listen(PORT + 1));
    let (keeps, loses) = (client(stays_at, end), client(goes_at, end));
    guest.accepted(kept);
    guest.accepted(cut);

    let (comes, comes_at) = forward(&world, PORT + 1);
    world.forwards.send_replace(Arc::new(vec![comes, stays]));
    assert_eq!(guest.told(&loses), Err(ErrorKind::ConnectionReset));
    guest.reset(cut);
    let gone: Weak<_> = Arc::downgrade(&goes);
    drop(goes);
    guest.until("the end of the socket", |_| gone.upgrade().is_none().then_some(()));
    assert_eq!(
        TcpStream::connect(goes_at).map(|_| ()).map_err(|error| error.kind()),
        Err(ErrorKind::ConnectionRefused)
    );

    let new = guest.listen(PORT + 1);
    let arrives = client(comes_at, end);
    guest.accepted(new);
    for (handle, result) in [(new, arrives), (kept, keeps)] {
        guest.send(handle, b"here");
        guest.tcp(handle).close();
        assert_eq!(guest.told(&result), Ok(b"here".to_vec()));
    }
}

#[test]
fn as_long_as_no_guest_is_there_nobody_accepts() {
    let (mut world, guest, address) = forwarded(|_| ());
    guest.hang_up();
    world.ended().unwrap();
    let waits = client(address, |mut stream| {
        stream.write_all(b"anybody?").unwrap();
        end(stream)
    });
    let mut guest = world.attach_again();
    let handle = guest.listen(PORT);
    assert_eq!(guest.receive(handle, 8), b"anybody?");
    guest.send(handle, b"me");
    guest.tcp(handle).close();
    assert_eq!(guest.told(&waits), Ok(b"me".to_vec()));
    guest.until("the end", |guest| matches!(guest.tcp(handle).state(), State::Closed).then_some(()));
}

#[test]
fn the_end_of_the_link_is_the_end_of_what_came_in() {
    let (mut world, mut guest, address) = forwarded(|_| ());
    let handle = guest.listen(PORT);
    let (told, begun) = mpsc::channel();
    let waits = client(address, move |stream| {
        told.send(()).unwrap();
        end(stream)
    });
    guest.told(&begun);
    guest.accepted(handle);
    guest.hang_up();
    world.ended().unwrap();
    assert_eq!(waits.recv().unwrap(), Err(ErrorKind::ConnectionReset));
}

/// A forward for datagrams to `PORT`.
fn forwarded_datagrams(world: &World) -> (Arc<Forward>, SocketAddr) {
    let _entered = world.runtime.enter();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let socket = ForwardSocket::Udp(tokio::net::UdpSocket::from_std(socket).unwrap());
    (Arc::new(Forward { guest_port: PORT, socket }), address)
}

/// Somebody outside who sends datagrams to an address only.
fn peer(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(to).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// A datagram for somebody outside.
fn got(guest: &mut Guest, peer: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let len = guest.until("a datagram outside", |_| peer.recv(&mut buffer).ok());
    buffer.truncate(len);
    buffer
}

#[test]
fn datagrams_come_and_are_answered() {
    let (world, mut guest) = World::new();
    let (forward, address) = forwarded_datagrams(&world);
    world.forwards.send_replace(Arc::new(vec![forward]));
    let handle = guest.datagrams_at(PORT);
    let (one, two) = (peer(address), peer(address));
    let mut seen: Vec<SocketAddr> = Vec::new();
    for (peer, text) in [(&one, noise(1)), (&two, noise(1472)), (&one, noise(4000))] {
        peer.send(&text).unwrap();
        let (bytes, from) = guest.receive_datagram_from(handle);
        assert_eq!((bytes, from.ip()), (text.clone(), GATEWAY.into()));
        guest.datagram(handle, from, &text);
        assert_eq!(got(&mut guest, peer), text);
        seen.push(from);
    }
    assert!(seen[0] == seen[2] && seen[0] != seen[1] && seen.iter().all(|from| from.port() >= 1024), "{seen:?}");
    assert!(world.servers.asked().is_empty());
}

#[test]
fn a_datagram_for_a_port_of_the_guest_where_nobody_is_ends_nothing() {
    let (world, mut guest) = World::new();
    let (forward, address) = forwarded_datagrams(&world);
    world.forwards.send_replace(Arc::new(vec![forward]));
    let peer = peer(address);
    peer.send(b"anybody?").unwrap();
    guest.until("the datagram", |guest| (guest.frames > 1).then_some(()));
    guest.assert_alive();
    let handle = guest.datagrams_at(PORT);
    peer.send(b"and now?").unwrap();
    assert_eq!(guest.receive_datagram(handle), b"and now?");
}

#[test]
fn of_those_who_send_datagrams_the_one_idle_longest_gives_way() {
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.udp_flows = 2);
    world.servers.udp(SERVER, crate::udp::echo());
    let (forward, address) = forwarded_datagrams(&world);
    world.forwards.send_replace(Arc::new(vec![forward]));
    let handle = guest.datagrams_at(PORT);
    let own = guest.datagrams();
    guest.datagram(own, SERVER, b"first");
    assert_eq!(guest.receive_datagram(own), b"first");
    let peers = [peer(address), peer(address), peer(address)];
    let ask = |guest: &mut Guest, number: usize| {
        peers[number].send(b"?").unwrap();
        guest.receive_datagram_from(handle).1
    };
    let (first, second) = (ask(&mut guest, 0), ask(&mut guest, 1));
    assert_eq!(ask(&mut guest, 0), first, "two have room");
    ask(&mut guest, 2);
    assert_eq!(ask(&mut guest, 0), first, "it was used after the second");
    guest.datagram(handle, second, b"too late");
    assert_ne!(ask(&mut guest, 1), second, "it had to give way");
    assert_eq!(guest.unreachable(GATEWAY), 13, "nobody is there any more");
    let asked = world.servers.asked().len();
    guest.datagram(own, SERVER, b"still the same flow");
    assert_eq!(guest.receive_datagram(own), b"still the same flow");
    assert_eq!(world.servers.asked().len(), asked, "the guest's own flows have room of their own");
}

#[test]
fn who_says_nothing_is_forgotten_and_so_is_who_came_by_what_is_gone() {
    let idle = Duration::from_millis(50);
    let (world, mut guest) = World::with(network("allow", &[], &[]), |config| config.limits.udp_idle = idle);
    let (forward, address) = forwarded_datagrams(&world);
    world.forwards.send_replace(Arc::new(vec![Arc::clone(&forward)]));
    let handle = guest.datagrams_at(PORT);
    let peer = peer(address);
    peer.send(b"?").unwrap();
    let (_, first) = guest.receive_datagram_from(handle);
    guest.until("the end", |guest| {
        guest.datagram(handle, first, b"!");
        // Nothing is sent for longer than a flow lives.
        std::thread::sleep(idle * 3);
        (!guest.errors.is_empty()).then_some(())
    });
    peer.send(b"?").unwrap();
    let (_, second) = guest.receive_datagram_from(handle);
    assert_ne!(second, first);

    world.forwards.send_replace(Arc::default());
    let gone = Arc::downgrade(&forward);
    drop(forward);
    guest.until("the end of the socket", |_| gone.upgrade().is_none().then_some(()));
}
