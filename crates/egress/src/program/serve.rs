//! The program itself: one thread, one link, and conversations with the service.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use berth_domain::sandbox::network_policy::{self, NetworkPolicy};
use tokio::net::{TcpListener, UdpSocket, UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::confine::{FILES, confine};
use super::conversation::{Answer, CONVERSATIONS, converse, next};
use super::given::Given;
use super::protocol::{Ask, Asked, InNetwork, OfMachine, Port, Protocol, Status, VERSION};
use crate::network::{At, Memberships};
use crate::{Config, Counters, Egress, Forward, ForwardSocket};

/// How long a port may take to be shut. Measured: below 1 ms.
const SHUTTING: Duration = Duration::from_secs(1);
/// Between two looks at something that takes microseconds.
const TICK: Duration = Duration::from_millis(1);
/// Threads that read the list of resolvers, and the stack of each.
const READERS: usize = 2;
const STACK: usize = 256 << 10;

/// Becomes the program of a machine's network, until the machine ends.
pub(super) fn run(given: Given) -> io::Result<()> {
    confine(given.user)?;
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(READERS).thread_stack_size(STACK);
    builder.build()?.block_on(serve(given.first, given.listener, given.owner))
}

async fn serve(first: StdStream, listener: StdListener, owner: u32) -> io::Result<()> {
    let program = Arc::new(Program::new());
    let listener = UnixListener::from_std(listener)?;
    let mut conversations = JoinSet::new();
    conversations.spawn(speak(UnixStream::from_std(first)?, Arc::clone(&program)));
    loop {
        tokio::select! {
            () = program.over.notified() => return Ok(()),
            Some(_) = conversations.join_next() => {
                if conversations.is_empty() && !program.state().is_linked() {
                    return Ok(());
                }
            }
            stream = next(&listener, owner), if conversations.len() < CONVERSATIONS => {
                if let Some(stream) = stream {
                    conversations.spawn(speak(stream, Arc::clone(&program)));
                }
            }
        }
    }
}

/// Answers the service over a connection, until it ends.
async fn speak(stream: UnixStream, program: Arc<Program>) {
    converse::<OfMachine, _>(stream, |ask, beside| program.answer(ask, beside)).await;
}

/// What the program has.
struct Program {
    state: Mutex<State>,
    networks: Arc<Memberships>,
    /// The link ended, and with it the program.
    over: Arc<Notify>,
}

struct State {
    egress: Egress,
    rules: watch::Sender<Arc<NetworkPolicy>>,
    has_rules: bool,
    forwards: watch::Sender<Arc<Vec<Arc<Forward>>>>,
    ports: Vec<(Port, Arc<Forward>)>,
    counters: Arc<Counters>,
    link: Option<AbortHandle>,
}

impl Program {
    fn new() -> Self {
        let sockets = usize::try_from(FILES / 2).unwrap_or(usize::MAX);
        let nothing = NetworkPolicy { egress: network_policy::Egress::Deny, ..NetworkPolicy::default() };
        let networks = Arc::<Memberships>::default();
        let config = Config { sockets, networks: Arc::clone(&networks), ..Config::default() };
        let state = State {
            egress: Egress::new(config),
            rules: watch::Sender::new(Arc::new(nothing)),
            has_rules: false,
            forwards: watch::Sender::default(),
            ports: Vec::new(),
            counters: Arc::default(),
            link: None,
        };
        Self { state: Mutex::new(state), networks, over: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, ask: Ask, beside: Vec<OwnedFd>) -> Result<Answer<Status>, String> {
        let mut beside = beside.into_iter();
        match ask {
            Ask::Status => {
                let of = |(network, at, is_linked): (_, At, _)| InNetwork {
                    network,
                    address: at.own,
                    cidr6: at.cidr6,
                    is_linked,
                };
                let networks = self.networks.list().into_iter().map(of).collect();
                return Ok(Answer::Status(Status { networks, ..self.state().status() }));
            }
            Ask::SetRules { network, unlock } => self.state().set_rules(NetworkPolicy { unlock, ..network }),
            Ask::SetFirewall { rules } => self.networks.set_rules(rules),
            Ask::SetForwards { ports } => {
                let shut = self.state().set_forwards(&ports, &mut beside)?;
                wait_shut(&shut).await?;
            }
            Ask::SetLink => {
                let link = beside.next().ok_or("there is no link beside it")?;
                self.state().set_link(link, Arc::clone(&self.over))?;
            }
            Ask::Join { network, cidr, cidr6, address } => {
                self.networks.join(network, At { cidr, cidr6, own: address }, beside.next())?;
            }
            Ask::Leave { network } => self.networks.leave(network),
        }
        Ok(Answer::Done)
    }
}

impl State {
    fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    fn status(&self) -> Status {
        Status {
            version: VERSION,
            is_linked: self.is_linked(),
            ports: self.ports.iter().map(|(port, _)| *port).collect(),
            rx_bytes: self.counters.rx_bytes.load(Ordering::Relaxed),
            tx_bytes: self.counters.tx_bytes.load(Ordering::Relaxed),
            networks: Vec::new(),
        }
    }

    fn set_rules(&mut self, network: NetworkPolicy) {
        self.rules.send_replace(Arc::new(network));
        self.has_rules = true;
    }

    /// Opens exactly these ports; the forwards that are about to be shut.
    fn set_forwards(
        &mut self,
        ports: &[Asked],
        sockets: &mut impl Iterator<Item = OwnedFd>,
    ) -> Result<Vec<Weak<Forward>>, String> {
        let open = |asked: &Asked| {
            let known = self.ports.iter().find(|(port, _)| port.is_at(&asked.port));
            let forward = match known {
                Some((port, forward)) if !asked.is_new && *port == asked.port => Ok(Arc::clone(forward)),
                // It leads elsewhere from now on, and is open all the while.
                Some((_, forward)) if !asked.is_new => again(forward).and_then(|socket| made(asked.port, socket)),
                _ if asked.is_new => sockets.next().ok_or_else(lacks).and_then(|socket| made(asked.port, socket)),
                _ => Err(io::Error::other(format!("{} is not open", asked.port.at))),
            };
            Ok((asked.port, forward.map_err(|error| error.to_string())?))
        };
        let ports = ports.iter().map(open).collect::<Result<Vec<_>, String>>()?;
        let list = ports.iter().map(|(_, forward)| Arc::clone(forward)).collect();
        let before = std::mem::replace(&mut self.ports, ports);
        let shut = before.iter().map(|(_, forward)| forward).filter(|forward| !self.has(forward));
        let shut = shut.map(Arc::downgrade).collect();
        self.forwards.send_replace(Arc::new(list));
        Ok(shut)
    }

    fn has(&self, forward: &Arc<Forward>) -> bool {
        self.ports.iter().any(|(_, other)| Arc::ptr_eq(forward, other))
    }

    fn set_link(&mut self, link: OwnedFd, over: Arc<Notify>) -> Result<(), String> {
        if !self.has_rules {
            return Err("it was told no rules".into());
        }
        let stream = StdStream::from(link);
        let stream = stream.set_nonblocking(true).and_then(|()| UnixStream::from_std(stream));
        let stream = stream.map_err(|error| error.to_string())?;
        let counters = Arc::clone(&self.counters);
        let link = self.egress.attach(stream, self.rules.subscribe(), self.forwards.subscribe(), counters);
        let task = tokio::spawn(async move {
            if let Err(error) = link.await {
                eprintln!("berth-egress: the link broke: {error}");
            }
            over.notify_one();
        });
        if let Some(before) = self.link.replace(task.abort_handle()) {
            before.abort();
        }
        Ok(())
    }
}

fn lacks() -> io::Error {
    io::Error::other("there are too few sockets beside it")
}

/// The socket of a forward once more.
fn again(forward: &Forward) -> io::Result<OwnedFd> {
    match &forward.socket {
        ForwardSocket::Tcp(socket) => socket.as_fd().try_clone_to_owned(),
        ForwardSocket::Udp(socket) => socket.as_fd().try_clone_to_owned(),
    }
}

fn made(port: Port, socket: OwnedFd) -> io::Result<Arc<Forward>> {
    let socket = match port.protocol {
        Protocol::Tcp => {
            let socket = std::net::TcpListener::from(socket);
            socket.set_nonblocking(true)?;
            ForwardSocket::Tcp(TcpListener::from_std(socket)?)
        }
        Protocol::Udp => {
            let socket = std::net::UdpSocket::from(socket);
            socket.set_nonblocking(true)?;
            ForwardSocket::Udp(UdpSocket::from_std(socket)?)
        }
    };
    Ok(Arc::new(Forward { guest_port: port.guest_port, socket }))
}

/// Waits until nobody has these any more, so that somebody else may bind their ports.
async fn wait_shut(forwards: &[Weak<Forward>]) -> Result<(), String> {
    let deadline = Instant::now() + SHUTTING;
    while forwards.iter().any(|forward| forward.strong_count() > 0) {
        if Instant::now() > deadline {
            return Err("a port does not shut".into());
        }
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}
