//! Firewall rules of a network or of a VM: how requests for them are read, and what they say of a packet.
//!
//! ```text
//!   rules in order ── the first that matches says `allow` or `deny`
//!                 └── none matches ──► allowed
//! ```
//!
//! Rules only narrow. From outside a VM is reached at SSH's port and at its exposed ports, whatever a rule allows; and what
//! the platform refuses to every guest, as the addresses of its host, no rule opens. A list that ends in a rule that
//! denies everything allows exactly what stands before it.
//!
//! A rule may speak of a group, whoever has a label. Who that is is told by rows ([`Rules::with_groups`]); whoever applies
//! rules is told their addresses, and of a group that nobody is in a rule says nothing. Nor does it of what comes from
//! outside the networks or goes there: who has one of the addresses there is somebody else.
//!
//! They speak of who begins: what answers something that was allowed passes, and what a change does not allow any more
//! ends.

use core::fmt;
use core::net::IpAddr;
use std::collections::BTreeSet;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{FieldError, Result};
use crate::fields::{Fields, Parsed, integer, text};
use crate::label::Label;
use crate::words;

/// Most rules of a network or a VM.
pub const MAX_RULES: usize = 100;
/// Most ports and ranges of ports of a rule.
pub const MAX_PORTS: usize = 32;
/// Most addresses of all groups of a list of rules together, of each rule anew: a hundred rules of 327 VMs, which have two
/// addresses each. A machine's program has memory for as many, and takes them in time (`berth_egress::program`); a host is
/// asked for them by one message.
pub const MAX_MEMBERS: usize = 1 << 16;
/// What a source begins with that is a group.
const GROUP: &str = "label:";

words! {
    /// Which way something goes that is begun, as the VM sees it, or a member of the network.
    Direction {
        /// To it.
        In = "in",
        /// From it.
        Out = "out",
    }
}

words! {
    /// Which protocol a rule speaks of.
    RuleProtocol {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
        /// ICMP, of IPv4 and IPv6.
        Icmp = "icmp",
        /// All of them.
        Any = "any",
    }
}

words! {
    /// What becomes of what a rule matches.
    Action {
        /// It passes.
        Allow = "allow",
        /// It is dropped.
        Deny = "deny",
    }
}

/// What is begun: a connection, a flow of datagrams, or a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// Which way it goes.
    pub direction: Direction,
    /// Its protocol; never [`RuleProtocol::Any`].
    pub protocol: RuleProtocol,
    /// The port that it goes to; none where the protocol has no ports.
    pub port: Option<u16>,
    /// The other side: where it comes from or goes to.
    pub other: IpAddr,
    /// Whether it goes between members of a network: outside, who has the address of one of them is another one.
    pub within: bool,
}

/// A port, or a range of them, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// A firewall rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which way.
    pub direction: Direction,
    /// Which protocol.
    pub protocol: RuleProtocol,
    /// Which ports; all where there are none.
    pub ports: Vec<Ports>,
    /// The other side: where what comes in is from, or where what goes out is to; anywhere where it is absent.
    pub source: Option<Source>,
    /// What becomes of it.
    pub action: Action,
}

/// The other side that a rule speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An address, or a range of them.
    Range(IpNet),
    /// Whoever has a label.
    Group(Group),
}

/// Whoever has a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The label.
    pub label: Label,
    /// Their addresses; none as an owner writes it.
    pub members: BTreeSet<IpAddr>,
}

/// Rules in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Vec<Plain>")]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Rules by which nothing begins.
    pub fn nothing() -> Self {
        let deny = |direction| Rule {
            direction,
            protocol: RuleProtocol::Any,
            ports: Vec::new(),
            source: None,
            action: Action::Deny,
        };
        Self(vec![deny(Direction::In), deny(Direction::Out)])
    }

    /// The rules in their order.
    pub fn list(&self) -> &[Rule] {
        &self.0
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a rule speaks of a group.
    pub fn has_groups(&self) -> bool {
        self.0.iter().any(|rule| matches!(rule.source, Some(Source::Group(_))))
    }

    /// The same rules with the addresses of those who have the labels; `None` where these are more than [`MAX_MEMBERS`]
    /// together.
    pub fn with_members(&self, members: impl Fn(&Label) -> BTreeSet<IpAddr>) -> Option<Self> {
        let (mut rules, mut left) = (self.clone(), MAX_MEMBERS);
        for rule in &mut rules.0 {
            if let Some(Source::Group(group)) = &mut rule.source {
                group.members = members(&group.label);
                left = left.checked_sub(group.members.len())?;
            }
        }
        Some(rules)
    }

    /// The same. Where there are too many, as after labels changed, nothing passes by a group that nobody can be told of: a
    /// rule that allows one is none, and one that denies one denies everybody.
    #[must_use]
    pub fn with_groups(&self, members: impl Fn(&Label) -> BTreeSet<IpAddr>) -> Self {
        let closed = |rule: &mut Rule| {
            let is_group = matches!(rule.source, Some(Source::Group(_)));
            if is_group {
                rule.source = None;
            }
            !is_group || rule.action == Action::Deny
        };
        self.with_members(members).unwrap_or_else(|| {
            let mut rules = self.clone();
            rules.0.retain_mut(closed);
            rules
        })
    }

    /// How many addresses its groups have together.
    fn members(&self) -> usize {
        let of = |rule: &Rule| match &rule.source {
            Some(Source::Group(group)) => group.members.len(),
            Some(Source::Range(_)) | None => 0,
        };
        self.0.iter().map(of).sum()
    }

    /// Whether something may begin.
    pub fn allow(&self, beginning: &Beginning) -> bool {
        let first = self.0.iter().find(|rule| rule.matches(beginning));
        first.is_none_or(|rule| rule.action == Action::Allow)
    }
}

impl Rule {
    fn matches(&self, beginning: &Beginning) -> bool {
        let Beginning { direction, protocol, port, other, within } = beginning;
        let is_protocol = self.protocol == RuleProtocol::Any || self.protocol == *protocol;
        let is_port = self.ports.is_empty() || port.is_some_and(|port| self.ports.iter().any(|ports| ports.has(port)));
        let is_other = self.source.as_ref().is_none_or(|source| source.has(other.to_canonical(), *within));
        self.direction == *direction && is_protocol && is_port && is_other
    }

    /// Reads a rule as whoever applies it is told, with who is in a group.
    fn read_told(f: &mut Fields<'_>) -> Option<Self> {
        let address = |value: &Value| text(value)?.parse::<IpAddr>().map_err(|_| "must be an address".into());
        let members = if f.has("members") { f.list("members", MAX_MEMBERS, address)? } else { Vec::new() };
        let mut rule = Self::read(f)?;
        if let Some(Source::Group(group)) = &mut rule.source {
            group.members = members.into_iter().collect();
        }
        Some(rule)
    }

    fn read(f: &mut Fields<'_>) -> Option<Self> {
        let direction = f.required("direction", |value| Direction::parse(text(value)?));
        let protocol = f.required("protocol", |value| RuleProtocol::parse(text(value)?));
        let ports = if f.has("ports") { ports(f) } else { Some(Vec::new()) };
        let source = f.optional("source", source);
        let action = f.required("action", |value| Action::parse(text(value)?));
        if protocol.is_some_and(|protocol| matches!(protocol, RuleProtocol::Icmp | RuleProtocol::Any)) && f.has("ports")
        {
            f.fail("ports", "need protocol tcp or udp");
        }
        Some(Self { direction: direction?, protocol: protocol?, ports: ports?, source, action: action? })
    }
}

impl Source {
    fn has(&self, address: IpAddr, within: bool) -> bool {
        match self {
            Self::Range(range) => range.contains(&address),
            Self::Group(group) => within && group.members.contains(&address),
        }
    }
}

impl Ports {
    /// Whether a port is one of them.
    pub const fn has(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// The first and the last of them.
    pub const fn ends(&self) -> (u16, u16) {
        (self.first, self.last)
    }

    fn parse(value: &Value) -> Parsed<Self> {
        const RULE: &str = "must be a port from 1 to 65535, or a range such as \"8000-8100\"";
        let is_plain = |text: &&str| text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        let port = |text: &str| Some(text).filter(is_plain)?.parse().ok().filter(|port| *port != 0);
        let number = |value: &Value| u16::try_from(integer(1, 65_535)(value).ok()?).ok();
        let of_text = |text: &str| match text.split_once('-') {
            Some((first, last)) => Some(Self { first: port(first)?, last: port(last)? }),
            None => port(text).map(Self::from),
        };
        let ports = number(value).map(Self::from).or_else(|| value.as_str().and_then(of_text)).ok_or(RULE)?;
        if ports.first > ports.last { Err("must not end before it begins".into()) } else { Ok(ports) }
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// Reads the ports of a rule, of which there must be some: none would mean all.
fn ports(f: &mut Fields<'_>) -> Option<Vec<Ports>> {
    let ports = f.list("ports", MAX_PORTS, Ports::parse)?;
    if ports.is_empty() {
        f.fail("ports", "must name a port; leave the field out for all ports");
    }
    Some(ports)
}

fn source(value: &Value) -> Parsed<Source> {
    let text = text(value)?;
    if let Some(label) = text.strip_prefix(GROUP) {
        return Ok(Source::Group(Group { label: Label::parse(label)?, members: BTreeSet::new() }));
    }
    let source = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let source = source
        .map_err(|_| "must be an address or a range such as 10.20.0.0/24 or 2001:db8::/32, or label:KEY=VALUE")?;
    if matches!(source, IpNet::V6(net) if net.addr().to_ipv4_mapped().is_some()) {
        return Err("is IPv4 in the form of IPv6: write it as IPv4".into());
    }
    let whole = source.trunc();
    if source != whole {
        return Err(format!("has bits set behind its prefix: write {whole}"));
    }
    Ok(Source::Range(source))
}

/// A valid request for the rules of a network or a VM: these and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRules {
    /// The rules.
    pub rules: Rules,
}

impl TryFrom<&Value> for SetRules {
    type Error = crate::Error;

    fn try_from(body: &Value) -> Result<Self> {
        Ok(Self { rules: read(body, Rule::read)? })
    }
}

fn read(body: &Value, rule: impl Fn(&mut Fields<'_>) -> Option<Rule>) -> Result<Rules> {
    let mut f = Fields::of(body);
    if !f.has("rules") {
        f.fail("rules", "is required");
    }
    let rules = f.objects("rules", MAX_RULES, |f| rule(f));
    f.finish(rules.map(Rules))
}

impl TryFrom<Value> for Rules {
    type Error = crate::Error;

    fn try_from(value: Value) -> Result<Self> {
        let body = Value::from_iter([("rules", value)]);
        let rules = read(&body, Rule::read_told)?;
        if rules.members() > MAX_MEMBERS {
            let message = format!("have groups of more than {MAX_MEMBERS} addresses together");
            return Err(crate::Error::invalid(vec![FieldError { field: "rules".into(), message }]));
        }
        Ok(rules)
    }
}

/// A rule as it stands on the wire and in the database.
#[derive(Serialize)]
struct Plain {
    direction: &'static str,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    members: BTreeSet<IpAddr>,
    action: &'static str,
}

impl From<Rules> for Vec<Plain> {
    fn from(rules: Rules) -> Self {
        let ports =
            |ports: &Ports| if ports.first == ports.last { ports.first.into() } else { ports.to_string().into() };
        let plain = |rule: Rule| Plain {
            direction: rule.direction.as_str(),
            protocol: rule.protocol.as_str(),
            ports: rule.ports.iter().map(ports).collect(),
            source: rule.source.as_ref().map(plain_source),
            members: members(rule.source),
            action: rule.action.as_str(),
        };
        rules.0.into_iter().map(plain).collect()
    }
}

/// A single address stands without its prefix.
fn plain_source(source: &Source) -> String {
    match source {
        Source::Range(range) if range.prefix_len() == range.max_prefix_len() => range.addr().to_string(),
        Source::Range(range) => range.to_string(),
        Source::Group(group) => format!("{GROUP}{}", group.label),
    }
}

fn members(source: Option<Source>) -> BTreeSet<IpAddr> {
    match source {
        Some(Source::Group(group)) => group.members,
        Some(Source::Range(_)) | None => BTreeSet::new(),
    }
}

#[cfg(test)]
#[path = "firewall_tests.rs"]
mod tests;
