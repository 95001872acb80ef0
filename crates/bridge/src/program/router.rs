//! IPv6: a router that says that addresses are to be had by DHCP, and DHCP that gives each guest its own.
//!
//! A guest asks from its address on the link, which tells its link address where it follows from that (RFC 4291, appendix A), as
//! it does by default in Linux. One whose address there is made up otherwise gets none here, and goes on with IPv4.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use berth_egress::dhcp6::{self, Lease};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::told::Told;
use crate::GATEWAY_MAC;
use crate::mac::Mac;

/// Everybody on the link.
const ALL: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Largest message that is read, in bytes.
const LARGEST: usize = 1500;
/// How long guests may believe that the router is there, in seconds (RFC 8319), and after how long they are told again.
const LIFETIME: u16 = u16::MAX;
const AGAIN: Duration = Duration::from_hours(6);
/// The least time between two messages to all of them (RFC 4861, 6.2.6), whoever asks.
const LEAST: Duration = Duration::from_secs(3);
/// Messages and options, by their numbers (RFC 4861, 4).
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
const LINK_ADDRESS: u8 = 1;
const MTU: u8 = 5;
/// Addresses are to be had by DHCP.
const MANAGED: u8 = 0x80;
const HOPS: u8 = 64;
const ETHERNET: u16 = 1500;

/// Tells guests who their router is, until the socket fails.
pub(super) async fn advertise(socket: UdpSocket, told: &Told, device: u32) -> io::Result<()> {
    let mut buffer = vec![0; LARGEST];
    let tell = |to| {
        let (message, to) = (advertisement(told), SocketAddrV6::new(to, 0, 0, device));
        let socket = &socket;
        // Where nobody is, nobody hears it.
        async move { drop(socket.send_to(&message, to).await) }
    };
    // When all were told, and are told next.
    let (mut last, mut next) = (Instant::now(), Instant::now());
    loop {
        tokio::select! {
            () = sleep_until(next) => {
                tell(ALL).await;
                last = Instant::now();
                next = last + AGAIN;
            }
            received = socket.recv_from(&mut buffer) => match received?.1.ip() {
                _ if buffer.first() != Some(&SOLICITATION) => {}
                IpAddr::V6(from) if from.is_unicast_link_local() => tell(from).await,
                // Who has no address yet is told with all others.
                _ => next = next.min(last + LEAST),
            },
        }
    }
}

fn advertisement(told: &Told) -> Vec<u8> {
    let [high, low] = LIFETIME.to_be_bytes();
    let head = [ADVERTISEMENT, 0, 0, 0, HOPS, MANAGED, high, low, 0, 0, 0, 0, 0, 0, 0, 0];
    let mtu = u32::from(told.now().settings.mtu.unwrap_or(ETHERNET)).to_be_bytes();
    [&head[..], &[LINK_ADDRESS, 1], &GATEWAY_MAC.0, &[MTU, 1, 0, 0], &mtu].concat()
}

/// Gives guests their addresses, until the socket fails.
pub(super) async fn lend(socket: UdpSocket, told: &Told) -> io::Result<()> {
    let mut buffer = vec![0; LARGEST];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await?;
        let Some(answer) = buffer.get(..len).and_then(|message| answer(message, from, told)) else { continue };
        let _ = socket.send_to(&answer, from).await;
    }
}

fn answer(message: &[u8], from: SocketAddr, told: &Told) -> Option<Vec<u8>> {
    let (IpAddr::V6(ip), wanted) = (from.ip(), told.now()) else { return None };
    let machine = wanted.by_mac(Mac::of_link_local(ip)?)?;
    let resolver = wanted.settings.gateway6()?;
    dhcp6::answer(message, &Lease { guest: machine.address6?, prefix: 64, resolver, server: GATEWAY_MAC.0 })
}
