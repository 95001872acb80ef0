//! Forwards: ports of the outside that lead to ports of the guest.
//!
//! The caller binds the sockets, since only it knows what is free; a link accepts on them as long as a guest is
//! attached. Each forward has a task that waits for somebody to come, and waits no more while as many as
//! [`Limits::forward_half_open`](crate::Limits::forward_half_open) wait for the guest: the rest stays in the queue of
//! the kernel, which is bounded, too.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

/// Connections that were accepted and that the link has not looked at yet.
const ARRIVALS: usize = 16;
/// How long a forward rests whose socket does not accept, because the process has no files left.
const REST: Duration = Duration::from_millis(200);

/// A port of the outside that leads to one of the guest. It is the same forward as long as it is the same `Arc`.
#[derive(Debug)]
pub struct Forward {
    /// The port of the guest.
    pub guest_port: u16,
    /// Where others come to.
    pub socket: ForwardSocket,
}

/// A bound socket, which says the protocol.
#[derive(Debug)]
pub enum ForwardSocket {
    /// Connections.
    Tcp(TcpListener),
    /// Datagrams.
    Udp(UdpSocket),
}

/// Somebody who has come.
pub(crate) struct Arrival {
    pub(crate) forward: Arc<Forward>,
    pub(crate) stream: TcpStream,
    /// Given back once the guest has accepted.
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Arrival {
    /// Tells the outside at once that nothing comes of it.
    pub(crate) fn refuse(self, why: &str) {
        tracing::debug!(guest_port = self.forward.guest_port, why, "a connection to the guest is refused");
        crate::outside::Connection::abort(&mut { self.stream });
    }
}

/// The forwards of one link. Dropping them ends their tasks.
pub(crate) struct Forwards {
    half_open: usize,
    open: Vec<(Arc<Forward>, AbortHandle)>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Arrival>,
    arrivals: mpsc::Receiver<Arrival>,
}

impl Forwards {
    /// None yet.
    pub(crate) fn new(half_open: usize) -> Self {
        let (sender, arrivals) = mpsc::channel(ARRIVALS);
        Self { half_open, open: Vec::new(), tasks: JoinSet::new(), sender, arrivals }
    }

    /// Makes the forwards these, and answers which are gone. Those that stay are not disturbed.
    pub(crate) fn set(&mut self, newest: &[Arc<Forward>]) -> Vec<Arc<Forward>> {
        let stays = |forward: &Arc<Forward>| newest.iter().any(|new| Arc::ptr_eq(new, forward));
        let (stay, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.open).into_iter().partition(|(forward, _)| stays(forward));
        self.open = stay;
        for forward in newest {
            if !self.has(forward) {
                let half_open = Arc::new(Semaphore::new(self.half_open));
                let task = self.tasks.spawn(accept(Arc::clone(forward), half_open, self.sender.clone()));
                self.open.push((Arc::clone(forward), task));
            }
        }
        while self.tasks.try_join_next().is_some() {}
        let end = |(forward, task): (Arc<Forward>, AbortHandle)| {
            task.abort();
            forward
        };
        gone.into_iter().map(end).collect()
    }

    /// Waits for somebody to come over a forward that is still there.
    pub(crate) async fn arrival(&mut self) -> Arrival {
        loop {
            match self.arrivals.recv().await {
                Some(arrival) if self.has(&arrival.forward) => return arrival,
                Some(arrival) => arrival.refuse("the forward is gone"),
                None => std::future::pending().await,
            }
        }
    }

    fn has(&self, forward: &Arc<Forward>) -> bool {
        self.open.iter().any(|(open, _)| Arc::ptr_eq(open, forward))
    }
}

/// Accepts for a forward, as long as the guest answers.
async fn accept(forward: Arc<Forward>, half_open: Arc<Semaphore>, arrivals: mpsc::Sender<Arrival>) {
    let ForwardSocket::Tcp(listener) = &forward.socket else { return };
    while let Ok(permit) = Arc::clone(&half_open).acquire_owned().await {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::debug!(guest_port = forward.guest_port, %error, "a forward does not accept");
                    tokio::time::sleep(REST).await;
                }
            }
        };
        let arrival = Arrival { forward: Arc::clone(&forward), stream, permit };
        if arrivals.send(arrival).await.is_err() {
            return;
        }
    }
}
