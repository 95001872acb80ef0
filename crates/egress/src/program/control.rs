//! The service's side of a control connection.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use berth_domain::ids::NetworkId;
use berth_domain::sandbox::network::Network;
use ipnet::Ipv4Net;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::channel::Channel;
use super::protocol::{Answer, Ask, Asked, Port, Request, Status, VERSION};

/// How long a program may take for an answer. Measured: below 1 ms.
const PATIENCE: Duration = Duration::from_secs(5);
/// How a program begins its refusal of what it does not know; all that were ever shipped do.
const UNKNOWN: &str = "unknown variant";

/// A connection to a program. It does one thing at a time.
#[derive(Debug)]
pub struct Control {
    channel: Channel,
}

impl Control {
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { channel: Channel::new(stream) }
    }

    /// How things stand.
    ///
    /// # Errors
    /// The program does not answer in time, or not in this version.
    pub async fn status(&mut self) -> io::Result<Status> {
        match self.ask(Ask::Status, &[]).await? {
            Answer::Status(status) if status.version == VERSION => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets what the guest may reach; connections that are not allowed any more end.
    ///
    /// # Errors
    /// The program does not answer in time, or refuses.
    pub async fn set_rules(&mut self, network: &Network) -> io::Result<()> {
        let (network, unlock) = (network.clone(), network.unlock.clone());
        self.done(Ask::SetRules { network, unlock }, &[]).await
    }

    /// Sets which ports lead into the guest: those of `kept`, which do so already, and the sockets of `new`. Others are
    /// closed once this returns.
    ///
    /// # Errors
    /// The program does not answer in time, or lacks one that is to be kept.
    pub async fn set_forwards(&mut self, kept: &[Port], new: &[(Port, OwnedFd)]) -> io::Result<()> {
        let kept = kept.iter().map(|port| Asked { port: *port, is_new: false });
        let added = new.iter().map(|(port, _)| Asked { port: *port, is_new: true });
        let sockets: Vec<_> = new.iter().map(|(_, socket)| socket).collect();
        self.done(Ask::SetForwards { ports: kept.chain(added).collect() }, &sockets).await
    }

    /// Gives it the connection to the machine's network card. From here on it lives as long as that does.
    ///
    /// # Errors
    /// The program does not answer in time, or was told no rules yet.
    pub async fn set_link(&mut self, link: &OwnedFd) -> io::Result<()> {
        self.done(Ask::SetLink, &[link]).await
    }

    /// Tells it that the machine belongs to a network, with an address of its own there, by a link to the network's
    /// switch.
    ///
    /// # Errors
    /// The program does not answer in time, or refuses; [`io::ErrorKind::Unsupported`] where it is one of an earlier
    /// Berth, which knows of no networks.
    pub async fn join(&mut self, network: NetworkId, at: (Ipv4Net, Ipv4Addr), link: &OwnedFd) -> io::Result<()> {
        match self.ask(Ask::Join { network, cidr: at.0, address: at.1 }, &[link]).await? {
            Answer::Refused { reason } if reason.starts_with(UNKNOWN) => Err(io::ErrorKind::Unsupported.into()),
            answer => done(&answer),
        }
    }

    /// Tells it that the machine belongs to a network no more; fine where it does not.
    ///
    /// # Errors
    /// As of [`Self::join`].
    pub async fn leave(&mut self, network: NetworkId) -> io::Result<()> {
        self.done(Ask::Leave { network }, &[]).await
    }

    async fn done(&mut self, ask: Ask, beside: &[&OwnedFd]) -> io::Result<()> {
        done(&self.ask(ask, beside).await?)
    }

    async fn ask(&mut self, ask: Ask, beside: &[&OwnedFd]) -> io::Result<Answer> {
        let line = serde_json::to_vec(&Request { version: VERSION, ask })?;
        let beside: Vec<_> = beside.iter().map(|descriptor| descriptor.as_fd()).collect();
        let answered = async {
            self.channel.send(line, &beside).await?;
            let answer = self.channel.receive().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok(serde_json::from_slice(&answer.line)?)
        };
        timeout(PATIENCE, answered).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

fn done(answer: &Answer) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn unexpected(answer: &Answer) -> io::Error {
    match answer {
        Answer::Refused { reason } => io::Error::other(format!("the program of the network refused: {reason}")),
        Answer::Done | Answer::Status(_) => io::Error::other("the program of the network answered something else"),
    }
}
