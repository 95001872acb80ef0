//! What service and switch say to each other, in the form of [the other program](super::super)'s messages.
//!
//! ```text
//!   {"version":1,"ask":"status"}
//!   {"version":1,"ask":"set","name":"front","cidr":"10.128.0.0/24","members":[{"machine":"0193…","address":"10.128.0.2","names":["web"]}]}
//!   {"version":1,"ask":"set_firewall","rules":[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]}
//!   {"version":1,"ask":"link","address":"10.128.0.2"}
//!   ◄ {"answer":"done"}   {"answer":"status",…}   {"answer":"refused","reason":"…"}
//! ```

use std::net::Ipv4Addr;

use berth_domain::firewall::Rules;
use ipnet::Ipv6Net;
use serde::{Deserialize, Serialize};

use super::super::conversation::Language;
use crate::network::Roster;

/// The version of these messages.
pub const VERSION: u32 = 1;
/// Bytes of the longest line: as many members as the largest network has addresses, with two of the longest names each.
const LONGEST: usize = 16 << 20;

/// The language of a switch.
#[derive(Debug)]
pub(super) struct OfSwitch;

impl Language for OfSwitch {
    type Ask = Ask;
    type Status = Status;
    const VERSION: u32 = VERSION;
    const LONGEST: usize = LONGEST;
    const PROGRAM: &'static str = "the switch of the network";

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
    /// What the network is from now on. Links of those that are no members any more end.
    Set(Roster),
    /// The network's firewall rules from now on. What they do not allow any more ends.
    SetFirewall {
        /// The rules.
        rules: Rules,
    },
    /// The link of a member, as the descriptor beside it.
    Link {
        /// The member's address.
        address: Ipv4Addr,
    },
}

/// How things stand with a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of messages that it speaks.
    pub version: u32,
    /// The members that it has a link of.
    pub links: Vec<Linked>,
    /// The network's IPv6 addresses. One of an earlier Berth knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cidr6: Option<Ipv6Net>,
}

/// A member that a switch has a link of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linked {
    /// Its address.
    pub address: Ipv4Addr,
    /// The machine that the link was made for.
    pub machine: String,
}

#[cfg(test)]
mod tests {
    use super::super::super::conversation::Request;
    use super::*;
    use crate::network::Member;

    const RULES: &str = r#"[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]"#;

    #[test]
    fn messages_are_what_they_are_documented_to_be() {
        let member = Member { machine: "a".into(), address: [10, 128, 0, 2].into(), names: vec!["web".into()] };
        let network =
            Roster { name: "front".into(), cidr: "10.128.0.0/24".parse().unwrap(), cidr6: None, members: vec![member] };
        let both = Roster { cidr6: Some("fd00:20::/64".parse().unwrap()), members: Vec::new(), ..network.clone() };
        let messages = [
            (Ask::Status, r#"{"version":1,"ask":"status"}"#),
            (
                Ask::Set(network),
                r#"{"version":1,"ask":"set","name":"front","cidr":"10.128.0.0/24","members":[{"machine":"a","address":"10.128.0.2","names":["web"]}]}"#,
            ),
            (
                Ask::Set(both),
                r#"{"version":1,"ask":"set","name":"front","cidr":"10.128.0.0/24","cidr6":"fd00:20::/64","members":[]}"#,
            ),
            (
                Ask::SetFirewall { rules: serde_json::from_str(RULES).unwrap() },
                r#"{"version":1,"ask":"set_firewall","rules":[{"direction":"in","protocol":"tcp","ports":[22],"action":"deny"}]}"#,
            ),
            (Ask::Link { address: [10, 128, 0, 2].into() }, r#"{"version":1,"ask":"link","address":"10.128.0.2"}"#),
        ];
        for (ask, text) in messages {
            let request = Request { version: VERSION, ask };
            assert_eq!(serde_json::to_string(&request).unwrap(), text);
            assert_eq!(serde_json::from_str::<Request<Ask>>(text).unwrap(), request);
        }
    }
}
