//! What is tried with packets, in a place.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::place::{Place, set};

/// How long an answer may take, and how long silence is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const SILENCE: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Somebody answered.
    Answered,
    /// Somebody said no.
    Refused,
    /// Nobody said anything.
    Silent,
}
pub use Outcome::{Answered, Refused, Silent};

fn outcome(error: &std::io::Error) -> Outcome {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Silent,
        _ => Refused,
    }
}

pub fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// Echoes what comes by TCP and by UDP at a port of all addresses, as long as the place is there.
pub fn serve(place: &Place, port: u16) {
    place.run(move || listen(port));
}

/// The same in this thread's place.
pub fn listen(port: u16) {
    let listener = TcpListener::bind(("::", port)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // Who it is that came, first: so that somebody can be told from another.
                let who = stream.peer_addr().map(|peer| peer.ip().to_canonical().to_string());
                let _ = stream.write_all(format!("{}\n", who.unwrap_or_default()).as_bytes());
                let mut buffer = [0; 1024];
                while let Ok(len @ 1..) = stream.read(&mut buffer) {
                    let _ = stream.write_all(&buffer[..len]);
                }
            });
        }
    });
    // One socket for each family: an answer goes from the address that was asked.
    for any in ["0.0.0.0", "::"] {
        let socket = socket2(any, port);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    }
}

fn socket2(any: &str, port: u16) -> UdpSocket {
    let address = at(any, port);
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
    }
    rustix::net::bind(&socket, &address).unwrap();
    UdpSocket::from(socket)
}

/// A connection, and who the other side says that it came from.
pub fn dial(to: SocketAddr, is_to_answer: bool) -> Result<(TcpStream, String), Outcome> {
    let patience = if is_to_answer { PATIENCE } else { SILENCE };
    let mut stream = TcpStream::connect_timeout(&to, patience).map_err(|error| outcome(&error))?;
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\n") {
        stream.read_exact(&mut byte).map_err(|error| outcome(&error))?;
        line.extend(byte);
    }
    Ok((stream, String::from_utf8(line).unwrap().trim().to_owned()))
}

/// Whether a connection carries.
pub fn carries(stream: &mut TcpStream, is_to_answer: bool) -> bool {
    stream.set_read_timeout(Some(if is_to_answer { PATIENCE } else { SILENCE })).unwrap();
    let mut buffer = [0; 4];
    stream.write_all(b"echo").is_ok() && stream.read_exact(&mut buffer).is_ok() && &buffer == b"echo"
}

pub fn tcp(to: SocketAddr, expected: Outcome) -> Outcome {
    dial(to, expected != Silent).map_or_else(|outcome| outcome, |_| Answered)
}

pub fn udp(to: SocketAddr, expected: Outcome) -> Outcome {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.set_read_timeout(Some(if expected == Silent { SILENCE } else { PATIENCE })).unwrap();
    let ask = || {
        socket.connect(to)?;
        socket.send(b"anybody?")?;
        socket.recv(&mut [0; 64])
    };
    ask().map_or_else(|error| outcome(&error), |_| Answered)
}

pub fn ping(to: IpAddr, expected: Outcome) -> Outcome {
    set("ipv4/ping_group_range", "0 2147483647");
    let (family, protocol, kind) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128),
    };
    let socket: OwnedFd = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, Some(protocol)).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(if expected == Silent { SILENCE } else { PATIENCE })).unwrap();
    let ask = || {
        socket.connect((to, 0))?;
        socket.send(&[kind, 0, 0, 0, 0, 0, 0, 1, b'?'])?;
        socket.recv(&mut [0; 64])
    };
    ask().map_or_else(|error| outcome(&error), |_| Answered)
}
