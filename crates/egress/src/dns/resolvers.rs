//! The platform's resolvers: which they are, and asking one after the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use super::message::{Answer, Question};
use crate::config::Resolvers;

/// Where the host keeps them.
const FILE: &str = "/etc/resolv.conf";
/// How old what was read may be.
const FRESH: Duration = Duration::from_secs(3);
/// Most resolvers that are asked, as resolv.conf(5) has it, and how often each is.
const MOST: usize = 3;
const ROUNDS: usize = 2;
/// Most datagrams of a resolver that may not fit a question.
const STRAYS: usize = 16;

/// Over what a question came, and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams.
    Udp,
    /// A connection.
    Tcp,
}

/// Asks until one answers; `None` where none does in time.
pub(super) async fn ask(
    resolvers: &Resolvers,
    patience: Duration,
    question: &Question,
    transport: Transport,
) -> Option<Answer> {
    let query = question.to_bytes()?;
    let resolvers = current(resolvers).await;
    for resolver in resolvers.iter().take(MOST).cycle().take(ROUNDS * resolvers.len().min(MOST)) {
        let asked = async {
            match transport {
                Transport::Udp => by_datagram(*resolver, &query, question).await,
                Transport::Tcp => by_connection(*resolver, &query, question).await,
            }
        };
        match tokio::time::timeout(patience, asked).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%resolver, %error, "a resolver failed"),
            Err(_) => tracing::debug!(%resolver, "a resolver did not answer in time"),
        }
    }
    None
}

async fn by_datagram(resolver: SocketAddr, query: &[u8], question: &Question) -> io::Result<Answer> {
    let any: IpAddr = if resolver.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    for _ in 0..STRAYS {
        let mut buffer = vec![0; 4096];
        let len = socket.recv(&mut buffer).await?;
        buffer.truncate(len);
        if let Some(answer) = Answer::parse(buffer, question) {
            return Ok(answer);
        }
    }
    Err(io::Error::other("what it sent does not answer the question"))
}

async fn by_connection(resolver: SocketAddr, query: &[u8], question: &Question) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(resolver).await?;
    let len = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), query].concat()).await?;
    let mut answer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut answer).await?;
    Answer::parse(answer, question).ok_or_else(|| io::Error::other("what it sent does not answer the question"))
}

async fn current(resolvers: &Resolvers) -> Vec<SocketAddr> {
    static READ: Mutex<Option<(Instant, Vec<SocketAddr>)>> = Mutex::new(None);
    let read = || READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Resolvers::Fixed(resolvers) = resolvers {
        return resolvers.clone();
    }
    let now = Instant::now();
    if let Some((when, resolvers)) = read().as_ref()
        && now.duration_since(*when) < FRESH
    {
        return resolvers.clone();
    }
    let text = tokio::fs::read(FILE).await.unwrap_or_default();
    let resolvers = parse(&text);
    *read() = Some((now, resolvers.clone()));
    resolvers
}

/// The resolvers of a file; as resolv.conf(5) has it, this machine where it names none.
fn parse(text: &[u8]) -> Vec<SocketAddr> {
    let config = resolv_conf::Config::parse(text).unwrap_or_default();
    let found: Vec<_> = config.nameservers.iter().map(|server| SocketAddr::new(server.into(), 53)).collect();
    if found.is_empty() { vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 53))] } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_resolvers() {
        let text = b"# a comment\nnameserver 192.0.2.1\noptions edns0 trust-ad\nnameserver 2001:db8::1\nsearch test\n";
        assert_eq!(parse(text), ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
        let local: Vec<SocketAddr> = vec!["127.0.0.1:53".parse().unwrap()];
        assert_eq!((parse(b""), parse(b"\xff\xfe")), (local.clone(), local));
    }
}
