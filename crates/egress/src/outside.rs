//! The outside world, as far as a gateway needs it.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use async_trait::async_trait;
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
    async fn connect(&self, to: SocketAddrV4) -> io::Result<Box<dyn Connection>>;

    /// A socket that exchanges datagrams with one address.
    async fn datagrams(&self, to: SocketAddrV4) -> io::Result<UdpSocket>;
}

/// The host's network.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealOutside;

#[async_trait]
impl Outside for RealOutside {
    async fn connect(&self, to: SocketAddrV4) -> io::Result<Box<dyn Connection>> {
        let stream = TcpStream::connect(to).await?;
        // The guest's own stack decides what is sent together.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    async fn datagrams(&self, to: SocketAddrV4) -> io::Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
        socket.connect(to).await?;
        Ok(socket)
    }
}
