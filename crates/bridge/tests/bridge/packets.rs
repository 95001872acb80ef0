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
    // One socket for each address: an answer goes from the one that was asked.
    for own in own_addresses() {
        let socket = UdpSocket::bind((own, port)).unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        });
    }
}

/// The addresses of this thread's place that need no device with them.
fn own_addresses() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().unwrap().filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    all.filter(|ip| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())).collect()
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
