//! Forwards: ports of the outside that lead to ports of the guest.
//!
//! The caller binds the sockets, since only it knows what is free; a link accepts on them as long as a guest is
//! attached. Each forward has a task that waits for somebody to come. It accepts no connection while as many as
//! [`Limits::forward_half_open`](crate::Limits::forward_half_open) wait for the guest, and takes no datagram while the
//! link has others to look at: the rest stays in the queue of the kernel, which is bounded, too.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::outside::Connection;

/// The way of arrivals to the link.
type Sender = mpsc::Sender<(Caller, Arrival)>;

/// Arrivals that the link has not looked at yet.
const ARRIVALS: usize = 16;
/// Bytes of the largest datagram, and one more.
const LARGEST: usize = 65_536;
/// How long a forward rests whose socket takes nobody, because the process has no files left.
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

/// Who has come, by a forward, from somewhere.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) forward: Arc<Forward>,
    pub(crate) from: SocketAddr,
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.forward, &other.forward) && self.from == other.from
    }
}

/// What they have come with.
pub(crate) enum Arrival {
    /// A connection, and a permit that is given back once the guest has accepted.
    Connection(TcpStream, OwnedSemaphorePermit),
    /// A datagram.
    Datagram(Vec<u8>),
}

/// The forwards of one link. Dropping them ends their tasks.
pub(crate) struct Forwards {
    half_open: usize,
    open: Vec<(Arc<Forward>, AbortHandle)>,
    tasks: JoinSet<()>,
    sender: Sender,
    arrivals: mpsc::Receiver<(Caller, Arrival)>,
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
                let task = self.tasks.spawn(run(Arc::clone(forward), self.half_open, self.sender.clone()));
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

    /// Waits for somebody to come by a forward that is still there.
    pub(crate) async fn arrival(&mut self) -> (Caller, Arrival) {
        loop {
            match self.arrivals.recv().await {
                Some((caller, arrival)) if self.has(&caller.forward) => return (caller, arrival),
                Some((_, Arrival::Connection(stream, _))) => refuse(stream, "the forward is gone"),
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn has(&self, forward: &Arc<Forward>) -> bool {
        self.open.iter().any(|(open, _)| Arc::ptr_eq(open, forward))
    }
}

/// Tells the outside at once that nothing comes of a connection.
pub(crate) fn refuse(mut stream: TcpStream, why: &str) {
    tracing::debug!(why, "a connection to the guest is refused");
    stream.abort();
}

async fn run(forward: Arc<Forward>, half_open: usize, arrivals: Sender) {
    match &forward.socket {
        ForwardSocket::Tcp(listener) => accept(&forward, listener, Arc::new(Semaphore::new(half_open)), arrivals).await,
        ForwardSocket::Udp(socket) => receive(&forward, socket, arrivals).await,
    }
}

/// Accepts as long as the guest does.
async fn accept(forward: &Arc<Forward>, listener: &TcpListener, half_open: Arc<Semaphore>, arrivals: Sender) {
    while let Ok(permit) = Arc::clone(&half_open).acquire_owned().await {
        let (stream, from) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => rest(forward, &error).await,
            }
        };
        let caller = Caller { forward: Arc::clone(forward), from };
        if arrivals.send((caller, Arrival::Connection(stream, permit))).await.is_err() {
            return;
        }
    }
}

/// Takes datagrams as fast as the link does.
async fn receive(forward: &Arc<Forward>, socket: &UdpSocket, arrivals: Sender) {
    loop {
        let mut bytes = Vec::new();
        let received = match socket.readable().await {
            Ok(()) => {
                bytes.reserve_exact(LARGEST);
                socket.try_recv_buf_from(&mut bytes)
            }
            Err(error) => Err(error),
        };
        let from = match received {
            Ok((_, from)) => from,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                rest(forward, &error).await;
                continue;
            }
        };
        bytes.shrink_to_fit();
        let caller = Caller { forward: Arc::clone(forward), from };
        if arrivals.send((caller, Arrival::Datagram(bytes))).await.is_err() {
            return;
        }
    }
}

async fn rest(forward: &Forward, error: &io::Error) {
    tracing::debug!(guest_port = forward.guest_port, %error, "a forward takes nobody");
    tokio::time::sleep(REST).await;
}
