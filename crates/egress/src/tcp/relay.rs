//! The life of a connected flow: packets of the guest on one side, a stream on the other.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{HardwareAddress, IpCidr, IpEndpoint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;

use super::flow::Flow;
use crate::MTU;
use crate::link::Link;
use crate::outside::Connection;
use crate::queue::{self, Taken};

/// Shortest wait for a timer of the stack.
const TICK: Duration = Duration::from_millis(1);
/// How long after both ends the stack may still have something to say. Less than its TIME-WAIT of 10 s.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Turns of a flow before others have theirs.
const TURNS: usize = 16;

/// A connected flow; a future that ends with it.
pub(super) struct Relay {
    flow: Arc<Flow>,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    card: Card,
    connection: Box<dyn Connection>,
    timer: Pin<Box<Sleep>>,
    handshake: Option<(OwnedSemaphorePermit, Instant)>,
    time_wait: Option<Instant>,
    /// The guest has said that it sends no more.
    guest_done: bool,
    /// The outside has been told so.
    shut: bool,
    /// The outside has said that it sends no more.
    outside_done: bool,
    /// Both have ended in order.
    ended: bool,
}

/// What a turn came to.
enum Turn {
    Moved,
    Nothing,
    Over,
}

impl Relay {
    /// A flow that the guest has begun: its request is the first packet of the inbox.
    pub(super) fn listening(
        flow: Arc<Flow>,
        link: Arc<Link>,
        connection: Box<dyn Connection>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self::new(flow, link, connection, permit, |_, socket, near, _| socket.listen(near).is_ok())
    }

    /// A flow that begins with a request to the guest.
    pub(super) fn calling(
        flow: Arc<Flow>,
        link: Arc<Link>,
        connection: Box<dyn Connection>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let begin = |interface: &mut Interface, socket: &mut Socket<'_>, near: IpEndpoint, guest: IpEndpoint| {
            socket.connect(interface.context(), guest, near).is_ok()
        };
        Self::new(flow, link, connection, permit, begin)
    }

    fn new(
        flow: Arc<Flow>,
        link: Arc<Link>,
        connection: Box<dyn Connection>,
        permit: OwnedSemaphorePermit,
        begin: impl FnOnce(&mut Interface, &mut Socket<'_>, IpEndpoint, IpEndpoint) -> bool,
    ) -> Self {
        let now = Instant::now();
        let handshake = link.config.limits.handshake;
        let mut card = Card { link, inbox: Vec::new(), at: 0, forced: false };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = RandomState::new().hash_one(flow.key);
        let mut interface = Interface::new(config, &mut card, now.into());
        let (near, guest) = (IpEndpoint::from(flow.key.to), IpEndpoint::from(flow.key.guest));
        let routes = interface.routes_mut();
        let mut fits = match flow.key.guest.ip() {
            IpAddr::V4(guest) => routes.add_default_ipv4_route(guest).is_ok(),
            IpAddr::V6(guest) => routes.add_default_ipv6_route(guest).is_ok(),
        };
        let own = IpCidr::new(near.addr, if flow.key.to.is_ipv4() { 32 } else { 128 });
        interface.update_ip_addrs(|list| fits &= list.push(own).is_ok());
        let buffer = || SocketBuffer::new(vec![0; flow.room.window]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        fits &= begin(&mut interface, &mut socket, near, guest);
        if !fits {
            tracing::error!("a stack does not take its own address, route and port");
        }
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self {
            flow,
            interface,
            sockets,
            handle,
            card,
            connection,
            timer: Box::pin(tokio::time::sleep(handshake)),
            handshake: Some((permit, now + handshake)),
            time_wait: None,
            guest_done: false,
            shut: false,
            outside_done: false,
            ended: false,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Packets in, bytes across, packets out.
    fn turn(&mut self, cx: &mut Context<'_>) -> io::Result<Turn> {
        let taken = self.take(cx)?;
        self.packets();
        let state = self.socket().state();
        self.guest_done |= matches!(state, State::CloseWait | State::LastAck | State::Closing | State::TimeWait);
        self.check_handshake(state)?;
        let moved = self.carry_out(cx)? | self.carry_in(cx)?;
        if moved {
            self.packets();
        }
        if self.over()? {
            return Ok(Turn::Over);
        }
        let more = taken || moved || (!self.card.drained() && self.card.link.wire.room());
        Ok(if more { Turn::Moved } else { Turn::Nothing })
    }

    /// Takes what the guest has sent, once what it sent before is through.
    fn take(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let inbox = &self.flow.inbox;
        let taken = if self.card.drained() {
            self.card.clear();
            inbox.poll_take(cx, &mut self.card.inbox)
        } else {
            inbox.poll_closed(cx).map(|()| Taken::Closed)
        };
        match taken {
            Poll::Ready(Taken::Closed) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Ready(Taken::Packets) => Ok(true),
            Poll::Pending => Ok(false),
        }
    }

    /// Lets the stack work.
    fn packets(&mut self) {
        let now = Instant::now();
        if self.socket().state() == State::TimeWait && self.time_wait.is_none() {
            self.time_wait = Some(now);
        }
        if self.dormant(now) {
            self.card.clear();
        } else {
            self.interface.poll(now.into(), &mut self.card, &mut self.sockets);
        }
    }

    /// Whether the stack has said its last word. Its end of TIME-WAIT must not come, because it would drop what
    /// the outside has not taken yet.
    fn dormant(&self, now: Instant) -> bool {
        self.time_wait.is_some_and(|since| now.duration_since(since) >= LAST_WORD)
    }

    /// When the stack wants to work again.
    fn stack_delay(&mut self, now: Instant) -> Option<Duration> {
        if self.dormant(now) {
            return None;
        }
        self.interface.poll_delay(now.into(), &self.sockets).map(Duration::from)
    }

    fn check_handshake(&mut self, state: State) -> io::Result<()> {
        let Some((_, until)) = &self.handshake else { return Ok(()) };
        match state {
            State::Listen | State::SynSent | State::SynReceived if Instant::now() < *until => Ok(()),
            State::Listen | State::SynSent | State::SynReceived => Err(io::ErrorKind::TimedOut.into()),
            _ => {
                self.flow.answered();
                self.handshake = None;
                Ok(())
            }
        }
    }

    fn carry_out(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        while socket.can_recv() {
            let connection = &mut self.connection;
            let written = socket.recv(|bytes| match Pin::new(connection).poll_write(cx, bytes) {
                Poll::Ready(Ok(count)) => (count, Poll::Ready(Ok(count))),
                other => (0, other),
            });
            match written {
                Ok(Poll::Ready(Ok(0))) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(Poll::Ready(Ok(_))) => moved = true,
                Ok(Poll::Ready(Err(error))) => return Err(error),
                Ok(Poll::Pending) | Err(_) => return Ok(moved),
            }
        }
        if self.guest_done && !self.shut && Pin::new(&mut self.connection).poll_shutdown(cx)?.is_ready() {
            self.shut = true;
            moved = true;
        }
        Ok(moved)
    }

    fn carry_in(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut moved = false;
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        while !self.outside_done && socket.can_send() {
            let connection = &mut self.connection;
            let read = socket.send(|space| {
                let mut buffer = ReadBuf::new(space);
                match Pin::new(connection).poll_read(cx, &mut buffer) {
                    Poll::Ready(Ok(())) => (buffer.filled().len(), Poll::Ready(Ok(buffer.filled().len()))),
                    Poll::Ready(Err(error)) => (0, Poll::Ready(Err(error))),
                    Poll::Pending => (0, Poll::Pending),
                }
            });
            match read {
                Ok(Poll::Ready(Ok(0))) => {
                    self.outside_done = true;
                    socket.close();
                    moved = true;
                }
                Ok(Poll::Ready(Ok(_))) => moved = true,
                Ok(Poll::Ready(Err(error))) => return Err(error),
                Ok(Poll::Pending) | Err(_) => break,
            }
        }
        Ok(moved)
    }

    /// Whether both sides have ended in order; an end out of order is an error.
    fn over(&mut self) -> io::Result<bool> {
        let through = self.shut && self.socket().recv_queue() == 0;
        match self.socket().state() {
            State::TimeWait => {
                let quiet = self.stack_delay(Instant::now()).is_none_or(|delay| delay > LAST_WORD);
                Ok(through && quiet)
            }
            State::Closed if self.guest_done && self.outside_done => Ok(through),
            State::Closed => Err(io::ErrorKind::ConnectionReset.into()),
            // The guest has taken its request back.
            State::Listen if self.card.drained() => Err(io::ErrorKind::ConnectionReset.into()),
            _ => Ok(false),
        }
    }

    /// Resets both sides.
    fn abort(&mut self) {
        self.socket().abort();
        self.card.clear();
        self.card.forced = true;
        self.interface.poll_egress(Instant::now().into(), &mut self.card, &mut self.sockets);
        self.connection.abort();
    }

    /// Waits for room on the wire, else for the next timer of the stack.
    fn park(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.card.link.wire.poll_room(cx));
        if !self.card.drained() {
            return Poll::Ready(());
        }
        let now = Instant::now();
        let stack = self.stack_delay(now).map(|delay| delay.max(TICK));
        let handshake = self.handshake.as_ref().map(|(_, until)| until.saturating_duration_since(now));
        let Some(wait) = stack.into_iter().chain(handshake).min() else { return Poll::Pending };
        self.timer.as_mut().reset((now + wait).into());
        self.timer.as_mut().poll(cx)
    }
}

impl Drop for Relay {
    /// A link that ends cuts its connections off.
    fn drop(&mut self) {
        if !self.ended {
            self.connection.abort();
        }
    }
}

impl Future for Relay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TURNS {
            match self.turn(cx) {
                Ok(Turn::Moved) => {}
                Ok(Turn::Nothing) => ready!(self.park(cx)),
                Ok(Turn::Over) => {
                    self.ended = true;
                    return Poll::Ready(());
                }
                Err(error) => {
                    tracing::trace!(%error, to = %self.flow.key.to, "a connection ends");
                    self.abort();
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// The network card of a flow's stack: it receives from the inbox and sends to the wire.
struct Card {
    link: Arc<Link>,
    inbox: Vec<u8>,
    at: usize,
    /// Sends even where the wire is full.
    forced: bool,
}

impl Card {
    fn drained(&self) -> bool {
        self.at >= self.inbox.len()
    }

    fn clear(&mut self) {
        self.inbox.clear();
        self.at = 0;
    }
}

struct Received<'a>(&'a [u8]);

struct Sending<'a>(&'a Link);

impl Device for Card {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Sending<'_>)> {
        if !self.link.wire.room() {
            return None;
        }
        let (packet, next) = queue::packet(&self.inbox, self.at)?;
        self.at = next;
        Some((Received(packet), Sending(&self.link)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sending<'_>> {
        (self.forced || self.link.wire.room()).then_some(Sending(&self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.wire.send_over(len, f)
    }
}
