//! Ports of services that no other test's service takes.

use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

/// Ports of services: below those that Linux gives to connections (from 32768 on), so that no connection takes the port
/// of a service that is starting again.
const PORTS: Range<u32> = 10_000..32_000;

/// A free port, and a reservation that keeps other tests' services from it.
pub fn free_port() -> (u16, UnixDatagram) {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Concurrent processes begin at different places.
    let first = std::process::id().wrapping_mul(101);
    let of = |n: u32| u16::try_from(PORTS.start + first.wrapping_add(n) % (PORTS.end - PORTS.start)).ok();
    let next = || of(TAKEN.fetch_add(1, Ordering::Relaxed));
    let free = |port: u16| {
        let held = hold(port)?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| (port, held))
    };
    std::iter::repeat_with(next).take(PORTS.len()).flatten().find_map(free).expect("a free port")
}

/// Reserves a port against other services until it is dropped, whether anything listens or not: by a name that only one
/// socket of a network namespace can have, just like a port.
fn hold(port: u16) -> Option<UnixDatagram> {
    let name = SocketAddr::from_abstract_name(format!("berth-test-port-{port}")).ok()?;
    UnixDatagram::bind_addr(&name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_nobody_else_s_before_anybody_listens() {
        let (port, _held) = free_port();
        assert!(hold(port).is_none());
    }
}
