//! What service and program say to each other: one JSON document a line, a request and then its answer.
//!
//! ```text
//!   {"version":1,"ask":"status"}
//!   {"version":1,"ask":"set_rules","network":{"egress":"allow","allow":[],"deny":[]},"unlock":[]}
//!   {"version":1,"ask":"set_firewall","rules":[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]}
//!   {"version":1,"ask":"set_forwards","ports":[{"protocol":"tcp","at":"127.64.0.1:22","guest_port":22,"is_new":true}]}
//!   {"version":1,"ask":"set_link"}
//!   {"version":1,"ask":"join","network":"0193…","cidr":"10.128.0.0/24","cidr6":"fd00:20::/64","address":"10.128.0.2"}
//!   {"version":1,"ask":"leave","network":"0193…"}
//!   ◄ {"answer":"done"}   {"answer":"status",…}   {"answer":"refused","reason":"…"}
//! ```
//!
//! Descriptors come beside the line (unix(7), SCM_RIGHTS): a bound socket for each port that is new, in order, the
//! connection to the machine's network card, and one end of a link to a network's switch, if there is one. Everything can
//! be said again: it sets what is to be, not what changes.

use std::net::{Ipv4Addr, SocketAddr};

use berth_domain::firewall::{MAX_MEMBERS, MAX_RULES, Rules};
use berth_domain::ids::NetworkId;
use berth_domain::sandbox::network_policy::NetworkPolicy;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::conversation::Language;

/// The version of these messages.
pub const VERSION: u32 = 1;
/// Bytes of the longest line: firewall rules of as many addresses as they may have, of 42 bytes each, and of 1,024 bytes
/// beside those.
const LONGEST: usize = 16 << 20;
const _: () = assert!(MAX_MEMBERS * 42 + MAX_RULES * 1024 < LONGEST);

/// The language of a machine's program.
#[derive(Debug)]
pub(super) struct OfMachine;

impl Language for OfMachine {
    type Ask = Ask;
    type Status = Status;
    const VERSION: u32 = VERSION;
    const LONGEST: usize = LONGEST;
    const PROGRAM: &'static str = "the program of the network";

    fn status() -> Ask {
        Ask::Status
    }

    fn version(status: &Status) -> u32 {
        status.version
    }
}

/// What the service asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Ask {
    /// How things stand.
    Status,
    /// What the guest may reach from now on; connections that are not allowed any more end.
    SetRules {
        /// The rules.
        network: NetworkPolicy,
        /// What of special and host's addresses they may unlock.
        unlock: Vec<IpNet>,
    },
    /// The machine's firewall rules from now on, which narrow what the others let pass; what they do not allow any more
    /// ends.
    SetFirewall {
        /// The rules.
        rules: Rules,
    },
    /// Which ports lead into the guest from now on: these and no others.
    SetForwards {
        /// The ports. Those that are not new are open already, and stay as they are.
        ports: Vec<Asked>,
    },
    /// The machine's network card, as the descriptor beside it.
    SetLink,
    /// That the machine belongs to a network, by a link to its switch, which is the descriptor beside it. Without one,
    /// what goes to an address of the network is lost until there is a link, and never judged as what goes outside.
    Join {
        /// The network.
        network: NetworkId,
        /// Its addresses.
        cidr: Ipv4Net,
        /// Its IPv6 addresses, if it has some.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cidr6: Option<Ipv6Net>,
        /// The machine's own among them.
        address: Ipv4Addr,
    },
    /// That it belongs to a network no more.
    Leave {
        /// The network.
        network: NetworkId,
    },
}

/// A port that is to be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asked {
    #[serde(flatten)]
    pub port: Port,
    /// Whether its socket comes beside the line.
    pub is_new: bool,
}

/// How things stand with a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of messages that it speaks.
    pub version: u32,
    /// Whether it has the machine's network card.
    pub is_linked: bool,
    /// The ports that lead into the guest.
    pub ports: Vec<Port>,
    /// Bytes of frames to the guest since it began.
    pub rx_bytes: u64,
    /// Bytes of frames from the guest since it began.
    pub tx_bytes: u64,
    /// The networks that the machine belongs to. A program of an earlier Berth knows of none.
    #[serde(default)]
    pub networks: Vec<InNetwork>,
}

/// That a machine belongs to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InNetwork {
    /// The network.
    pub network: NetworkId,
    /// The machine's address in it.
    pub address: Ipv4Addr,
    /// Whether there is a link to its switch.
    pub is_linked: bool,
    /// The network's IPv6 addresses. A program of an earlier Berth knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<Ipv6Net>,
}

/// A port of the host that leads into the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The protocol.
    pub protocol: Protocol,
    /// Address and port on the host.
    pub at: SocketAddr,
    /// The port in the guest.
    pub guest_port: u16,
}

impl Port {
    /// Whether both are the same port of the host, wherever they lead.
    pub fn is_at(&self, other: &Self) -> bool {
        (self.protocol, self.at) == (other.protocol, other.at)
    }
}

/// A layer-4 protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

#[cfg(test)]
mod tests {
    use super::super::conversation::{Answer, Request};
    use super::*;

    const RULES: &str = r#"[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]"#;

    #[test]
    fn messages_are_what_they_are_documented_to_be() {
        let port = Port { protocol: Protocol::Tcp, at: "127.64.0.1:22".parse().unwrap(), guest_port: 22 };
        let network = "01939f2e-7c00-7abc-8def-0123456789ab".parse().unwrap();
        let messages = [
            (Ask::Status, r#"{"version":1,"ask":"status"}"#),
            (
                Ask::SetRules { network: NetworkPolicy::default(), unlock: vec!["10.0.0.0/8".parse().unwrap()] },
                r#"{"version":1,"ask":"set_rules","network":{"egress":"allow","allow":[],"deny":[]},"unlock":["10.0.0.0/8"]}"#,
            ),
            (
                Ask::SetFirewall { rules: serde_json::from_str(RULES).unwrap() },
                r#"{"version":1,"ask":"set_firewall","rules":[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]}"#,
            ),
            (
                Ask::SetForwards { ports: vec![Asked { port, is_new: true }] },
                r#"{"version":1,"ask":"set_forwards","ports":[{"protocol":"tcp","at":"127.64.0.1:22","guest_port":22,"is_new":true}]}"#,
            ),
            (Ask::SetLink, r#"{"version":1,"ask":"set_link"}"#),
            (
                Ask::Join {
                    network,
                    cidr: "10.128.0.0/24".parse().unwrap(),
                    cidr6: None,
                    address: [10, 128, 0, 2].into(),
                },
                r#"{"version":1,"ask":"join","network":"01939f2e-7c00-7abc-8def-0123456789ab","cidr":"10.128.0.0/24","address":"10.128.0.2"}"#,
            ),
            (
                Ask::Join {
                    network,
                    cidr: "10.128.0.0/24".parse().unwrap(),
                    cidr6: Some("fd00:20::/64".parse().unwrap()),
                    address: [10, 128, 0, 2].into(),
                },
                r#"{"version":1,"ask":"join","network":"01939f2e-7c00-7abc-8def-0123456789ab","cidr":"10.128.0.0/24","cidr6":"fd00:20::/64","address":"10.128.0.2"}"#,
            ),
            (Ask::Leave { network }, r#"{"version":1,"ask":"leave","network":"01939f2e-7c00-7abc-8def-0123456789ab"}"#),
        ];
        for (ask, text) in messages {
            let request = Request { version: VERSION, ask };
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request<Ask>>(text).unwrap(), request);
        }
        let refused = Answer::<Status>::Refused { reason: "no".into() };
        assert_eq!(serde_json::to_string(&refused).unwrap(), r#"{"answer":"refused","reason":"no"}"#);
        assert_eq!(serde_json::to_string(&Answer::<Status>::Done).unwrap(), r#"{"answer":"done"}"#);
    }
}
