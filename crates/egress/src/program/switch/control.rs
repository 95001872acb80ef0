//! The service's side of a conversation with a switch.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use berth_domain::firewall::Rules;
use tokio::net::UnixStream;

use super::super::conversation::Conversation;
use super::protocol::{Ask, OfSwitch, Status};
use crate::network::Roster;

/// A connection to a switch. It does one thing at a time.
#[derive(Debug)]
pub struct Control {
    conversation: Conversation<OfSwitch>,
}

impl Control {
    pub(in super::super) fn over(stream: UnixStream) -> Self {
        Self { conversation: Conversation::over(stream) }
    }

    /// How things stand.
    ///
    /// # Errors
    /// The switch does not answer in time, or not in this version.
    pub async fn status(&mut self) -> io::Result<Status> {
        self.conversation.status().await
    }

    /// Tells what the network is. Links of those that are no members any more end.
    ///
    /// # Errors
    /// The switch does not answer in time, or refuses.
    pub async fn set(&mut self, network: Roster) -> io::Result<()> {
        self.conversation.done(Ask::Set(network), &[]).await
    }

    /// Tells the network's firewall rules. What they do not allow any more ends.
    ///
    /// # Errors
    /// The switch does not answer in time; [`io::ErrorKind::Unsupported`] where it is one of an earlier Berth, which
    /// knows of no rules.
    pub async fn set_firewall(&mut self, rules: Rules) -> io::Result<()> {
        self.conversation.done_if_known(Ask::SetFirewall { rules }, &[]).await
    }

    /// Gives it the link of the member at an address. One that it had of it ends.
    ///
    /// # Errors
    /// The switch does not answer in time, or has no such member.
    pub async fn link(&mut self, address: Ipv4Addr, link: &OwnedFd) -> io::Result<()> {
        self.conversation.done(Ask::Link { address }, &[link]).await
    }
}
