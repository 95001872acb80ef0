//! The world of a test: a gateway with a guest, and an outside whose addresses are servers on loopback.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use berth_egress::{
    Config, Connection, Counters, Egress, Forward, HostAddresses, Limits, Outside, RealOutside, Resolvers,
};
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::guest::Guest;

/// An address outside.
pub const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(8, 8, 4, 4), 7);

/// An outside of a few servers.
#[derive(Default)]
pub struct Servers {
    tcp: Mutex<HashMap<SocketAddr, SocketAddrV4>>,
    udp: Mutex<HashMap<SocketAddr, SocketAddrV4>>,
    echo: Mutex<HashMap<IpAddr, SocketAddrV4>>,
    /// Addresses that never answer.
    silent: Mutex<Vec<SocketAddr>>,
    asked: Mutex<Vec<SocketAddr>>,
}

impl Servers {
    pub fn tcp(&self, outside: impl Into<SocketAddr>, server: SocketAddrV4) {
        self.tcp.lock().unwrap().insert(outside.into(), server);
    }

    pub fn udp(&self, outside: impl Into<SocketAddr>, server: SocketAddrV4) {
        self.udp.lock().unwrap().insert(outside.into(), server);
    }

    pub fn echo(&self, outside: impl Into<IpAddr>, server: SocketAddrV4) {
        self.echo.lock().unwrap().insert(outside.into(), server);
    }

    pub fn silent(&self, outside: SocketAddrV4) {
        self.silent.lock().unwrap().push(outside.into());
    }

    pub fn speak(&self, outside: SocketAddrV4) {
        self.silent.lock().unwrap().retain(|address| *address != outside.into());
    }

    /// What the gateway has tried to reach.
    pub fn asked(&self) -> Vec<SocketAddr> {
        self.asked.lock().unwrap().clone()
    }

    /// Of IPv4 there is a network without the machine, of IPv6 not even that.
    fn find(&self, servers: &Mutex<HashMap<SocketAddr, SocketAddrV4>>, to: SocketAddr) -> io::Result<SocketAddr> {
        self.asked.lock().unwrap().push(to);
        let none = if to.is_ipv4() { io::ErrorKind::HostUnreachable } else { io::ErrorKind::NetworkUnreachable };
        servers.lock().unwrap().get(&to).map(|server| (*server).into()).ok_or_else(|| none.into())
    }
}

#[async_trait]
impl Outside for Servers {
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>> {
        let server = self.find(&self.tcp, to);
        if self.silent.lock().unwrap().contains(&to) {
            std::future::pending::<()>().await;
        }
        RealOutside.connect(server?).await
    }

    async fn datagrams(&self, to: SocketAddr) -> io::Result<tokio::net::UdpSocket> {
        RealOutside.datagrams(self.find(&self.udp, to)?).await
    }

    async fn echoes(&self, to: IpAddr) -> io::Result<tokio::net::UdpSocket> {
        self.asked.lock().unwrap().push(SocketAddr::new(to, 0));
        let server = self.echo.lock().unwrap().get(&to).copied();
        RealOutside.datagrams(server.ok_or(io::ErrorKind::PermissionDenied)?.into()).await
    }
}

/// The world.
pub struct World {
    pub runtime: Runtime,
    pub servers: Arc<Servers>,
    pub policy: watch::Sender<Arc<NetworkPolicy>>,
    pub forwards: watch::Sender<Arc<Vec<Arc<Forward>>>>,
    pub counters: Arc<Counters>,
    pub egress: Egress,
    pub link: JoinHandle<io::Result<()>>,
}

/// Rules.
pub fn network(egress: &str, allow: &[&str], deny: &[&str]) -> Arc<NetworkPolicy> {
    let said = NetworkPolicy::try_from(&json!({"egress": egress, "allow": allow, "deny": deny})).unwrap();
    Arc::new(NetworkPolicy { unlock: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()], ..said })
}

/// A configuration without the host's network.
pub fn config(servers: &Arc<Servers>) -> Config {
    Config {
        resolvers: Resolvers::Fixed(Vec::new()),
        host: HostAddresses::Fixed(vec![
            [8, 8, 8, 1].into(),
            [10, 9, 9, 9].into(),
            [0x2600, 0, 0, 0, 0, 0, 0, 1].into(),
        ]),
        host_loopback: false,
        outside: Arc::<Servers>::clone(servers),
        limits: Limits::default(),
        sockets: 4096,
        networks: Arc::default(),
    }
}

impl World {
    /// A world with the default rules.
    pub fn new() -> (Self, Guest) {
        Self::with(NetworkPolicy::default().into(), |_| ())
    }

    /// A world with rules and changes to its configuration.
    pub fn with(network: Arc<NetworkPolicy>, change: impl FnOnce(&mut Config)) -> (Self, Guest) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let servers = Arc::new(Servers::default());
        let mut config = config(&servers);
        change(&mut config);
        let egress = Egress::new(config);
        let policy = watch::Sender::new(network);
        let counters = Arc::new(Counters::default());
        let forwards = watch::Sender::default();
        let (guest, link) = attach(&runtime, &egress, &policy, &forwards, &counters);
        (Self { runtime, servers, policy, forwards, counters, egress, link }, guest)
    }

    /// Attaches again.
    pub fn attach_again(&mut self) -> Guest {
        let (guest, link) = attach(&self.runtime, &self.egress, &self.policy, &self.forwards, &self.counters);
        self.link = link;
        guest
    }

    /// Waits for the end of the link.
    pub fn ended(&mut self) -> io::Result<()> {
        self.runtime.block_on(&mut self.link).unwrap()
    }

    pub fn sent_and_received(&self) -> (u64, u64) {
        (self.counters.tx_bytes.load(Ordering::Relaxed), self.counters.rx_bytes.load(Ordering::Relaxed))
    }
}

fn attach(
    runtime: &Runtime,
    egress: &Egress,
    policy: &watch::Sender<Arc<NetworkPolicy>>,
    forwards: &watch::Sender<Arc<Vec<Arc<Forward>>>>,
    counters: &Arc<Counters>,
) -> (Guest, JoinHandle<io::Result<()>>) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let _entered = runtime.enter();
    let stream = tokio::net::UnixStream::from_std(far).unwrap();
    let link = runtime.spawn(egress.attach(stream, policy.subscribe(), forwards.subscribe(), Arc::clone(counters)));
    (Guest::new(near), link)
}

/// A server on loopback that does something with each connection.
pub fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            std::thread::spawn(move || serve(stream));
        }
    });
    v4(address)
}

/// A server that sends back what it gets, and ends when its client has.
pub fn echo() -> SocketAddrV4 {
    server(|mut stream| {
        let mut back = stream.try_clone().unwrap();
        if io::copy(&mut stream, &mut back).is_ok() {
            let _ = back.shutdown(Shutdown::Write);
        }
    })
}

/// A server that greets and waits for the end.
pub fn greeter(greeting: &'static [u8]) -> SocketAddrV4 {
    server(move |mut stream| {
        if stream.write_all(greeting).is_ok() {
            let _ = stream.read_to_end(&mut Vec::new());
        }
    })
}

/// An address of loopback where nobody listens, as long as the socket is kept.
pub fn nobody(runtime: &Runtime) -> (TcpSocket, SocketAddrV4) {
    let _entered = runtime.enter();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = v4(socket.local_addr().unwrap());
    (socket, address)
}

pub fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => panic!("an IPv4 address"),
    }
}
