//! API keys of projects: what one looks like and what it is good for (contract, section 2).
//!
//! `brt_<12 characters>_<43 characters><6 characters>`: a public part by which people recognise a key, a
//! secret part of 256 bits, and a checksum of all before it, so that a mistyped key, or a random string in a
//! search for leaked ones, is told apart without asking a database.

use core::net::IpAddr;
use std::fmt;

use ipnet::IpNet;

use crate::sandbox::network::Rule;
use crate::words;

words! {
    /// What a key is good for.
    KeyScope {
        /// Virtual machines and disks.
        Vm = "vm",
        /// Sandboxes, from outside and inside.
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
pub struct Networks(Vec<IpNet>);

impl Networks {
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

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
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
    use super::*;
    use proptest::prelude::*;

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
        let networks = Networks::parse("198.51.100.0/24,2001:db8::/32,192.0.2.7").unwrap();
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
            assert!(Networks::default().admit(Some(from.parse().unwrap())));
        }
        assert_eq!(Networks::parse(&networks.to_string()), Ok(networks));
        for bad in ["198.51.100.1/24", "::ffff:0:0/96", "example.org", "10.0.0.0/33", ""] {
            assert!(Networks::read(bad).is_err(), "{bad}");
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
