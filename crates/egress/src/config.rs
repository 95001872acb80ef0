//! What a gateway is told: bounds, resolvers, and what the host and the outside are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::network::Memberships;
use crate::outside::{Outside, RealOutside};

/// The configuration of a machine's gateway.
#[derive(Clone)]
pub struct Config {
    /// Who answers the guests' questions.
    pub resolvers: Resolvers,
    /// Which addresses are the host's.
    pub host: HostAddresses,
    /// Whether loopback may be reached at all, where a rule allows it; the gateway's address then means 127.0.0.1.
    pub host_loopback: bool,
    /// How the outside is reached.
    pub outside: Arc<dyn Outside>,
    /// Bounds.
    pub limits: Limits,
    /// Sockets that the machine's flows may have together; more are refused.
    pub sockets: usize,
    /// The networks that the machine belongs to.
    pub networks: Arc<Memberships>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            resolvers: Resolvers::System,
            host: HostAddresses::System,
            host_loopback: false,
            outside: Arc::new(RealOutside),
            limits: Limits::default(),
            sockets: 4096,
            networks: Arc::default(),
        }
    }
}

/// The platform's resolvers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolvers {
    /// Those of `/etc/resolv.conf`, read again for a question when older than a few seconds.
    System,
    /// These.
    Fixed(Vec<SocketAddr>),
}

/// The host's own addresses, besides loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostAddresses {
    /// Those of its interfaces, and in IPv6 of their networks, read again for a connection when older than a few
    /// seconds.
    System,
    /// These.
    Fixed(Vec<IpAddr>),
}

/// Bounds of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// TCP connections, whoever began them; more are reset.
    pub tcp_flows: usize,
    /// TCP connections being made. Further ones are not answered, and a guest asks again within a second.
    pub half_open: usize,
    /// TCP connections that came in over one forward and that the guest has not accepted yet. Further ones wait in the
    /// queue of the forward's socket.
    pub forward_half_open: usize,
    /// Bytes that buffers of TCP connections take. Once a quarter of them is taken, further connections have smaller
    /// ones, and once half of them are, small ones.
    pub buffers: usize,
    /// Bytes of datagrams that wait for the outside; more are dropped.
    pub datagrams: usize,
    /// UDP flows that the guest has begun, and as many that others have; of these, the one idle longest gives way.
    pub udp_flows: usize,
    /// Pairs of an identifier and an address that are pinged; the one idle longest gives way.
    pub echo_flows: usize,
    /// Questions to the resolver under way; more are dropped.
    pub queries: usize,
    /// Pairs of an address and a name that are remembered.
    pub names: usize,
    /// After how long without a datagram a UDP flow ends, and the pings of an identifier.
    pub udp_idle: Duration,
    /// How long the outside may take to accept a connection.
    pub connect: Duration,
    /// How long the guest may take to accept a connection, or to finish its handshake; then both sides are reset.
    pub handshake: Duration,
    /// How long one resolver may take.
    pub resolver: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            tcp_flows: 1024,
            half_open: 64,
            forward_half_open: 16,
            // 8 connections with large buffers, 32 with smaller ones, and 1,024 with small ones.
            buffers: 80 << 20,
            datagrams: 4 << 20,
            udp_flows: 256,
            echo_flows: 32,
            queries: 64,
            names: 4096,
            udp_idle: Duration::from_mins(1),
            connect: Duration::from_secs(30),
            handshake: Duration::from_secs(30),
            resolver: Duration::from_secs(2),
        }
    }
}
