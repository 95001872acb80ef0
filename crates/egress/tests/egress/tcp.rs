//! Connections.

use std::io::{Read, Write};
use std::net::SocketAddrV4;
use std::sync::mpsc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use smoltcp::socket::tcp::State;

use crate::guest::Outcome;
use crate::world::{SERVER, World, echo, greeter, nobody, server};

/// Bytes that do not repeat soon.
pub fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(count).collect()
}

#[test]
fn bytes_come_back_from_an_echo() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, echo());
    let handle = guest.connected(SERVER);
    guest.send(handle, b"to and fro");
    assert_eq!(guest.receive(handle, 10), b"to and fro");
    guest.tcp(handle).close();
    assert!(guest.receive_all(handle).is_empty());
}

#[test]
fn twenty_megabytes_go_out_whole() {
    const COUNT: usize = 20 << 20;
    let (world, mut guest) = World::new();
    let (told, sums) = mpsc::channel();
    let sink = server(move |mut stream| {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 65536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            hash.update(&buffer[..count]);
        }
        told.send(hash.finalize()).unwrap();
    });
    world.servers.tcp(SERVER, sink);
    let handle = guest.connected(SERVER);
    let bytes = noise(COUNT);
    guest.send(handle, &bytes);
    guest.tcp(handle).close();
    let sum = guest.until("the sum", |_| sums.try_recv().ok());
    assert_eq!(sum, Sha256::digest(&bytes));
}

#[test]
fn twenty_megabytes_come_in_whole() {
    const COUNT: usize = 20 << 20;
    let (world, mut guest) = World::new();
    let source = server(|mut stream| stream.write_all(&noise(COUNT)).unwrap());
    world.servers.tcp(SERVER, source);
    let handle = guest.connected(SERVER);
    let got = guest.receive_all(handle);
    assert_eq!(got.len(), COUNT);
    assert_eq!(Sha256::digest(&got), Sha256::digest(noise(COUNT)));
    let (_, received) = world.sent_and_received();
    assert!(received > COUNT as u64 && received < 2 * COUNT as u64);
}

#[test]
fn a_guest_that_takes_large_packets_gets_and_sends_them() {
    const COUNT: usize = 4 << 20;
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, server(|mut stream| stream.write_all(&noise(COUNT)).unwrap()));
    guest.set_mtu(berth_egress::MTU);
    let handle = guest.connected(SERVER);
    assert!(guest.receive_all(handle) == noise(COUNT));
    assert!(guest.frames < COUNT / 8192, "{} frames", guest.frames);

    let count = server(|mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&Sha256::digest(&request)).unwrap();
    });
    world.servers.tcp(SERVER, count);
    let handle = guest.connected(SERVER);
    guest.send(handle, &noise(COUNT));
    guest.tcp(handle).close();
    assert_eq!(guest.receive_all(handle), Sha256::digest(noise(COUNT)).to_vec());
}

#[test]
fn the_guest_may_end_first() {
    let (world, mut guest) = World::new();
    let answer = server(|mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        stream.write_all(&request.len().to_string().into_bytes()).unwrap();
    });
    world.servers.tcp(SERVER, answer);
    let handle = guest.connected(SERVER);
    guest.send(handle, &noise(200_000));
    guest.tcp(handle).close();
    assert_eq!(guest.receive_all(handle), b"200000");
}

#[test]
fn the_outside_may_end_first() {
    let (world, mut guest) = World::new();
    let (told, rest) = mpsc::channel();
    let first = server(move |mut stream| {
        stream.write_all(b"I am done").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        told.send(request).unwrap();
    });
    world.servers.tcp(SERVER, first);
    let handle = guest.connected(SERVER);
    assert_eq!(guest.receive_all(handle), b"I am done");
    assert_eq!(guest.tcp(handle).state(), State::CloseWait);
    let bytes = noise(100_000);
    guest.send(handle, &bytes);
    guest.tcp(handle).close();
    assert_eq!(guest.until("the rest", |_| rest.try_recv().ok()), bytes);
    guest.until("an orderly end", |guest| (guest.tcp(handle).state() == State::Closed).then_some(()));
}

#[test]
fn a_reader_who_takes_his_time_loses_nothing() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, server(|mut stream| stream.write_all(&noise(1 << 20)).unwrap()));
    let handle = guest.connected(SERVER);
    // The window closes, and what does not fit stays outside.
    guest.until("a closed window", |guest| (guest.tcp(handle).recv_queue() == 128 * 1024).then_some(()));
    assert_eq!(guest.receive_all(handle), noise(1 << 20));
}

#[test]
fn the_outside_that_resets_is_a_reset_inside() {
    let (world, mut guest) = World::new();
    // Bytes that nobody has read make the end of a socket a reset.
    let rude = server(|mut stream| {
        stream.write_all(b"x").unwrap();
        let mut first = [0; 1];
        stream.read_exact(&mut first).unwrap();
    });
    world.servers.tcp(SERVER, rude);
    let handle = guest.connected(SERVER);
    guest.send(handle, &noise(100_000));
    guest.reset(handle);
}

#[test]
fn the_guest_that_resets_is_a_reset_outside() {
    let (world, mut guest) = World::new();
    let (told, ends) = mpsc::channel();
    let waiting = server(move |mut stream| {
        told.send(stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind())).unwrap();
    });
    world.servers.tcp(SERVER, waiting);
    let handle = guest.connected(SERVER);
    guest.send(handle, b"half a request");
    guest.tcp(handle).abort();
    let end = guest.until("the end", |_| ends.try_recv().ok());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

#[test]
fn what_is_refused_or_unreachable_outside_fails_fast() {
    let (world, mut guest) = World::new();
    let (_kept, nobody) = nobody(&world.runtime);
    world.servers.tcp(SERVER, nobody);
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    assert!(guest.errors.is_empty());
    let nowhere: SocketAddrV4 = "8.8.4.5:80".parse().unwrap();
    assert_eq!(guest.connect(nowhere).1, Outcome::Refused);
    assert_eq!(guest.unreachable(*nowhere.ip()), 1, "host unreachable");
}

#[test]
fn the_outside_that_does_not_answer_is_given_up() {
    let (world, mut guest) =
        World::with(crate::world::network("allow", &[], &[]), |c| c.limits.connect = Duration::from_millis(50));
    world.servers.silent(SERVER);
    assert_eq!(guest.connect(SERVER).1, Outcome::Refused);
    assert_eq!(guest.unreachable(*SERVER.ip()), 1);
}

#[test]
fn segments_of_no_connection_are_reset() {
    let (world, mut guest) = World::new();
    world.servers.tcp(SERVER, greeter(b"hello"));
    let handle = guest.connected(SERVER);
    guest.receive(handle, 5);
    // After the service's restart the guest still has its connections.
    let mut world = world;
    let mut again = world.attach_again();
    std::mem::swap(&mut guest.sockets, &mut again.sockets);
    again.send(handle, b"still there?");
    again.reset(handle);
}

#[test]
fn many_short_connections_leave_nothing_behind() {
    let (world, mut guest) =
        World::with(crate::world::network("allow", &[], &[]), |config| config.limits.tcp_flows = 4);
    // The outside ends first, which makes the gateway the one that would have to remember.
    world.servers.tcp(SERVER, server(|mut stream| stream.write_all(b"bye").unwrap()));
    for _ in 0..50 {
        let handle = guest.connected(SERVER);
        assert_eq!(guest.receive_all(handle), b"bye");
        guest.tcp(handle).close();
        guest.until("the end", |guest| (guest.tcp(handle).state() == State::Closed).then_some(()));
        guest.sockets.remove(handle);
    }
}
