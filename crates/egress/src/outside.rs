//! The outside world, as far as a gateway needs it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use async_trait::async_trait;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::{TcpStream, UdpSocket};

/// A connection to the outside.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {
    /// Makes dropping the connection an abort instead of an orderly end, so that nobody takes what was cut off
    /// for whole.
    fn abort(&mut self) {}
}

impl Connection for TcpStream {
    fn abort(&mut self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "a connection cannot be aborted and is closed instead");
        }
    }
}

impl Connection for DuplexStream {}

/// How the outside is reached. Tests put servers of their own in its place.
#[async_trait]
pub trait Outside: Send + Sync + 'static {
    /// Connects; the caller bounds the time.
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>>;

    /// A socket that exchanges datagrams with one address.
    async fn datagrams(&self, to: SocketAddr) -> io::Result<UdpSocket>;

    /// A socket that exchanges ICMP messages with one address: echo requests and what answers them, whose identifier is the
    /// socket's own (icmp(7)). A kernel lets a process have one if its group is in `net.ipv4.ping_group_range`.
    async fn echoes(&self, to: IpAddr) -> io::Result<UdpSocket>;
}

/// The host's network.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealOutside;

#[async_trait]
impl Outside for RealOutside {
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(to).await?;
        // The guest's own stack decides what is sent together.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    async fn datagrams(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).await?;
        socket.connect(to).await?;
        Ok(socket)
    }

    async fn echoes(&self, to: IpAddr) -> io::Result<UdpSocket> {
        let (family, protocol) = match to {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
        let socket = UdpSocket::from_std(socket.into())?;
        socket.connect((to, 0)).await?;
        Ok(socket)
    }
}
