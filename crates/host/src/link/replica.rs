//! Between replicas of one service: the same mutual TLS, and HTTP/1.1 on it, so that requests are passed on as they came,
//! those that leave HTTP among them.
//!
//! Every replica has the authority, so each makes its own certificate, and needs nobody who gives it one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use berth_domain::Timestamp;
use rustix::net::sockopt;
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::dial::dial;
use super::papers::Pem;
use super::{Authority, HostName, LinkError, tls};

/// A connection on which nothing was heard for this long is asked whether the other side is there, and so is each time
/// that it does not answer.
const SILENCE: Duration = Duration::from_secs(5);
/// How often it is asked before it is given up.
const QUESTIONS: u32 = 3;
/// How long the other side may leave unacknowledged what it was sent, in milliseconds: as long as it may be silent.
const UNACKNOWLEDGED: u32 = 20_000;

/// What a replica of this name serves its address for replicas with, and when its certificate ends.
///
/// # Errors
/// No certificate can be made.
pub fn serving(
    authority: &Authority,
    name: HostName,
    now: Timestamp,
) -> Result<(Arc<ServerConfig>, Timestamp), LinkError> {
    let (pem, until) = Pem::made(authority, name, now)?;
    Ok((pem.config(tls::HTTP1)?, until))
}

/// Connects to the replica that has this name at `host:port`. One whose machine is gone is given up within seconds,
/// however long an answer of one that is there may take.
///
/// # Errors
/// It is not there, or has another name.
pub async fn reach(
    authority: &Authority,
    name: HostName,
    address: &str,
    now: Timestamp,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = dial(authority, (name, address), now, tls::HTTP1).await?;
    let socket = stream.get_ref().0;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)?;
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED)?;
    Ok(stream)
}
