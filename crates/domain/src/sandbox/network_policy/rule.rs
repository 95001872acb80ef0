//! One rule: a network of addresses, or a pattern of domain names.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Serialize, Serializer};

/// What an `allow` or `deny` list is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Addresses: a CIDR without host bits, never in the IPv4-mapped range of IPv6.
    Network(IpNet),
    /// Names.
    Domain(Pattern),
}

/// A domain name, or everything below one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// In lower case, without the dot at the end.
    name: String,
    /// `*.name`: every name below at any depth, but not the name itself.
    below: bool,
}

impl Rule {
    /// The network, if the rule speaks of addresses.
    pub const fn network(&self) -> Option<&IpNet> {
        match self {
            Self::Network(network) => Some(network),
            Self::Domain(_) => None,
        }
    }

    /// The pattern, if the rule speaks of names.
    pub const fn pattern(&self) -> Option<&Pattern> {
        match self {
            Self::Network(_) => None,
            Self::Domain(pattern) => Some(pattern),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return network(address.into()).map(Self::Network);
        }
        if text.contains('/') {
            return cidr(text).map(Self::Network);
        }
        Pattern::from_str(text).map(Self::Domain)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => network.addr().fmt(f),
            Self::Network(network) => network.fmt(f),
            Self::Domain(pattern) => pattern.fmt(f),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Pattern {
    /// Whether a name, in any case and with or without the dot at its end, is meant.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).as_bytes();
        let pattern = self.name.as_bytes();
        if !self.below {
            return name.eq_ignore_ascii_case(pattern);
        }
        let Some(split) = name.len().checked_sub(pattern.len()) else { return false };
        let (head, tail) = name.split_at(split);
        head.len() > 1 && head.ends_with(b".") && tail.eq_ignore_ascii_case(pattern)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.is_ascii() {
            return Err("must be ASCII: write an international domain name in its punycode form, such as \
                        xn--bcher-kva.example"
                .into());
        }
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_suffix('.').unwrap_or(&lower);
        let (name, below) = name.strip_prefix("*.").map_or((name, false), |name| (name, true));
        if name.contains('*') {
            return Err("may have a wildcard only as its first label, such as *.example.org".into());
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        if name.len() > 253 || !name.split('.').all(label) || last.bytes().all(|b| b.is_ascii_digit()) {
            return Err(UNKNOWN.into());
        }
        Ok(Self { name: name.to_owned(), below })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

const UNKNOWN: &str = "must be a network such as 198.51.100.0/24 or 2001:db8::/32, an address, a domain name such \
                       as example.org, or *.example.org; without scheme, port and path";

fn cidr(text: &str) -> Result<IpNet, String> {
    network(text.parse().map_err(|_| UNKNOWN)?)
}

fn network(network: IpNet) -> Result<IpNet, String> {
    let whole = network.trunc();
    if whole != network {
        return Err(format!("has bits set behind its prefix: write {whole}"));
    }
    if let IpNet::V6(v6) = whole
        && let Some(v4) = v6.addr().to_ipv4_mapped()
    {
        let prefix = v6.prefix_len().saturating_sub(96);
        return Err(format!("is an IPv4 network in IPv6 notation: write {v4}/{prefix}"));
    }
    Ok(whole)
}

fn label(label: &str) -> bool {
    let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    (1..=63).contains(&label.len()) && label.bytes().all(known) && !label.starts_with('-') && !label.ends_with('-')
}
