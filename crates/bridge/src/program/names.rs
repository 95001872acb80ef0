//! Names: questions of guests go on to the host's resolvers. Whether a guest may ask is judged by the bridge's rules.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_egress::Resolvers;
use berth_egress::dns::{Transport, forward};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::told::Told;

/// How long one resolver may take.
const RESOLVER: Duration = Duration::from_secs(2);
/// How long a connection may say nothing, and take to take an answer.
const IDLE: Duration = Duration::from_secs(10);
/// Questions and connections under way: of all guests, and of one. Further ones are not heard; who asks by datagrams asks
/// again.
const MOST: usize = 1024;
const MOST_OF_ONE: usize = 64;
/// Largest question by datagram, in bytes (RFC 6891, 6.2.5).
const LARGEST: usize = 4096;

/// Who has something under way.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Something under way.
struct Held(UnderWay, IpAddr);

impl UnderWay {
    fn hold(&self, who: IpAddr) -> Option<Held> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = all.values().sum();
        let own = all.entry(who).or_default();
        if total >= MOST || *own >= MOST_OF_ONE {
            return None;
        }
        *own += 1;
        Some(Held(self.clone(), who))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                all.remove(&self.1);
            }
        }
    }
}

/// Who is asked.
fn resolvers(told: &Told) -> Resolvers {
    let own = told.now().settings.resolvers.clone();
    if own.is_empty() { Resolvers::System } else { Resolvers::Fixed(own) }
}

/// Answers datagrams, until the socket fails.
pub(super) async fn datagrams(socket: UdpSocket, told: Arc<Told>, under_way: UnderWay) -> io::Result<()> {
    let (socket, mut buffer) = (Arc::new(socket), vec![0; LARGEST]);
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await?;
        let (Some(query), Some(held)) = (buffer.get(..len).map(<[u8]>::to_vec), under_way.hold(from.ip())) else {
            continue;
        };
        let (socket, resolvers) = (Arc::clone(&socket), resolvers(&told));
        tokio::spawn(async move {
            if let Some(answer) = forward(&resolvers, RESOLVER, &query, Transport::Udp).await {
                let _ = socket.send_to(&answer, from).await;
            }
            drop(held);
        });
    }
}

/// Answers connections, until the socket fails.
pub(super) async fn connections(listener: TcpListener, told: Arc<Told>, under_way: UnderWay) -> io::Result<()> {
    loop {
        let (stream, from): (TcpStream, SocketAddr) = listener.accept().await?;
        let Some(held) = under_way.hold(from.ip()) else { continue };
        let told = Arc::clone(&told);
        tokio::spawn(async move {
            let _ = converse(stream, &told).await;
            drop(held);
        });
    }
}

async fn converse(mut stream: TcpStream, told: &Told) -> io::Result<()> {
    loop {
        let mut query = vec![0; timeout(IDLE, stream.read_u16()).await??.into()];
        timeout(IDLE, stream.read_exact(&mut query)).await??;
        let Some(answer) = forward(&resolvers(told), RESOLVER, &query, Transport::Tcp).await else { return Ok(()) };
        let len = u16::try_from(answer.len()).map_err(io::Error::other)?;
        timeout(IDLE, stream.write_all(&[&len.to_be_bytes(), &answer[..]].concat())).await??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_guest_leaves_room_for_others() {
        let (under_way, one, other) =
            (UnderWay::default(), IpAddr::from([10, 127, 0, 2]), IpAddr::from([10, 127, 0, 3]));
        let mut held: Vec<_> = (0..MOST_OF_ONE).map(|_| under_way.hold(one).unwrap()).collect();
        assert!(under_way.hold(one).is_none() && under_way.hold(other).is_some());
        held.pop();
        assert!(under_way.hold(one).is_some());
        held.clear();
        assert!(under_way.0.lock().unwrap().is_empty(), "nothing is kept of who is done");
        let all: Vec<_> =
            (0..MOST).map(|n| under_way.hold([10, 127, 1, u8::try_from(n / MOST_OF_ONE).unwrap()].into())).collect();
        assert!(all.iter().all(Option::is_some) && under_way.hold(other).is_none());
    }
}
