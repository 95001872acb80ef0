//! A UDP flow: datagrams between one port of the guest and one address outside.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::forward::{Caller, ForwardSocket};
use crate::link::Link;
use crate::packet::{Key, MAX_DATAGRAM, Outbound, Quote, Reason};
use crate::pool::{Claim, Pool};

/// Datagrams that wait for the outside; more are dropped.
const WAITING: usize = 64;

/// A datagram that waits, and its bytes of all that may.
pub(crate) type Datagram = (Vec<u8>, Claim);

/// The guest's end of a flow.
pub(crate) struct Flow {
    datagrams: mpsc::Sender<Datagram>,
    born: Instant,
    last: AtomicU64,
}

impl Flow {
    /// A flow, and the datagrams that are sent over it.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Datagram>) {
        let (datagrams, receiver) = mpsc::channel(WAITING);
        (Self { datagrams, born: Instant::now(), last: AtomicU64::new(0) }, receiver)
    }

    /// Sends a datagram, or drops it where the outside does not keep up.
    pub(crate) fn send(&self, payload: &[u8], waiting: &Arc<Pool>) {
        self.touch();
        let sent = waiting.claim(payload.len(), 0).map(|claim| self.datagrams.try_send((payload.to_vec(), claim)));
        if !matches!(sent, Some(Ok(()))) {
            tracing::trace!("a datagram is dropped: the outside does not keep up");
        }
    }

    /// When the flow was last used.
    pub(crate) fn last(&self) -> Instant {
        self.born + Duration::from_micros(self.last.load(Ordering::Relaxed))
    }

    /// Notes that the flow is used.
    pub(crate) fn touch(&self) {
        let micros = u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros, Ordering::Relaxed);
    }
}

/// Carries a flow until nobody has used it for a while.
pub(crate) async fn run(
    flow: Arc<Flow>,
    mut datagrams: mpsc::Receiver<Datagram>,
    link: Arc<Link>,
    key: Key,
    to: SocketAddr,
) {
    let socket = match link.config.outside.datagrams(to).await {
        Ok(socket) => socket,
        Err(error) => return unreachable(&link, key, &error),
    };
    loop {
        let idle = tokio::time::sleep_until(flow.last() + link.config.limits.udp_idle);
        let passed = tokio::select! {
            datagram = datagrams.recv() => match datagram {
                Some((datagram, _claim)) => socket.send(&datagram).await.map(|_| ()),
                None => return,
            },
            ready = socket.ready(Interest::READABLE | Interest::ERROR) => match ready {
                Ok(ready) if ready.is_error() => error_of(&socket),
                Ok(_) => receive(&flow, &socket, &link, key),
                Err(error) => Err(error),
            },
            () = idle => {
                if flow.last().elapsed() >= link.config.limits.udp_idle {
                    return;
                }
                Ok(())
            }
        };
        if let Err(error) = passed {
            unreachable(&link, key, &error);
        }
    }
}

/// Sends what the guest answers to who has come by a forward, until nobody has said anything for a while.
pub(crate) async fn answer(flow: Arc<Flow>, mut datagrams: mpsc::Receiver<Datagram>, link: Arc<Link>, caller: Caller) {
    let ForwardSocket::Udp(socket) = &caller.forward.socket else { return };
    loop {
        tokio::select! {
            datagram = datagrams.recv() => {
                let Some((datagram, _claim)) = datagram else { return };
                if let Err(error) = socket.send_to(&datagram, caller.from).await {
                    tracing::trace!(%error, "a datagram is dropped");
                }
            }
            () = tokio::time::sleep_until(flow.last() + link.config.limits.udp_idle) => {
                if flow.last().elapsed() >= link.config.limits.udp_idle {
                    return;
                }
            }
        }
    }
}

/// Hands one datagram of the outside to the guest.
fn receive(flow: &Flow, socket: &UdpSocket, link: &Link, key: Key) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(MAX_DATAGRAM + 1);
    match socket.try_recv_buf(&mut buffer) {
        Ok(_) => {
            flow.touch();
            link.wire.send(&Outbound::datagram(key, &buffer));
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// What ICMP has said of a datagram. A kernel reports it as an error of the socket that is no end of it.
fn error_of(socket: &UdpSocket) -> io::Result<()> {
    let error = socket.take_error()?;
    match socket.try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into())) {
        Err(cleared) if cleared.kind() == io::ErrorKind::WouldBlock => error.map_or(Ok(()), Err),
        other => other,
    }
}

fn unreachable(link: &Link, key: Key, error: &io::Error) {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => Reason::Port,
        io::ErrorKind::NetworkUnreachable => Reason::Network,
        _ => Reason::Host,
    };
    link.wire.send(&Outbound::unreachable(reason, &Quote::datagram(key, 0)));
}
