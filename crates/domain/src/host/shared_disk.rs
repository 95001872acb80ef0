//! Where disks lie that several hosts reach.
//!
//! A disk of a store is nobody's file: whichever host is told to start its machine has it served from the store. So a host is
//! told of the store with each question that needs it, and keeps nothing of it but what serves the disks of its machines.
//! Who may have a disk at a time is decided by rows and generations, as with every machine: a store only keeps bytes.

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Most characters of what a store, its pool and its user are called.
const MOST_NAMED: usize = 64;
/// Most monitors of a store: Ceph's own advice is 3 or 5.
const MOST_MONITORS: usize = 16;
/// Most characters of a key: Ceph's have 40.
const MOST_KEY: usize = 256;
/// Bytes of a key before its secret: 2 of its kind, 8 of a time, and 2 of a length.
const BEFORE_SECRET: usize = 12;

/// A pool of Ceph.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// What people call it.
    pub name: String,
    /// The addresses of Ceph's monitors, with their ports.
    pub monitors: Vec<String>,
    /// The pool.
    pub pool: String,
    /// The user, without `client.`.
    pub user: String,
    /// The user's key.
    pub key: Key,
}

/// That a host reaches a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Its addresses, by which it reaches the monitors: what the store refuses once the host is to be shut out.
    pub addresses: Vec<IpAddr>,
}

/// A key of a user of Ceph, as base64. Its `Debug` hides it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

impl Key {
    /// The key itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Key {
    type Error = &'static str;

    /// The key as its file has it: spaces and line ends around it do not count. One that cannot be read, programs of Ceph would
    /// print.
    fn try_from(text: String) -> Result<Self, Self::Error> {
        let key = text.trim();
        let bytes = STANDARD.decode(key).ok().filter(|_| key.len() <= MOST_KEY);
        if bytes.as_deref().is_some_and(is_key) {
            return Ok(Self(key.to_owned()));
        }
        Err("a key of Ceph is the base64 text that `ceph auth get-key client.NAME` prints")
    }
}

/// Whether bytes are a key: its kind, when it was made, and how many bytes follow (Ceph, `src/auth/Crypto.cc`,
/// `CryptoKey::decode`).
fn is_key(bytes: &[u8]) -> bool {
    match bytes.split_at_checked(BEFORE_SECRET) {
        Some((before, secret)) => !secret.is_empty() && before.ends_with(&length_of(secret)),
        None => false,
    }
}

fn length_of(secret: &[u8]) -> [u8; 2] {
    u16::try_from(secret.len()).unwrap_or_default().to_le_bytes()
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(key)")
    }
}

impl Store {
    /// Whether it can be one: its names are plain, and its monitors addresses.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for (what, name) in [("name", &self.name), ("pool", &self.pool), ("user", &self.user)] {
            if !is_plain(name) {
                return Err(format!(
                    "the {what} of a disk store has 1 to {MOST_NAMED} letters, digits, `.`, `_` and `-`, and begins with \
                     a letter or a digit"
                ));
            }
        }
        self.addresses().map(drop)
    }

    /// Where its monitors are.
    ///
    /// # Errors
    /// One is no address with a port, or there are none or too many.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        if !(1..=MOST_MONITORS).contains(&self.monitors.len()) {
            return Err(format!("a disk store has 1 to {MOST_MONITORS} monitors"));
        }
        let read = |text: &String| {
            text.parse().map_err(|_| {
                format!("the monitor `{text}` of a disk store is no address with a port, as 10.0.0.1:3300 is")
            })
        };
        self.monitors.iter().map(read).collect()
    }
}

fn is_plain(name: &str) -> bool {
    (1..=MOST_NAMED).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==";

    fn key(text: &str) -> Result<Key, &'static str> {
        Key::try_from(text.to_owned())
    }

    fn store() -> Store {
        Store {
            name: "pool-a".into(),
            monitors: vec!["10.0.0.1:3300".into(), "[2001:db8::1]:3300".into()],
            pool: "rbd".into(),
            user: "berth".into(),
            key: key(KEY).expect("a key"),
        }
    }

    #[test]
    fn a_key_is_base64_and_nobody_prints_it() {
        assert_eq!(key(&format!(" {KEY}\n")).expect("a key").reveal(), KEY);
        // A byte less or more than it says; nothing behind what is before a secret; nothing at all.
        for wrong in ["", "\n", "A B", "A,B", "AQAAAAAAAAAAABAA", "AQAAAAAAAAAAAAAA", &KEY[4..], &format!("{KEY}AAAA")]
        {
            assert!(key(wrong).is_err(), "{wrong}");
        }
        assert!(!format!("{:?}", store()).contains(KEY));
        let bytes = serde_json::to_string(&store()).expect("JSON");
        assert_eq!(serde_json::from_str::<Store>(&bytes).expect("a store"), store());
        assert!(serde_json::from_str::<Key>("\"A,B\"").is_err());
    }

    #[test]
    fn a_store_has_plain_names_and_monitors_that_are_addresses() {
        assert_eq!(store().check(), Ok(()));
        let most = "x".repeat(MOST_NAMED);
        assert_eq!(Store { pool: most.clone(), ..store() }.check(), Ok(()));
        for name in ["", "-a", "a,b", "a b", "ä", &format!("{most}x")] {
            let wrong = Store { pool: name.into(), ..store() }.check();
            assert!(wrong.as_ref().is_err_and(|why| why.contains("the pool")), "{name}: {wrong:?}");
        }
        assert!(Store { user: "a/b".into(), ..store() }.check().is_err());
        for monitor in ["", "10.0.0.1", "ceph.example:3300", "10.0.0.1:99999"] {
            let wrong = Store { monitors: vec![monitor.into()], ..store() }.check();
            assert!(wrong.as_ref().is_err_and(|why| why.contains("is no address")), "{monitor}: {wrong:?}");
        }
        let of = |count| Store { monitors: vec!["10.0.0.1:3300".into(); count], ..store() };
        assert!(of(1).check().is_ok() && of(MOST_MONITORS).check().is_ok());
        assert!(of(0).check().is_err() && of(MOST_MONITORS + 1).check().is_err());
    }
}
