//! Pings to the outside: between one identifier of the guest and one address.
//!
//! They go over a socket for ICMP that needs no rights, where the kernel lets this process have one. Where it does not, a
//! ping is not answered, as if its way were lossy.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use crate::link::Link;
use crate::packet::{Key, Outbound};
use crate::udp::{Datagram, Flow};

/// Bytes of a message before its data.
const HEADER: usize = 8;
/// Bytes of the largest message, and one more.
const LARGEST: usize = 65_536;
/// Messages of ICMP (RFC 792) and of ICMPv6 (RFC 4443).
const REQUEST: u8 = 8;
const REPLY: u8 = 0;
const REQUEST6: u8 = 128;
const REPLY6: u8 = 129;

/// A request. The kernel writes its identifier and its checksum.
pub(crate) fn request(to: IpAddr, seq_no: u16, data: &[u8]) -> Vec<u8> {
    let [high, low] = seq_no.to_be_bytes();
    let kind = if to.is_ipv4() { REQUEST } else { REQUEST6 };
    [&[kind, 0, 0, 0, 0, 0, high, low], data].concat()
}

/// The number of a reply, and its data.
fn reply(of: IpAddr, message: &[u8]) -> Option<(u16, &[u8])> {
    let (header, data) = message.split_first_chunk::<HEADER>()?;
    let kind = if of.is_ipv4() { REPLY } else { REPLY6 };
    let [found, 0, .., high, low] = *header else { return None };
    (found == kind).then_some((u16::from_be_bytes([high, low]), data))
}

/// Carries a flow until nobody has used it for a while.
pub(crate) async fn run(flow: Arc<Flow>, mut requests: mpsc::Receiver<Datagram>, link: Arc<Link>, key: Key) {
    let socket = match link.config.outside.echoes(key.to.ip()).await {
        Ok(socket) => socket,
        Err(error) => return tracing::debug!(%error, "a ping is not answered"),
    };
    loop {
        let passed = tokio::select! {
            request = requests.recv() => match request {
                Some((request, _claim)) => socket.send(&request).await.map(|_| ()),
                None => return,
            },
            ready = socket.readable() => match ready {
                Ok(()) => receive(&flow, &socket, &link, key),
                Err(error) => Err(error),
            },
            () = tokio::time::sleep_until(flow.last() + link.config.limits.udp_idle) => {
                if flow.last().elapsed() >= link.config.limits.udp_idle {
                    return;
                }
                Ok(())
            }
        };
        if let Err(error) = passed {
            tracing::trace!(%error, "a ping is not answered");
        }
    }
}

fn receive(flow: &Flow, socket: &UdpSocket, link: &Link, key: Key) -> std::io::Result<()> {
    let mut message = Vec::with_capacity(LARGEST);
    match socket.try_recv_buf(&mut message) {
        Ok(_) => {
            flow.touch();
            if let Some((seq_no, data)) = reply(key.to.ip(), &message) {
                link.wire.send(&Outbound::pong(key, seq_no, data));
            }
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replies_are_replies() {
        let addresses: [IpAddr; 2] = [[9, 9, 9, 9].into(), [0x2600; 8].into()];
        for (address, (asks, answers)) in addresses.into_iter().zip([(REQUEST, REPLY), (REQUEST6, REPLY6)]) {
            assert_eq!(request(address, 258, b"x"), [asks, 0, 0, 0, 0, 0, 1, 2, b'x']);
            assert_eq!(reply(address, &[answers, 0, 9, 9, 7, 7, 1, 2, b'x']), Some((258, &b"x"[..])));
            assert_eq!(reply(address, &[answers, 0, 9, 9, 7, 7, 1, 2]), Some((258, &[][..])));
            for none in
                [&[answers, 0, 9, 9, 7, 7, 1][..], &[asks, 0, 9, 9, 7, 7, 1, 2], &[answers, 1, 9, 9, 7, 7, 1, 2], &[]]
            {
                assert_eq!(reply(address, none), None);
            }
        }
    }
}
