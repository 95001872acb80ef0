//! A TCP flow that somebody outside has begun.

use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::flow::Flow;
use super::relay::Relay;
use crate::link::Link;
use crate::outside::Connection;
use crate::pool::Claim;

/// A flow that waits for the guest to accept.
pub(crate) struct Arriving {
    pub(crate) flow: Arc<Flow>,
    pub(crate) link: Arc<Link>,
    pub(crate) stream: TcpStream,
    /// Given back once the guest has accepted.
    pub(crate) permit: OwnedSemaphorePermit,
    /// Held as long as the connection to the outside.
    pub(crate) socket: Claim,
}

impl Arriving {
    /// Calls the guest, and carries the flow if it accepts; if not, the outside is reset.
    ///
    /// A guest that has not spoken from its address is asked until it answers. Who goes away meanwhile
    /// without a word does not come: a guest that begins would have all at once who tried whether it is there yet, and
    /// refuse the next (dropbear takes five of one address that have not logged in).
    pub(crate) async fn carry(self) {
        let Self { flow, link, mut stream, permit, socket } = self;
        let found = tokio::select! {
            found = tokio::time::timeout(link.config.limits.handshake, link.wire.find_address()) => found.is_ok(),
            () = std::future::poll_fn(|cx| flow.inbox.poll_closed(cx)) => false,
            () = gone(&stream) => false,
        };
        // The guest's own stack decides what is sent together.
        let ready = found && stream.set_nodelay(true).is_ok();
        if ready {
            Relay::calling(flow, link, Box::new(stream), permit).await;
        } else {
            stream.abort();
        }
        drop(socket);
    }
}

/// Returns once the outside has closed the connection without having said anything. One that closed only its sending half
/// looks the same, and is reset, too.
async fn gone(stream: &TcpStream) {
    match stream.peek(&mut [0]).await {
        Ok(0) | Err(_) => {}
        Ok(_) => std::future::pending().await,
    }
}
