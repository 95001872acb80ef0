//! A guest: a TCP/IP stack of its own behind a unix socket with QEMU's framing.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{dhcpv4, tcp, udp};
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, HardwareAddress, Icmpv4Packet, IpCidr, IpEndpoint, IpProtocol,
    Ipv4Cidr, Ipv4Packet, Ipv6Cidr, Ipv6Packet, TcpPacket,
};

/// How long anything may take before a test fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// The guest's link address.
pub const MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);

/// An address that a guest may have made itself.
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd62, 0x6572, 0x7468, 0, 0, 0, 0, 0x15);

/// What a connection came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Connected,
    Refused,
}

/// What a guest was told of its network.
#[derive(Debug, PartialEq, Eq)]
pub struct Lease {
    pub address: Ipv4Cidr,
    pub router: Ipv4Addr,
    pub servers: Vec<Ipv4Addr>,
}

/// The guest.
pub struct Guest {
    pub sockets: SocketSet<'static>,
    interface: Interface,
    card: Card,
    stream: UnixStream,
    bytes: Vec<u8>,
    next_port: u16,
    /// Errors of ICMP that have come, that something cannot be reached: the code, and the destination they speak of.
    pub errors: Vec<(u8, IpAddr)>,
    /// Frames that have come, counted.
    pub frames: usize,
    /// Whether the stream has ended.
    pub ended: bool,
    /// Whether the stack gets nothing of what comes.
    pub deaf: bool,
    /// Requests for connections that have come: from where, and to which port.
    pub calls: BTreeSet<(SocketAddrV4, u16)>,
    /// Answers to pings that have come from outside: of whom, identifier, number, data.
    pub pongs: VecDeque<(IpAddr, u16, u16, Vec<u8>)>,
    /// Answers of the gateway, which only tell that the link still works, counted.
    alive: usize,
}

struct Card {
    received: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    mtu: usize,
}

impl Guest {
    pub fn new(stream: UnixStream) -> Self {
        let mut card = Card { received: VecDeque::new(), sent: Vec::new(), mtu: 1500 };
        let interface = interface(&mut card);
        let sockets = SocketSet::new(Vec::new());
        Self {
            sockets,
            interface,
            card,
            stream,
            bytes: Vec::new(),
            next_port: 40_000,
            errors: Vec::new(),
            frames: 0,
            ended: false,
            deaf: false,
            calls: BTreeSet::new(),
            pongs: VecDeque::new(),
            alive: 0,
        }
    }

    /// Takes packets of another size from now on.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.card.mtu = mtu;
        self.interface = interface(&mut self.card);
    }

    /// Lets the guest live until something is so.
    pub fn until<T>(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.step(Duration::from_millis(20));
            if let Some(result) = so(self) {
                return result;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}");
        }
    }

    /// Sends what there is, waits for frames for at most a while, and takes them.
    pub fn step(&mut self, wait: Duration) {
        self.poll();
        let delay = self.interface.poll_delay(Instant::now().into(), &self.sockets).map(Duration::from);
        let wait = delay.unwrap_or(wait).min(wait).max(Duration::from_micros(50));
        self.stream.set_read_timeout(Some(wait)).unwrap();
        let mut buffer = vec![0; 65536];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(count) => self.bytes.extend(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => self.ended = true,
        }
        let mut at = 0;
        while let Some((prefix, rest)) = self.bytes[at..].split_first_chunk::<4>() {
            let len = u32::from_be_bytes(*prefix) as usize;
            let Some(frame) = rest.get(..len) else { break };
            self.frames += 1;
            self.errors.extend(error(frame));
            self.calls.extend(call(frame));
            match pong(frame) {
                Some((from, ..)) if from == berth_egress::GATEWAY => self.alive += 1,
                other => self.pongs.extend(other),
            }
            if !self.deaf {
                self.card.received.push_back(frame.to_vec());
            }
            at += 4 + len;
        }
        self.bytes.drain(..at);
        self.poll();
    }

    fn poll(&mut self) {
        self.interface.poll(Instant::now().into(), &mut self.card, &mut self.sockets);
        let sent = std::mem::take(&mut self.card.sent);
        self.write(&sent);
    }

    fn write(&mut self, bytes: &[u8]) {
        if !self.ended && self.stream.write_all(bytes).is_err() {
            self.ended = true;
        }
    }

    /// Sends a frame as it is.
    pub fn raw(&mut self, frame: &[u8]) {
        let len = u32::try_from(frame.len()).unwrap();
        self.write(&[&len.to_be_bytes(), frame].concat());
    }

    /// Sends bytes that need not be a frame.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.write(bytes);
    }

    /// Begins a connection.
    pub fn dial(&mut self, to: impl Into<SocketAddr>) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 128 * 1024]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        self.next_port += 1;
        socket.connect(self.interface.context(), IpEndpoint::from(to.into()), self.next_port).unwrap();
        self.sockets.add(socket)
    }

    /// Begins as a machine that nobody has told its address, and waits until somebody has.
    pub fn configure(&mut self) -> Lease {
        self.interface.update_ip_addrs(|list| while list.pop().is_some() {});
        self.interface.routes_mut().remove_default_ipv4_route();
        let client = self.sockets.add(dhcpv4::Socket::new());
        let (address, router, servers) =
            self.until("a lease", |guest| match guest.sockets.get_mut::<dhcpv4::Socket<'_>>(client).poll() {
                Some(dhcpv4::Event::Configured(lease)) => {
                    Some((lease.address, lease.router, lease.dns_servers.clone()))
                }
                _ => None,
            });
        self.interface.update_ip_addrs(|list| list.push(IpCidr::Ipv4(address)).unwrap());
        self.interface.routes_mut().add_default_ipv4_route(router.unwrap()).unwrap();
        Lease { address, router: router.unwrap(), servers: servers.to_vec() }
    }

    /// Begins as a machine that knows nothing of IPv6, and waits until it has made itself an address.
    pub fn autoconfigure(&mut self) -> Ipv6Addr {
        let mut config = Config::new(HardwareAddress::Ethernet(MAC));
        config.random_seed = 7;
        config.slaac = true;
        self.interface = Interface::new(config, &mut self.card, Instant::now().into());
        let own = Ipv6Cidr::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x15), 64);
        self.interface.update_ip_addrs(|list| list.push(own.into()).unwrap());
        self.until("an address", |guest| {
            let mut addresses = guest.interface.ip_addrs().iter().map(|address| IpAddr::from(address.address()));
            addresses.find_map(|address| match address {
                IpAddr::V6(address) if !address.is_unicast_link_local() => Some(address),
                _ => None,
            })
        })
    }

    /// Listens for one connection.
    pub fn listen(&mut self, port: u16) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 128 * 1024]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.listen(port).unwrap();
        self.sockets.add(socket)
    }

    /// Waits until somebody has connected, and tells who.
    pub fn accepted(&mut self, handle: SocketHandle) -> SocketAddr {
        self.until("a connection", |guest| {
            let socket = guest.tcp(handle);
            let established = matches!(socket.state(), tcp::State::Established | tcp::State::CloseWait);
            established.then(|| socket.remote_endpoint().unwrap().into())
        })
    }

    /// What a connection that was begun came to.
    pub fn outcome(&mut self, handle: SocketHandle) -> Option<Outcome> {
        match self.tcp(handle).state() {
            tcp::State::SynSent => None,
            tcp::State::Closed => Some(Outcome::Refused),
            _ => Some(Outcome::Connected),
        }
    }

    /// Connects, and waits for what comes of it.
    pub fn connect(&mut self, to: impl Into<SocketAddr>) -> (SocketHandle, Outcome) {
        let to = to.into();
        let handle = self.dial(to);
        let outcome = self.until(&format!("an answer of {to}"), |guest| guest.outcome(handle));
        (handle, outcome)
    }

    /// Connects to what must be there.
    pub fn connected(&mut self, to: impl Into<SocketAddr>) -> SocketHandle {
        let to = to.into();
        let (handle, outcome) = self.connect(to);
        assert_eq!(outcome, Outcome::Connected, "{to}");
        handle
    }

    pub fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Sends everything.
    pub fn send(&mut self, handle: SocketHandle, mut bytes: &[u8]) {
        self.until("room to send", |guest| {
            while !bytes.is_empty() && guest.tcp(handle).can_send() {
                let count = guest.tcp(handle).send_slice(bytes).unwrap();
                bytes = &bytes[count..];
            }
            bytes.is_empty().then_some(())
        });
    }

    /// Takes what has come.
    pub fn take(&mut self, handle: SocketHandle, into: &mut Vec<u8>) {
        while self.tcp(handle).can_recv() {
            self.tcp(handle)
                .recv(|bytes| {
                    into.extend_from_slice(bytes);
                    (bytes.len(), ())
                })
                .unwrap();
        }
    }

    /// Receives so many bytes.
    pub fn receive(&mut self, handle: SocketHandle, count: usize) -> Vec<u8> {
        let mut got = Vec::new();
        self.until("bytes", |guest| {
            guest.take(handle, &mut got);
            (got.len() >= count).then_some(())
        });
        got
    }

    /// Receives until the other side has ended in order.
    pub fn receive_all(&mut self, handle: SocketHandle) -> Vec<u8> {
        let mut got = Vec::new();
        self.until("the end", |guest| {
            guest.take(handle, &mut got);
            let state = guest.tcp(handle).state();
            assert!(state != tcp::State::Closed, "the connection was reset");
            (!guest.tcp(handle).may_recv()).then_some(())
        });
        got
    }

    /// Waits for a reset.
    pub fn reset(&mut self, handle: SocketHandle) {
        self.until("a reset", |guest| (guest.tcp(handle).state() == tcp::State::Closed).then_some(()));
    }

    /// A socket for datagrams.
    pub fn datagrams(&mut self) -> SocketHandle {
        self.next_port += 1;
        self.datagrams_at(self.next_port)
    }

    /// A socket for datagrams to a port.
    pub fn datagrams_at(&mut self, port: u16) -> SocketHandle {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 64], vec![0; 64 * 1024]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(port).unwrap();
        self.sockets.add(socket)
    }

    pub fn udp(&mut self, handle: SocketHandle) -> &mut udp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Sends a datagram.
    pub fn datagram(&mut self, handle: SocketHandle, to: impl Into<SocketAddr>, bytes: &[u8]) {
        self.udp(handle).send_slice(bytes, IpEndpoint::from(to.into())).unwrap();
        self.poll();
    }

    /// Waits for a datagram.
    pub fn receive_datagram(&mut self, handle: SocketHandle) -> Vec<u8> {
        self.until("a datagram", |guest| guest.udp(handle).recv().ok().map(|(bytes, _)| bytes.to_vec()))
    }

    /// Waits for a datagram, and tells of whom it is.
    pub fn receive_datagram_from(&mut self, handle: SocketHandle) -> (Vec<u8>, SocketAddr) {
        self.until("a datagram", |guest| {
            let (bytes, about) = guest.udp(handle).recv().ok()?;
            Some((bytes.to_vec(), about.endpoint.into()))
        })
    }

    /// Waits for an ICMP error about an address, and tells its code.
    pub fn unreachable(&mut self, about: impl Into<IpAddr>) -> u8 {
        let about = about.into();
        self.until("an ICMP error", |guest| guest.errors.iter().find(|(_, to)| *to == about).map(|error| error.0))
    }

    /// Whether the link still works.
    pub fn assert_alive(&mut self) {
        let before = self.alive;
        self.raw(&ping());
        self.until("an answer to a ping", |guest| {
            assert!(!guest.ended, "the link has ended");
            (guest.alive > before).then_some(())
        });
    }

    /// Ends the stream.
    pub fn hang_up(self) {
        drop(self.stream);
    }
}

fn interface(card: &mut Card) -> Interface {
    let mut config = Config::new(HardwareAddress::Ethernet(MAC));
    config.random_seed = 7;
    let mut interface = Interface::new(config, card, Instant::now().into());
    interface.update_ip_addrs(|list| list.push(IpCidr::new(berth_egress::GUEST.into(), berth_egress::PREFIX)).unwrap());
    interface.update_ip_addrs(|list| list.push(IpCidr::new(GUEST6.into(), berth_egress::PREFIX6)).unwrap());
    interface.routes_mut().add_default_ipv4_route(berth_egress::GATEWAY).unwrap();
    interface.routes_mut().add_default_ipv6_route(berth_egress::GATEWAY6).unwrap();
    interface
}

/// What a frame carries: its protocol, its sender, and the payload.
fn carried(frame: &[u8]) -> Option<(IpProtocol, IpAddr, &[u8])> {
    let ip = frame.get(14..)?;
    match EthernetFrame::new_checked(frame).ok()?.ethertype() {
        EthernetProtocol::Ipv4 => {
            let packet = Ipv4Packet::new_checked(ip).ok()?;
            Some((packet.next_header(), packet.src_addr().into(), ip.get(20..packet.total_len().into())?))
        }
        EthernetProtocol::Ipv6 => {
            let packet = Ipv6Packet::new_checked(ip).ok()?;
            Some((packet.next_header(), packet.src_addr().into(), ip.get(40..packet.total_len())?))
        }
        _ => None,
    }
}

fn pong(frame: &[u8]) -> Option<(IpAddr, u16, u16, Vec<u8>)> {
    let (protocol, from, bytes) = carried(frame)?;
    let icmp = Icmpv4Packet::new_checked(bytes).ok()?;
    let is_pong = matches!((protocol, bytes[0]), (IpProtocol::Icmp, 0) | (IpProtocol::Icmpv6, 129));
    is_pong.then(|| (from, icmp.echo_ident(), icmp.echo_seq_no(), bytes[8..].to_vec()))
}

fn call(frame: &[u8]) -> Option<(SocketAddrV4, u16)> {
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let ip = (frame.ethertype() == EthernetProtocol::Ipv4).then(|| Ipv4Packet::new_checked(frame.payload()).ok())??;
    let tcp = (ip.next_header() == IpProtocol::Tcp).then(|| TcpPacket::new_checked(ip.payload()).ok())??;
    (tcp.syn() && !tcp.ack()).then(|| (SocketAddrV4::new(ip.src_addr(), tcp.src_port()), tcp.dst_port()))
}

fn error(frame: &[u8]) -> Option<(u8, IpAddr)> {
    let (protocol, _, bytes) = carried(frame)?;
    let quoted = bytes.get(8..)?;
    match (protocol, bytes[0]) {
        (IpProtocol::Icmp, 3) => Some((bytes[1], Ipv4Packet::new_unchecked(quoted).dst_addr().into())),
        (IpProtocol::Icmpv6, 1) => Some((bytes[1], Ipv6Packet::new_unchecked(quoted).dst_addr().into())),
        _ => None,
    }
}

/// A packet of the guest in a frame to the gateway.
pub fn packet(protocol: IpProtocol, to: Ipv4Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 34 + payload.len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_src_addr(MAC);
    ethernet.set_dst_addr(EthernetAddress([0x52, 0x55, 10, 0, 2, 2]));
    ethernet.set_ethertype(EthernetProtocol::Ipv4);
    let mut ip = Ipv4Packet::new_unchecked(ethernet.payload_mut());
    ip.set_version(4);
    ip.set_header_len(20);
    ip.set_total_len(u16::try_from(20 + payload.len()).unwrap());
    ip.set_hop_limit(64);
    ip.set_next_header(protocol);
    ip.set_src_addr(berth_egress::GUEST);
    ip.set_dst_addr(to);
    ip.payload_mut().copy_from_slice(payload);
    ip.fill_checksum();
    frame
}

/// A packet of the guest's IPv6 address in a frame to the gateway.
pub fn packet6(protocol: IpProtocol, to: Ipv6Addr, payload: &[u8]) -> Vec<u8> {
    let mut frame = packet(protocol, Ipv4Addr::UNSPECIFIED, &[&[0; 20], payload].concat());
    frame[12..14].copy_from_slice(&[0x86, 0xdd]);
    let mut ip = Ipv6Packet::new_unchecked(&mut frame[14..]);
    ip.set_version(6);
    ip.set_traffic_class(0);
    ip.set_flow_label(0);
    ip.set_payload_len(u16::try_from(payload.len()).unwrap());
    ip.set_next_header(protocol);
    ip.set_hop_limit(64);
    ip.set_src_addr(GUEST6);
    ip.set_dst_addr(to);
    frame
}

/// A ping to the gateway.
pub fn ping() -> Vec<u8> {
    let mut payload = [8, 0, 0, 0, 0, 1, 0, 2, b'b'];
    Icmpv4Packet::new_unchecked(&mut payload[..]).fill_checksum();
    packet(IpProtocol::Icmp, berth_egress::GATEWAY, &payload)
}

impl Device for Card {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received, Sending<'_>)> {
        let frame = self.received.pop_front()?;
        Some((Received(frame), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 14 + self.mtu;
        capabilities
    }
}

pub struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

pub struct Sending<'a>(&'a mut Vec<u8>);

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.extend(u32::try_from(len).unwrap().to_be_bytes());
        let start = self.0.len();
        self.0.resize(start + len, 0);
        f(&mut self.0[start..])
    }
}
