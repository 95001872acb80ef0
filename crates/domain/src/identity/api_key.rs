//! API keys of projects: what one looks like and what it is good for (contract, section 2).
//!
//! `brt_<12 characters>_<43 characters><6 characters>`: a public part by which people recognise a key, a
//! secret part of 256 bits, and a checksum of all before it, so that a mistyped key, or a random string in a
//! search for leaked ones, is told apart without asking a database.

use core::net::IpAddr;
use std::fmt;

use ipnet::IpNet;
use serde_json::Value;

use crate::Timestamp;
use crate::error::{Error, Result};
use crate::fields::{Fields, integer, text, time};
use crate::names::title;
use crate::sandbox::network_policy::Rule;
use crate::words;

/// Longest overlap of a key and its successor: a week, in seconds.
pub const OVERLAP: i64 = 7 * 86_400;
/// Most networks that a key may be used from.
pub const NETWORKS: usize = 50;

words! {
    /// What a key is good for.
    KeyScope {
        /// Virtual machines, disks and networks.
        Vm = "vm",
        /// Sandboxes, from outside and inside, and networks.
        Sandbox = "sandbox",
        /// Models.
        Inference = "inference",
    }
}

/// The scopes of a key; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyScopes(u8);

impl KeyScopes {
    /// A set of scopes; `None` where it would be empty.
    pub fn new(scopes: impl IntoIterator<Item = KeyScope>) -> Option<Self> {
        let bits = scopes.into_iter().fold(0, |bits, scope| bits | Self::bit(scope));
        (bits != 0).then_some(Self(bits))
    }

    /// Whether a scope is in the set.
    pub const fn contains(self, scope: KeyScope) -> bool {
        self.0 & Self::bit(scope) != 0
    }

    /// The scopes in order.
    pub fn iter(self) -> impl Iterator<Item = KeyScope> {
        KeyScope::ALL.iter().copied().filter(move |scope| self.contains(*scope))
    }

    /// Parses the form of [`fmt::Display`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let scopes = text.split(',').map(KeyScope::parse).collect::<Result<Vec<_>, _>>()?;
        Self::new(scopes).ok_or_else(|| "must have at least one scope".into())
    }

    const fn bit(scope: KeyScope) -> u8 {
        1 << scope as u8
    }
}

impl fmt::Display for KeyScopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.iter().map(KeyScope::as_str).collect();
        f.write_str(&words.join(","))
    }
}

/// The networks that a key may be used from; none is everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceNetworks(Vec<IpNet>);

impl SourceNetworks {
    /// These networks.
    pub const fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// Whether a key may be used from an address; from one that is not known, only where it may be from everywhere.
    pub fn admit(&self, from: Option<IpAddr>) -> bool {
        let lies = |from: IpAddr| self.0.iter().any(|network| network.contains(&from.to_canonical()));
        self.0.is_empty() || from.is_some_and(lies)
    }

    /// The networks as people write them.
    pub fn texts(&self) -> Vec<String> {
        self.0.iter().map(|network| Rule::Network(*network).to_string()).collect()
    }

    /// Reads one network: a CIDR, or a single address.
    pub fn read(text: &str) -> Result<IpNet, String> {
        let wanted = || "must be a network such as 198.51.100.0/24 or 2001:db8::/32, or an address".to_owned();
        match text.parse() {
            Ok(Rule::Network(network)) => Ok(network),
            Err(mistake) if text.parse::<IpNet>().is_ok() => Err(mistake),
            _ => Err(wanted()),
        }
    }

    /// Parses the form of [`fmt::Display`].
    pub fn parse(text: &str) -> Result<Self, String> {
        text.split(',').filter(|part| !part.is_empty()).map(Self::read).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for SourceNetworks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
    }
}

/// A key to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// Name.
    pub name: String,
    /// What it is good for.
    pub scopes: KeyScopes,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// Where it may be used from.
    pub networks: SourceNetworks,
}

fn networks(f: &mut Fields<'_>) -> Option<SourceNetworks> {
    f.list("source_networks", NETWORKS, |v| SourceNetworks::read(text(v)?)).map(SourceNetworks::new)
}

fn scopes(f: &mut Fields<'_>) -> Option<KeyScopes> {
    let listed = f.list("scopes", 10, |v| KeyScope::parse(text(v)?))?;
    let known = KeyScopes::new(listed);
    if known.is_none() && !f.failed() {
        f.fail("scopes", "must have at least one of: vm sandbox inference");
    }
    known
}

impl TryFrom<&Value> for NewKey {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", title);
        if !f.has("scopes") {
            f.fail("scopes", "is required");
        }
        let scopes = scopes(&mut f);
        let expires_at = f.optional("expires_at", time);
        let networks = networks(&mut f).unwrap_or_default();
        f.finish(name.zip(scopes).map(|(name, scopes)| Self { name, scopes, expires_at, networks }))
    }
}

/// What changes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeKey {
    /// Name.
    pub name: Option<String>,
    /// What it is good for.
    pub scopes: Option<KeyScopes>,
    /// When it ends.
    pub expires_at: Option<Timestamp>,
    /// Where it may be used from.
    pub networks: Option<SourceNetworks>,
}

impl TryFrom<&Value> for ChangeKey {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", title);
        let scopes = scopes(&mut f);
        let expires_at = f.optional("expires_at", time);
        let networks = networks(&mut f);
        f.finish(Some(Self { name, scopes, expires_at, networks }))
    }
}

/// Reads how long a key and its successor are both good, in seconds; absent is 0.
///
/// # Errors
/// Every invalid field.
pub fn overlap(body: &Value) -> Result<i64> {
    let mut f = Fields::of(body);
    let overlap = f.optional("overlap_seconds", integer(0, OVERLAP));
    f.finish(Some(overlap.unwrap_or(0)))
}

/// Refuses an end that a key gets now and that is past.
///
/// # Errors
/// The field.
pub fn refuse_past(end: Option<Timestamp>, now: Timestamp) -> Result<()> {
    match end {
        Some(end) if end <= now => Err(Error::field("expires_at", "must be in the future")),
        _ => Ok(()),
    }
}

/// Whether a key lives longer than its organization lets keys live, in seconds, counted from when it was made.
pub fn outlives(end: Option<Timestamp>, made: Timestamp, longest: Option<i64>) -> bool {
    longest.is_some_and(|longest| end.is_none_or(|end| end > made.plus_seconds(longest)))
}

/// Refuses an end that would let a key live longer than its organization lets keys live.
///
/// # Errors
/// The field, with the latest end.
pub fn refuse_long(end: Option<Timestamp>, made: Timestamp, longest: Option<i64>) -> Result<()> {
    match longest.filter(|_| outlives(end, made, longest)) {
        Some(longest) => {
            let last = made.plus_seconds(longest);
            Err(Error::field(
                "expires_at",
                format!("must be {last} or earlier: the organization lets no key live longer"),
            ))
        }
        None => Ok(()),
    }
}

/// What every key begins with.
pub const PREFIX: &str = "brt_";
/// Characters of the public part.
pub const PUBLIC: usize = 12;
/// Characters of the secret part: the least that hold 256 bits.
pub const SECRET: usize = 43;
/// Characters of the checksum.
const CHECK: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Characters of the alphabet, evenly spread, out of random bytes; `None` where they do not suffice.
pub fn characters(random: &mut impl Iterator<Item = u8>, count: usize) -> Option<String> {
    // 248 is the largest multiple of 62 in a byte: what lies above would favour the first characters.
    let text: String =
        random.filter(|b| *b < 248).take(count).map(|b| char::from(ALPHABET[usize::from(b % 62)])).collect();
    (text.len() == count).then_some(text)
}

/// Puts a key together.
pub fn compose(public: &str, secret: &str) -> String {
    let body = format!("{PREFIX}{public}_{secret}");
    let check = checksum(&body);
    body + &check
}

/// The public part of a key, if its form and its checksum are right.
pub fn public_part(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?;
    let (public, secret) = rest.split_once('_')?;
    let known = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric());
    let whole = public.len() == PUBLIC && secret.len() == SECRET + CHECK && known(public) && known(secret);
    let (body, check) = key.split_at_checked(key.len().checked_sub(CHECK)?)?;
    (whole && checksum(body) == check).then_some(public)
}

/// CRC-32 (IEEE) in base62, zero-padded.
fn checksum(body: &str) -> String {
    let mut rest = crc32fast::hash(body.as_bytes());
    let mut digits = [b'0'; CHECK];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(rest % 62) as usize];
        rest /= 62;
    }
    digits.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_is_recognised_and_its_checksum_is_the_contract_s() {
        let key = compose("0123456789AB", &"z".repeat(SECRET));
        assert_eq!(key.len(), 4 + 12 + 1 + 43 + 6);
        assert_eq!(public_part(&key), Some("0123456789AB"));
        // CRC-32 of "123456789" is 0xCBF43926 by definition.
        assert_eq!(checksum("123456789"), "3jZRME");
    }

    #[test]
    fn scopes_are_a_set() {
        let scopes = KeyScopes::parse("sandbox,vm,vm").unwrap();
        assert_eq!(scopes.to_string(), "vm,sandbox");
        assert!(scopes.contains(KeyScope::Vm) && !scopes.contains(KeyScope::Inference));
        assert!(KeyScopes::parse("").is_err() && KeyScopes::parse("vm,root").is_err() && KeyScopes::new([]).is_none());
    }

    #[test]
    fn networks_admit_what_lies_in_them() {
        let networks = SourceNetworks::parse("198.51.100.0/24,2001:db8::/32,192.0.2.7").unwrap();
        for (from, admitted) in [
            ("198.51.100.0", true),
            ("198.51.100.255", true),
            ("::ffff:198.51.100.1", true),
            ("198.51.101.0", false),
            ("198.51.99.255", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
        ] {
            assert_eq!(networks.admit(Some(from.parse().unwrap())), admitted, "{from}");
            assert!(SourceNetworks::default().admit(Some(from.parse().unwrap())));
        }
        assert_eq!(SourceNetworks::parse(&networks.to_string()), Ok(networks));
        for bad in ["198.51.100.1/24", "::ffff:0:0/96", "example.org", "10.0.0.0/33", ""] {
            assert!(SourceNetworks::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_needs_a_name_and_a_scope() {
        let key = NewKey::try_from(&json!({"name": "ci", "scopes": ["vm", "vm"]})).unwrap();
        assert_eq!(
            (key.scopes.to_string().as_str(), key.expires_at, key.networks),
            ("vm", None, SourceNetworks::default())
        );
        let mistakes = |body: Value| {
            let details = NewKey::try_from(&body).unwrap_err().details;
            details.into_iter().map(|d| (d.field, d.message)).collect::<Vec<_>>()
        };
        let told = |all: &[(&str, &str)]| {
            all.iter().map(|(field, message)| ((*field).to_owned(), (*message).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(mistakes(json!({})), told(&[("name", "is required"), ("scopes", "is required")]));
        let none = "must have at least one of: vm sandbox inference";
        assert_eq!(mistakes(json!({"name": "ci", "scopes": []})), told(&[("scopes", none)]));
        // What stands there is told, not that nothing is left.
        let unknown = "must be one of: vm sandbox inference";
        assert_eq!(mistakes(json!({"name": "ci", "scopes": ["root"]})), told(&[("scopes[0]", unknown)]));
    }

    #[test]
    fn lists_and_overlaps_have_limits() {
        let with = |networks: usize| {
            let networks = vec!["192.0.2.1"; networks];
            ChangeKey::try_from(&json!({"source_networks": networks}))
                .map(|change| change.networks.unwrap().texts().len())
        };
        assert_eq!((with(0), with(NETWORKS)), (Ok(0), Ok(NETWORKS)));
        assert!(with(NETWORKS + 1).is_err());
        let nothing = ChangeKey { name: None, scopes: None, expires_at: None, networks: None };
        assert_eq!(ChangeKey::try_from(&json!({})), Ok(nothing));
        assert_eq!((overlap(&json!({})), overlap(&json!({"overlap_seconds": OVERLAP}))), (Ok(0), Ok(OVERLAP)));
        assert!(overlap(&json!({"overlap_seconds": OVERLAP + 1})).is_err());
    }

    #[test]
    fn ends_have_two_sides() {
        let (made, second) = (Timestamp(1_000_000), Timestamp::SECOND);
        assert!(refuse_past(Some(made), made).is_err() && refuse_past(Some(Timestamp(made.0 + 1)), made).is_ok());
        assert!(refuse_past(None, made).is_ok());
        let last = Timestamp(made.0 + 60 * second);
        assert!(refuse_long(Some(last), made, Some(60)).is_ok() && refuse_long(None, made, None).is_ok());
        for end in [None, Some(Timestamp(last.0 + 1))] {
            let error = refuse_long(end, made, Some(60)).unwrap_err();
            assert!(error.message.contains(&last.to_string()), "{error}");
        }
    }

    proptest! {
        #[test]
        fn one_wrong_character_is_noticed(random in prop::collection::vec(0_u8..248, 55), at in 0_usize..66, to in 0_usize..62) {
            let mut random = random.into_iter();
            let public = characters(&mut random, PUBLIC).unwrap();
            let secret = characters(&mut random, SECRET).unwrap();
            let key = compose(&public, &secret);
            prop_assert_eq!(public_part(&key), Some(public.as_str()));
            let mut other = key.clone().into_bytes();
            other[at] = ALPHABET[to];
            let other = String::from_utf8(other).unwrap();
            prop_assert_eq!(public_part(&other).is_some(), other == key);
        }
    }
}
