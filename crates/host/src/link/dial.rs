//! A connection to who has a name.

use std::io;

use berth_domain::Timestamp;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Authority, HostName, tls};

/// Connects to who has this name at `host:port`, with a certificate that is made for this connection, to speak this
/// protocol.
pub(super) async fn dial(
    authority: &Authority,
    (name, address): (HostName, &str),
    now: Timestamp,
    protocol: &[u8],
) -> io::Result<TlsStream<TcpStream>> {
    let made = authority.service(now);
    let made = made.and_then(|(own, key)| tls::of_service(own, key, authority.certificate().clone(), protocol));
    let config = made.map_err(io::Error::other)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = name.server().map_err(io::Error::other)?;
    TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream).await
}
