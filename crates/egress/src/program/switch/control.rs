//! The service's side of a conversation with a switch.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

use super::super::channel::Channel;
use super::protocol::{Answer, Ask, LONGEST, Request, Status, VERSION};
use crate::network::Roster;

/// How long a switch may take for an answer. Measured: below 1 ms.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a switch. It does one thing at a time.
#[derive(Debug)]
pub struct Control {
    channel: Channel,
}

impl Control {
    pub(in super::super) fn over(stream: UnixStream) -> Self {
        Self { channel: Channel::of(stream, LONGEST) }
    }

    /// How things stand.
    ///
    /// # Errors
    /// The switch does not answer in time, or not in this version.
    pub async fn status(&mut self) -> io::Result<Status> {
        match self.ask(Ask::Status, &[]).await? {
            Answer::Status(status) if status.version == VERSION => Ok(status),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells what the network is. Links of those that are no members any more end.
    ///
    /// # Errors
    /// The switch does not answer in time, or refuses.
    pub async fn set(&mut self, network: Roster) -> io::Result<()> {
        self.done(Ask::Set(network), &[]).await
    }

    /// Gives it the link of the member at an address. One that it had of it ends.
    ///
    /// # Errors
    /// The switch does not answer in time, or has no such member.
    pub async fn link(&mut self, address: Ipv4Addr, link: &OwnedFd) -> io::Result<()> {
        self.done(Ask::Link { address }, &[link]).await
    }

    async fn done(&mut self, ask: Ask, beside: &[&OwnedFd]) -> io::Result<()> {
        match self.ask(ask, beside).await? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
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

fn unexpected(answer: &Answer) -> io::Error {
    match answer {
        Answer::Refused { reason } => io::Error::other(format!("the switch of the network refused: {reason}")),
        Answer::Done | Answer::Status(_) => io::Error::other("the switch of the network answered something else"),
    }
}
