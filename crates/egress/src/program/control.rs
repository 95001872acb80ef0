//! The service's side of a control connection.

use std::io;
use std::os::fd::OwnedFd;

use berth_domain::firewall::Rules;
use berth_domain::ids::NetworkId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use tokio::net::UnixStream;

use super::conversation::Conversation;
use super::protocol::{Ask, Asked, OfMachine, Port, Status};
use crate::network::At;

/// A connection to a program. It does one thing at a time.
#[derive(Debug)]
pub struct Control {
    conversation: Conversation<OfMachine>,
}

impl Control {
    pub(super) fn over(stream: UnixStream) -> Self {
        Self { conversation: Conversation::over(stream) }
    }

    /// How things stand.
    ///
    /// # Errors
    /// The program does not answer in time, or not in this version.
    pub async fn status(&mut self) -> io::Result<Status> {
        self.conversation.status().await
    }

    /// Sets what the guest may reach; connections that are not allowed any more end.
    ///
    /// # Errors
    /// The program does not answer in time, or refuses.
    pub async fn set_rules(&mut self, network: &NetworkPolicy) -> io::Result<()> {
        let (network, unlock) = (network.clone(), network.unlock.clone());
        self.conversation.done(Ask::SetRules { network, unlock }, &[]).await
    }

    /// Sets the machine's firewall rules; what they do not allow any more ends.
    ///
    /// # Errors
    /// The program does not answer in time; [`io::ErrorKind::Unsupported`] where it is one of an earlier Berth, which
    /// knows of no rules, or refuses such as speak of groups, which one of a less early Berth does not know.
    pub async fn set_firewall(&mut self, rules: Rules) -> io::Result<()> {
        let (has_groups, ask) = (rules.has_groups(), Ask::SetFirewall { rules });
        if has_groups {
            return self.conversation.done_if_read(ask, &[]).await;
        }
        self.conversation.done_if_known(ask, &[]).await
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
        self.conversation.done(Ask::SetForwards { ports: kept.chain(added).collect() }, &sockets).await
    }

    /// Gives it the connection to the machine's network card. From here on it lives as long as that does.
    ///
    /// # Errors
    /// The program does not answer in time, or was told no rules yet.
    pub async fn set_link(&mut self, link: &OwnedFd) -> io::Result<()> {
        self.conversation.done(Ask::SetLink, &[link]).await
    }

    /// Tells it that the machine belongs to a network, with an address of its own there, by a link to the network's
    /// switch. Without one, it keeps the link that it has; where it has none, what goes to the network is lost.
    ///
    /// # Errors
    /// The program does not answer in time; [`io::ErrorKind::InvalidInput`] where it refuses, and
    /// [`io::ErrorKind::Unsupported`] where it is one of an earlier Berth, which knows of no networks.
    pub async fn join(&mut self, network: NetworkId, at: impl Into<At>, link: Option<&OwnedFd>) -> io::Result<()> {
        let At { cidr, cidr6, own } = at.into();
        let ask = Ask::Join { network, cidr, cidr6, address: own };
        self.conversation.done_if_known(ask, link.as_slice()).await
    }

    /// Tells it that the machine belongs to a network no more; fine where it does not.
    ///
    /// # Errors
    /// As of [`Self::join`].
    pub async fn leave(&mut self, network: NetworkId) -> io::Result<()> {
        self.conversation.done(Ask::Leave { network }, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    /// What becomes of telling rules to a program that answers so.
    async fn told(rules: serde_json::Value, reason: &str) -> io::Error {
        let (near, far) = UnixStream::pair().unwrap();
        let mut answer = json!({"answer": "refused", "reason": reason}).to_string().into_bytes();
        answer.push(b'\n');
        let program = async {
            let mut far = BufReader::new(far);
            far.read_line(&mut String::new()).await.unwrap();
            far.write_all(&answer).await.unwrap();
        };
        let mut control = Control::over(near);
        let rules = serde_json::from_value(rules).unwrap();
        tokio::join!(control.set_firewall(rules), program).0.unwrap_err()
    }

    #[tokio::test]
    async fn a_program_that_knows_no_rules_or_no_groups_is_told_from_one_that_refuses() {
        const NO_RULES: &str = "unknown variant `set_firewall`, expected one of `status`, `set_rules`";
        const NO_GROUPS: &str =
            "invalid_request: rules[0].source must be an address or a range such as 10.20.0.0/24 or 2001:db8::/32";
        let plain = || json!([{"direction": "in", "protocol": "any", "action": "deny"}]);
        let groups = || json!([{"direction": "in", "protocol": "any", "source": "label:role=web", "members": ["10.128.0.2"], "action": "deny"}]);
        for (rules, reason, kind) in [
            (plain(), NO_RULES, io::ErrorKind::Unsupported),
            (groups(), NO_RULES, io::ErrorKind::Unsupported),
            (groups(), NO_GROUPS, io::ErrorKind::Unsupported),
            (plain(), "it speaks version 2, not 1", io::ErrorKind::InvalidInput),
        ] {
            let error = told(rules, reason).await;
            assert_eq!(error.kind(), kind, "{error}");
        }
        assert!(told(groups(), NO_GROUPS).await.to_string().contains("10.20.0.0/24"), "it says why");
    }
}
