//! Which part of the world a sandbox may reach.
//!
//! ```text
//!   a `deny` rule matches the address, or a name it was resolved from ──► denied
//!   the address is the host's own, or special ─── no `allow` address rule names it, or
//!                                                 the operator lets none unlock it ──► denied
//!   egress `allow` ──► allowed
//!   egress `deny`, an `allow` rule matches the address or a name ──► allowed, else denied
//! ```
//!
//! Two things a rule cannot do. A domain name never unlocks a special or a host's address, because whoever
//! owns the name decides what it resolves to. And a wide network never does so by accident: `0.0.0.0/0` means
//! the outside world, so a special address is unlocked by a rule that lies within its [special](mod@special)
//! range, and an address of the host by a rule for exactly that address. Of both only what the operator lets rules
//! unlock ([`NetworkPolicy::unlock`]), which is nothing unless they say so.
//!
//! Domain rules hold at two places: [`NetworkPolicy::resolves`] says which names are looked up at all, and
//! [`NetworkPolicy::decide`] judges a connection by the names its address was resolved from. Several names often
//! share one address, so a domain rule is as exact as its address is exclusive.

pub mod rule;
pub mod special;

use core::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::error::Result;
use crate::fields::{Fields, Parsed, text};
use crate::words;
pub use rule::{Pattern, Rule};
pub use special::Special;

/// Most rules of a list.
pub const MAX_RULES: usize = 100;

words! {
    /// What becomes of a connection that no rule speaks of.
    Egress {
        /// It may reach the outside world.
        Allow = "allow",
        /// It is refused.
        Deny = "deny",
    }
}

impl Serialize for Egress {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The rules of a sandbox's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value")]
pub struct NetworkPolicy {
    /// What holds where no rule matches.
    pub egress: Egress,
    /// What is allowed besides.
    pub allow: Vec<Rule>,
    /// What is denied in any case.
    pub deny: Vec<Rule>,
    /// Special and host's addresses that rules of `allow` may unlock, as the operator has it. It is no part of what an
    /// owner says: whoever enforces rules sets it.
    #[serde(skip)]
    pub unlock: Vec<IpNet>,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { egress: Egress::Allow, allow: Vec::new(), deny: Vec::new(), unlock: Vec::new() }
    }
}

impl TryFrom<Value> for NetworkPolicy {
    type Error = crate::Error;

    fn try_from(value: Value) -> Result<Self> {
        Self::try_from(&value)
    }
}

impl TryFrom<&Value> for NetworkPolicy {
    type Error = crate::Error;

    fn try_from(value: &Value) -> Result<Self> {
        let mut fields = Fields::of(value);
        let network = Self::read(&mut fields);
        fields.finish(network)
    }
}

/// Where a connection wants to go, as far as the gateway knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The address.
    pub address: IpAddr,
    /// The names this guest resolved to the address, aliases included.
    pub names: Vec<Arc<str>>,
    /// Whether the address is one of the host's own.
    pub host: bool,
}

/// Whether a connection may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Allow,
    /// It may not.
    Deny(Reason),
}

/// Why a connection may not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A rule of `deny` matches.
    Rule,
    /// The address is special and no `allow` rule names it.
    Special(Special),
    /// The address is the host's and no `allow` rule names it.
    Host,
    /// Egress is `deny` and no `allow` rule matches.
    Egress,
}

/// A change of the rules; what is absent stays as it is, so that who allows one more host does not open all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkPolicyChange {
    /// What holds from now on where no rule matches.
    pub egress: Option<Egress>,
    /// What is allowed besides from now on, in place of what was.
    pub allow: Option<Vec<Rule>>,
    /// What is denied from now on, in place of what was.
    pub deny: Option<Vec<Rule>>,
}

impl NetworkPolicyChange {
    /// Reads `{egress?, allow?, deny?}`; an error names the list and the index.
    pub fn read(f: &mut Fields<'_>) -> Option<Self> {
        let egress = f.optional("egress", |value| Egress::parse(text(value)?));
        let allow = f.list("allow", MAX_RULES, rule);
        let deny = f.list("deny", MAX_RULES, rule);
        (!f.failed()).then_some(Self { egress, allow, deny })
    }

    /// The rules after it.
    pub fn of(self, before: NetworkPolicy) -> NetworkPolicy {
        NetworkPolicy {
            egress: self.egress.unwrap_or(before.egress),
            allow: self.allow.unwrap_or(before.allow),
            deny: self.deny.unwrap_or(before.deny),
            unlock: before.unlock,
        }
    }
}

impl NetworkPolicy {
    /// Reads `{egress?, allow?, deny?}`: what changes in rules that allow the outside world.
    pub fn read(f: &mut Fields<'_>) -> Option<Self> {
        NetworkPolicyChange::read(f).map(|change| change.of(Self::default()))
    }

    /// Whether a connection to a destination may be made.
    pub fn decide(&self, destination: &Destination) -> Verdict {
        let address = destination.address.to_canonical();
        let matches = |rule: &Rule| match rule {
            Rule::Network(network) => network.contains(&address),
            Rule::Domain(pattern) => destination.names.iter().any(|name| pattern.matches(name)),
        };
        if self.deny.iter().any(matches) {
            return Verdict::Deny(Reason::Rule);
        }
        let may_unlock = self.unlock.iter().any(|network| network.contains(&address));
        if destination.host && !(may_unlock && self.names_exactly(address)) {
            return Verdict::Deny(Reason::Host);
        }
        if let Some(special) = Special::of(address)
            && !destination.host
            && !(may_unlock && self.names(address))
        {
            return Verdict::Deny(Reason::Special(special));
        }
        match self.egress {
            Egress::Allow => Verdict::Allow,
            Egress::Deny if self.allow.iter().any(matches) => Verdict::Allow,
            Egress::Deny => Verdict::Deny(Reason::Egress),
        }
    }

    /// Whether a name may be looked up at all. With egress `deny` only names of `allow` rules may, so that the
    /// questions themselves are no way out.
    pub fn resolves(&self, name: &str) -> bool {
        let matches = |rules: &[Rule]| rules.iter().filter_map(Rule::pattern).any(|pattern| pattern.matches(name));
        !matches(&self.deny) && (self.egress == Egress::Allow || matches(&self.allow))
    }

    /// Whether a rule of `allow` names a special address.
    fn names(&self, address: IpAddr) -> bool {
        self.allow.iter().filter_map(Rule::network).any(|network| special::named(address, network))
    }

    fn names_exactly(&self, address: IpAddr) -> bool {
        self.allow.iter().filter_map(Rule::network).any(|network| *network == address.into())
    }
}

fn rule(value: &Value) -> Parsed<Rule> {
    text(value)?.parse()
}

#[cfg(test)]
#[path = "network_policy_tests.rs"]
mod tests;
