//! A TCP flow: the guest's connection ends here, and another one goes out.
//!
//! ```text
//!   SYN ─► connect ──┬─ refused, unreachable, too slow ─► RST (and ICMP) to the guest
//!                    └─ connected ─► SYN is handed to a stack of its own ─► relay, half-close, end
//! ```
//!
//! The guest's SYN is answered only once the outside has answered, so that what is refused outside is refused
//! inside. Of who comes from outside the kernel has accepted before anybody is asked; what the guest refuses is reset
//! there ([`Arriving`]). Each flow has a smoltcp interface with a single socket: a packet finds its flow by one look into a
//! table instead of by asking every socket, and flows run on all cores.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::sync::OwnedSemaphorePermit;

use crate::dns;
use crate::link::Link;
use crate::outside::Connection;
use crate::packet::{self, Inbound, Outbound, Quote, Reason};
use crate::pool::Claim;

mod arriving;
mod flow;
mod relay;

pub(crate) use arriving::Arriving;
pub(crate) use flow::{Flow, Room};
use relay::Relay;

/// Bytes between a flow and the resolver.
const PIPE: usize = 4 * 1024;

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
    pub(crate) socket: Claim,
}

impl Opening {
    /// Connects to the outside and carries the flow.
    pub(crate) async fn outside(self, to: SocketAddr) {
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
        flow.begin(&syn);
        drop(syn);
        Relay::listening(flow, link, connection, permit).await;
        drop(socket);
    }

    /// Tells the guest at once. Stacks that know ICMP learn why, the reset is for those that do not.
    fn refuse(&self, error: &io::Error) {
        let reason = match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => None,
            io::ErrorKind::NetworkUnreachable => Some(Reason::Network),
            _ => Some(Reason::Host),
        };
        if let Some(reason) = reason {
            self.link.wire.send(&Outbound::unreachable(reason, &self.quote));
        }
        let Some(Inbound::Tcp { key, segment, .. }) = packet::whole(&self.syn) else { return };
        let header = packet::segment(key, &segment);
        if let Some(reset) = header.and_then(|header| Outbound::reset(key, &header)) {
            self.link.wire.send(&reset);
        }
    }
}
