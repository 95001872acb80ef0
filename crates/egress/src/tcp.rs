//! A TCP flow: the guest's connection ends here, and another one goes out.
//!
//! ```text
//!   SYN ─► connect ──┬─ refused, unreachable, too slow ─► RST (and ICMP) to the guest
//!                    └─ connected ─► SYN is handed to a stack of its own ─► relay, half-close, end
//! ```
//!
//! The guest's SYN is answered only once the outside has answered, so that what is refused outside is refused
//! inside. Each flow has a smoltcp interface with a single socket: a packet finds its flow by one look into a
//! table instead of by asking every socket, and flows run on all cores.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smoltcp::wire::{Icmpv4DstUnreachable, Ipv4Packet, TcpPacket};
use tokio::io::DuplexStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::dns;
use crate::gateway::{Link, SocketClaim};
use crate::outside::Connection;
use crate::packet::{self, Key, Outbound, Quote};
use crate::pool::{Claim, Pool};
use crate::queue::Queue;

mod relay;
use relay::Relay;

/// The window of a flow, which is also the size of its buffer for each direction, in bytes.
const LARGE: usize = 64 * 1024;
/// That of a flow of a sandbox that has many.
const SMALL: usize = 8 * 1024;
/// Bytes between a flow and the resolver.
const PIPE: usize = 4 * 1024;

/// The guest's end of a flow.
pub(crate) struct Flow {
    key: Key,
    inbox: Queue,
    open: AtomicBool,
    room: Room,
}

/// The bytes that a flow may hold.
pub(crate) struct Room {
    window: usize,
    _bytes: Claim,
}

impl Room {
    /// Room for one more flow, a large one as long as half of the bytes are left.
    pub(crate) fn take(buffers: &Arc<Pool>) -> Option<Self> {
        let claim = |window: usize, left| Some(Self { window, _bytes: buffers.claim(cost(window), left)? });
        claim(LARGE, buffers.most() / 2).or_else(|| claim(SMALL, 0))
    }
}

/// Bytes of packets that wait for a flow. More than its window, so that a guest that respects it loses nothing.
const fn inbox(window: usize) -> usize {
    window + window / 2
}

/// Bytes that a flow of a window holds at most: both buffers, and packets that wait and that are read.
const fn cost(window: usize) -> usize {
    2 * window + 2 * inbox(window)
}

impl Flow {
    pub(crate) fn new(key: Key, room: Room) -> Self {
        Self { key, inbox: Queue::new(inbox(room.window)), open: AtomicBool::new(false), room }
    }

    /// Takes a segment of the guest. As long as the outside is not connected only a reset matters.
    pub(crate) fn segment(&self, segment: &TcpPacket<&[u8]>, packet: &[u8]) {
        if self.open.load(Ordering::Acquire) {
            self.inbox.push(packet.len(), |buffer| buffer.copy_from_slice(packet));
        } else if segment.rst() {
            self.inbox.close();
        }
    }

    /// Ends the flow with a reset on both sides.
    pub(crate) fn revoke(&self) {
        self.inbox.close();
    }
}

/// A flow whose outside is being connected.
pub(crate) struct Opening {
    pub(crate) flow: Arc<Flow>,
    pub(crate) link: Arc<Link>,
    /// The packet that asked for it.
    pub(crate) syn: Vec<u8>,
    pub(crate) quote: Quote,
    /// Given back once the guest has finished its handshake.
    pub(crate) permit: OwnedSemaphorePermit,
    /// Held as long as the connection to the outside.
    pub(crate) socket: SocketClaim,
}

impl Opening {
    /// Connects to the outside and carries the flow.
    pub(crate) async fn outside(self, to: SocketAddrV4) {
        let connect = tokio::time::timeout(self.link.config.limits.connect, self.link.config.outside.connect(to));
        let connected = tokio::select! {
            connected = connect => connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())),
            () = std::future::poll_fn(|cx| self.flow.inbox.poll_closed(cx)) => {
                return self.refuse(&io::ErrorKind::ConnectionReset.into());
            }
        };
        match connected {
            Ok(connection) => self.carry(connection).await,
            Err(error) => self.refuse(&error),
        }
    }

    /// Connects to the resolver and carries the flow.
    pub(crate) async fn resolver(self) {
        let (near, far): (DuplexStream, DuplexStream) = tokio::io::duplex(PIPE);
        let link = Arc::clone(&self.link);
        tokio::join!(self.carry(Box::new(near)), dns::serve(&link, far));
    }

    async fn carry(self, connection: Box<dyn Connection>) {
        let Self { flow, link, syn, permit, socket, .. } = self;
        flow.inbox.push(syn.len(), |buffer| buffer.copy_from_slice(&syn));
        flow.open.store(true, Ordering::Release);
        drop(syn);
        Relay::new(flow, link, connection, permit).await;
        drop(socket);
    }

    /// Tells the guest at once. Stacks that know ICMP learn why, the reset is for those that do not.
    fn refuse(&self, error: &io::Error) {
        let reason = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => None,
            io::ErrorKind::NetworkUnreachable => Some(Icmpv4DstUnreachable::NetUnreachable),
            _ => Some(Icmpv4DstUnreachable::HostUnreachable),
        };
        if let Some(reason) = reason {
            self.link.wire.send(&Outbound::unreachable(reason, &self.quote));
        }
        let ip = Ipv4Packet::new_unchecked(self.syn.as_slice());
        let header = TcpPacket::new_checked(ip.payload()).ok().and_then(|tcp| packet::segment(self.flow.key, &tcp));
        if let Some(reset) = header.and_then(|header| Outbound::reset(self.flow.key, &header)) {
            self.link.wire.send(&reset);
        }
    }
}
