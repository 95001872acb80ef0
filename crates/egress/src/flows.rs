//! What becomes of a frame: the tables of flows, and the judgement over each new one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use berth_domain::firewall::{Beginning, Direction, RuleProtocol, Rules};
use berth_domain::sandbox::network_policy::{Destination, NetworkPolicy, Verdict};
use smoltcp::wire::{ArpOperation, TcpControl, TcpPacket};
use tokio::task::{AbortHandle, JoinSet};

use crate::forward::Caller;
use crate::fragments::Fragments;
use crate::link::Link;
use crate::packet::{self, Inbound, Key, Outbound, Quote, Reason};
use crate::{GATEWAY, GATEWAY6, RESOLVER, RESOLVER6, dhcp, dhcp6, dns, echo, ndp, tcp, udp};

/// Largest packet that asks for a connection, and largest question to the resolver by datagram: both are kept for a
/// while.
const LARGEST_SYN: usize = 1500;
const LARGEST_QUERY: usize = 4096;
/// The port of the resolver.
const DNS: u16 = 53;

mod arrivals;

/// The flows of one link. Dropping it ends them.
pub(crate) struct Flows {
    link: Arc<Link>,
    network: Arc<NetworkPolicy>,
    rules: Arc<Rules>,
    tcp: HashMap<Key, Entry<tcp::Flow>>,
    udp: HashMap<Key, Entry<udp::Flow>>,
    echo: HashMap<Key, Entry<udp::Flow>>,
    owners: HashMap<tokio::task::Id, (Protocol, Key)>,
    tasks: JoinSet<()>,
    fragments: Fragments,
    /// The port that the last who came from outside seems to come from.
    caller: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
    Echo,
}

struct Entry<F> {
    flow: Arc<F>,
    /// As it was when the flow was let out: names that expired since do not end it.
    destination: Option<Destination>,
    /// Who began it, if it was not the guest.
    caller: Option<Caller>,
    task: AbortHandle,
}

/// Where a new flow goes.
enum Route {
    /// Out, to this address, which differs from the guest's for the host's loopback.
    Outside(SocketAddr, Destination),
    /// To the resolver.
    Resolver,
    /// Nowhere.
    Refused,
}

impl Flows {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let (network, rules) = (Arc::clone(&link.policy.borrow()), Arc::clone(&link.rules.borrow()));
        let (tcp, udp, echo, owners) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        Self {
            link,
            network,
            rules,
            tcp,
            udp,
            echo,
            owners,
            tasks: JoinSet::new(),
            fragments: Fragments::default(),
            caller: 0,
        }
    }

    /// Waits for a flow to end, and forgets it. Never ends while there is none.
    pub(crate) async fn ended(&mut self) {
        let id = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => id,
            Some(Err(error)) => error.id(),
            None => return std::future::pending().await,
        };
        match self.owners.remove(&id) {
            Some((Protocol::Tcp, key)) => forget(&mut self.tcp, key, id),
            Some((Protocol::Udp, key)) => forget(&mut self.udp, key, id),
            Some((Protocol::Echo, key)) => forget(&mut self.echo, key, id),
            None => {}
        }
    }

    /// Takes the newest policy and rules, and ends what they do not allow.
    pub(crate) fn judge_again(&mut self) {
        self.network = Arc::clone(&self.link.policy.borrow());
        self.rules = Arc::clone(&self.link.rules.borrow());
        let (network, rules) = (&self.network, &self.rules);
        let tcp = self.tcp.iter().filter(|(key, entry)| !entry.may_go_on(network, rules, RuleProtocol::Tcp, key));
        tcp.for_each(|(_, entry)| entry.flow.revoke());
        for (flows, protocol) in [(&mut self.udp, RuleProtocol::Udp), (&mut self.echo, RuleProtocol::Icmp)] {
            flows.retain(|key, entry| {
                let may = entry.may_go_on(network, rules, protocol, key);
                if !may {
                    entry.task.abort();
                }
                may
            });
        }
    }

    /// Takes a frame of the guest.
    pub(crate) fn frame(&mut self, frame: &[u8]) {
        if packet::is_heard(frame) {
            self.link.wire.heard();
        }
        let network = packet::to_network(frame, |to| self.link.config.networks.find(to));
        // A guest has made itself other addresses of IPv6, too, for which nothing comes back: it is told below.
        let network = network.filter(|(_, packet, _)| packet::is_translated(packet));
        if let Some((sender, bytes, joined)) = network {
            self.link.wire.learn(sender, packet::has_address(frame));
            return joined.send(bytes, &self.link.wire);
        }
        let Some((sender, inbound)) = packet::parse(frame) else { return };
        self.link.wire.learn(sender, packet::has_address(frame));
        let Inbound::Piece(piece) = inbound else { return self.packet(inbound) };
        let whole = self.fragments.add(&piece, Instant::now());
        if let Some(inbound) = whole.as_deref().and_then(packet::whole) {
            self.packet(inbound);
        }
    }

    /// Whether something waits that has to be forgotten some time.
    pub(crate) fn waits(&self) -> bool {
        !self.fragments.is_empty()
    }

    /// Forgets what has waited for too long.
    pub(crate) fn expire(&mut self) {
        self.fragments.expire(Instant::now());
    }

    fn packet(&mut self, inbound: Inbound<'_>) {
        match inbound {
            Inbound::Arp { wanted, sender } => self.link.wire.send_arp(ArpOperation::Reply, wanted, sender),
            // What was put together is no piece.
            Inbound::Announced | Inbound::Piece(_) => {}
            Inbound::Dhcp { message } => {
                if let Some(answer) = dhcp::answer(message, &dhcp::Lease::ALONE) {
                    self.link.wire.send(&Outbound::dhcp(&answer));
                }
            }
            Inbound::Unreachable { key } => self.tcp.get(&key).iter().for_each(|entry| entry.flow.unreachable()),
            Inbound::Neighbour { wanted, sender } => self.tell(&ndp::neighbour(wanted, sender)),
            Inbound::Router { sender } => self.tell(&ndp::router(sender, self.link.config.networks.have_ipv6())),
            Inbound::Dhcp6 { message, sender } => {
                if let Some(answer) = dhcp6::answer(message, &dhcp6::Lease::alone()) {
                    self.link.wire.send(&Outbound::dhcp6(sender, &answer));
                }
            }
            Inbound::Echo { key, seq_no, data } if packet::is_own(key.to.ip()) => {
                self.link.wire.send(&Outbound::pong(key, seq_no, data));
            }
            Inbound::Echo { key, seq_no, data } => self.ping(key, &echo::request(key.to.ip(), seq_no, data)),
            Inbound::Tcp { key, segment, packet } => self.segment(key, &segment, packet),
            Inbound::Udp { key, payload, unicast } => self.datagram(key, payload, unicast),
        }
    }

    /// Tells the guest which network it is in, though it has not asked.
    pub(crate) fn advertise(&self) {
        self.tell(&ndp::router_again(self.link.config.networks.have_ipv6()));
    }

    /// Tells the guest about its neighbours.
    fn tell(&self, message: &ndp::Message) {
        self.link.wire.send(&Outbound::neighbours(message.from, message.to, &message.bytes));
    }

    fn segment(&mut self, key: Key, segment: &TcpPacket<&[u8]>, packet: &[u8]) {
        if let Some(entry) = self.tcp.get(&key)
            && !entry.task.is_finished()
        {
            entry.flow.segment(segment, packet);
            return;
        }
        let Some(header) = packet::segment(key, segment) else { return };
        if packet.len() > LARGEST_SYN && header.control == TcpControl::Syn {
            return;
        }
        let reset = || Outbound::reset(key, &header).iter().for_each(|reset| self.link.wire.send(reset));
        if header.control != TcpControl::Syn || header.ack_number.is_some() {
            return reset();
        }
        let route = self.route(RuleProtocol::Tcp, key.to);
        if matches!(route, Route::Refused) || self.tcp.len() >= self.link.config.limits.tcp_flows {
            return reset();
        }
        let Ok(permit) = Arc::clone(&self.link.half_open).try_acquire_owned() else { return };
        let socket = self.link.socket();
        let (Some(room), Some(socket)) = (tcp::Room::take(&self.link.buffers), socket) else { return reset() };
        let flow = Arc::new(tcp::Flow::new(key, room));
        let opening = tcp::Opening {
            flow: Arc::clone(&flow),
            link: Arc::clone(&self.link),
            syn: packet.to_vec(),
            quote: Quote::segment(key, segment),
            permit,
            socket,
        };
        let (task, destination) = match route {
            Route::Outside(to, destination) => (self.tasks.spawn(opening.outside(to)), Some(destination)),
            _ => (self.tasks.spawn(opening.resolver()), None),
        };
        self.owners.insert(task.id(), (Protocol::Tcp, key));
        self.tcp.insert(key, Entry { flow, destination, caller: None, task });
    }

    fn datagram(&mut self, key: Key, payload: &[u8], unicast: bool) {
        if let Some(entry) = self.udp.get(&key)
            && !entry.task.is_finished()
        {
            entry.flow.send(payload, &self.link.datagrams);
            return;
        }
        match self.route(RuleProtocol::Udp, key.to) {
            Route::Resolver => self.query(key, payload),
            Route::Outside(to, destination) => self.open(key, to, destination, payload),
            // Errors never answer what went to many (RFC 1122, 3.2.2).
            Route::Refused if unicast => {
                let quote = Quote::datagram(key, payload.len());
                self.link.wire.send(&Outbound::unreachable(Reason::Prohibited, &quote));
            }
            Route::Refused => {}
        }
    }

    fn open(&mut self, key: Key, to: SocketAddr, destination: Destination, payload: &[u8]) {
        make_room(&mut self.udp, self.link.config.limits.udp_flows, false);
        let Some(socket) = self.link.socket() else { return };
        let (flow, datagrams) = udp::Flow::new();
        let flow = Arc::new(flow);
        flow.send(payload, &self.link.datagrams);
        let running = udp::run(Arc::clone(&flow), datagrams, Arc::clone(&self.link), key, to);
        let task = self.tasks.spawn(async move {
            running.await;
            drop(socket);
        });
        self.owners.insert(task.id(), (Protocol::Udp, key));
        self.udp.insert(key, Entry { flow, destination: Some(destination), caller: None, task });
    }

    /// Sends a request of the guest, if the rules let it out; if not, nothing answers it.
    fn ping(&mut self, key: Key, request: &[u8]) {
        if let Some(entry) = self.echo.get(&key)
            && !entry.task.is_finished()
        {
            return entry.flow.send(request, &self.link.datagrams);
        }
        let Route::Outside(_, destination) = self.route(RuleProtocol::Icmp, key.to) else { return };
        make_room(&mut self.echo, self.link.config.limits.echo_flows, false);
        let Some(socket) = self.link.socket() else { return };
        let (flow, requests) = udp::Flow::new();
        let flow = Arc::new(flow);
        flow.send(request, &self.link.datagrams);
        let running = echo::run(Arc::clone(&flow), requests, Arc::clone(&self.link), key);
        let task = self.tasks.spawn(async move {
            running.await;
            drop(socket);
        });
        self.owners.insert(task.id(), (Protocol::Echo, key));
        self.echo.insert(key, Entry { flow, destination: Some(destination), caller: None, task });
    }

    fn query(&mut self, key: Key, payload: &[u8]) {
        if payload.len() > LARGEST_QUERY {
            return;
        }
        let Ok(permit) = Arc::clone(&self.link.queries).try_acquire_owned() else { return };
        let Some(socket) = self.link.socket() else { return };
        let (link, query) = (Arc::clone(&self.link), payload.to_vec());
        self.tasks.spawn(async move {
            if let Some(answer) = dns::answer(&link, &query, dns::Transport::Udp).await {
                link.wire.send(&Outbound::datagram(key, &answer));
            }
            drop((permit, socket));
        });
    }

    fn route(&self, protocol: RuleProtocol, to: SocketAddr) -> Route {
        let address = to.ip();
        if address == RESOLVER || address == RESOLVER6 {
            return if to.port() == DNS { Route::Resolver } else { Route::Refused };
        }
        // An IPv4 address in disguise is none that a packet may bear (RFC 6890, 2.2.3).
        if matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()) {
            return Route::Refused;
        }
        // What goes to a network goes nowhere else: one whose IPv6 address is another than DHCP's takes IPv4 then.
        if self.link.config.networks.find(address).is_some() {
            return Route::Refused;
        }
        let gateway = address == GATEWAY || address == GATEWAY6;
        let loopback = gateway || address.is_loopback() || address.is_unspecified();
        let host = loopback || self.link.host.has(address);
        let names = self.link.names().of(address, Instant::now());
        let destination = Destination { address, names, host };
        let may = self.network.decide(&destination) == Verdict::Allow && self.rules.allow(&leaving(protocol, to));
        if !may || (loopback && !self.link.config.host_loopback) {
            return Route::Refused;
        }
        let target = match address {
            address if !gateway => address,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        Route::Outside(SocketAddr::new(target, to.port()), destination)
    }
}

impl<F> Entry<F> {
    /// Whether policy and rules still allow what was begun.
    fn may_go_on(&self, network: &NetworkPolicy, rules: &Rules, protocol: RuleProtocol, key: &Key) -> bool {
        match (&self.destination, &self.caller) {
            (Some(to), _) => network.decide(to) == Verdict::Allow && rules.allow(&leaving(protocol, key.to)),
            (None, Some(caller)) => rules.allow(&arriving(protocol, caller)),
            // It is with the resolver.
            (None, None) => true,
        }
    }
}

/// What the guest begins, as rules see it.
fn leaving(protocol: RuleProtocol, to: SocketAddr) -> Beginning {
    let port = (protocol != RuleProtocol::Icmp).then_some(to.port());
    Beginning { direction: Direction::Out, protocol, port, other: to.ip(), within: false }
}

/// What somebody from outside begins.
fn arriving(protocol: RuleProtocol, caller: &Caller) -> Beginning {
    let port = Some(caller.forward.guest_port);
    Beginning { direction: Direction::In, protocol, port, other: caller.from.ip(), within: false }
}

fn forget<F>(flows: &mut HashMap<Key, Entry<F>>, key: Key, id: tokio::task::Id) {
    if flows.get(&key).is_some_and(|entry| entry.task.id() == id) {
        flows.remove(&key);
    }
}

/// Ends the flow idle longest, where there are as many of its kind as there may be.
fn make_room(flows: &mut HashMap<Key, Entry<udp::Flow>>, most: usize, called: bool) {
    let kind = || flows.iter().filter(|(_, entry)| entry.caller.is_some() == called);
    if kind().count() >= most
        && let Some(idle) = kind().min_by_key(|(_, entry)| entry.flow.last()).map(|(key, _)| *key)
        && let Some(entry) = flows.remove(&idle)
    {
        entry.task.abort();
    }
}
