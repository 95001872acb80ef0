//! DHCP: leases that follow from the list of machines.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use berth_egress::dhcp::{self, Lease};
use tokio::net::UdpSocket;

use super::told::Told;
use crate::mac::Mac;

/// Largest message that is read, in bytes: a link of the default size has no larger ones.
const LARGEST: usize = 1500;
/// What packets are where nothing says how large they may be; the bridge says it.
const ETHERNET: u16 = 1500;

/// Answers on a socket, until that fails.
pub(super) async fn serve(socket: UdpSocket, told: &Told) -> io::Result<()> {
    let mut buffer = vec![0; LARGEST];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await?;
        let Some(answer) = buffer.get(..len).and_then(|message| answer(message, from.ip(), told)) else {
            continue;
        };
        let to = SocketAddr::from((answer.to, dhcp::CLIENT));
        // A guest that is gone is told nothing.
        let _ = socket.send_to(&answer.bytes, to).await;
    }
}

fn answer(message: &[u8], from: IpAddr, told: &Told) -> Option<dhcp::Answer> {
    let mac = Mac(dhcp::client(message)?);
    let wanted = told.now();
    let machine = wanted.by_mac(mac)?;
    // Who has an address asks from it.
    let is_theirs = from == IpAddr::V4(Ipv4Addr::UNSPECIFIED) || from == IpAddr::V4(machine.address);
    let (settings, guest) = (&wanted.settings, machine.address);
    let (gateway, mtu) = (settings.gateway(), settings.mtu.unwrap_or(ETHERNET));
    let lease = Lease { guest, prefix: settings.subnet.prefix_len(), gateway, resolver: gateway, mtu };
    is_theirs.then(|| dhcp::answer(message, &lease)).flatten()
}
