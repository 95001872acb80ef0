//! How a host joins a platform: the token that it joins with, what it says of itself, and what is renewed when.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::{Secret, Timestamp};

/// How long a token holds, in seconds.
pub const TOKEN_SECONDS: i64 = DAY;
/// How long a host's certificate holds, in seconds.
pub const CERTIFICATE_SECONDS: i64 = 30 * DAY;
/// A host that has not answered for so many seconds is lost.
pub const LOST_SECONDS: i64 = 30;
/// Where a host listens if nobody says otherwise.
pub const PORT: u16 = 8470;

const DAY: i64 = 24 * 3600;
/// What a token begins with, so that people and scanners know one.
const PREFIX: &str = "bht_";
/// Bytes of the secret, and of the fingerprint behind it.
const HALF: usize = 32;

/// Whether a certificate that ends then is renewed now: once less than a third of its time is left.
pub fn is_renewed(until: Timestamp, now: Timestamp) -> bool {
    until.0 - now.0 < CERTIFICATE_SECONDS / 3 * Timestamp::SECOND
}

/// Whether a host that was last seen then is lost now.
pub fn is_lost(seen: Timestamp, now: Timestamp) -> bool {
    now.0 - seen.0 >= LOST_SECONDS * Timestamp::SECOND
}

/// What a host joins with, once: a secret, and whom it may believe.
#[derive(Clone)]
pub struct JoinToken {
    secret: [u8; HALF],
    authority: [u8; HALF],
}

impl JoinToken {
    /// A token of these random bytes, for a platform whose authority's certificate has this SHA-256.
    pub const fn new(secret: [u8; HALF], authority: [u8; HALF]) -> Self {
        Self { secret, authority }
    }

    /// SHA-256 of the certificate of the platform's authority.
    pub const fn authority(&self) -> &[u8; HALF] {
        &self.authority
    }

    /// The token as it is shown once.
    pub fn shown(&self) -> Secret {
        let bytes = [self.secret.as_slice(), &self.authority].concat();
        Secret(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(token of a host)")
    }
}

impl FromStr for JoinToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
            let (secret, authority) = bytes.split_at_checked(HALF)?;
            Some(Self { secret: secret.try_into().ok()?, authority: authority.try_into().ok()? })
        };
        read().ok_or_else(|| format!("must be a token as it was shown, {PREFIX} and 86 characters"))
    }
}

/// What a host says of itself to the service that asks it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Presence {
    /// What its machine calls itself.
    pub name: String,
    /// The version of Berth there.
    pub version: String,
    /// Identifies its present boot.
    pub boot: String,
    /// Processors.
    pub cpus: i64,
    /// Memory, in MiB, but for what it keeps for itself.
    pub memory_mb: i64,
    /// How often each MiB is promised, by who has it.
    pub overcommit: BTreeMap<String, f64>,
    /// What keeps it from running machines, if anything does.
    pub missing: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_shown_and_shows_itself_nowhere_else() {
        let token = JoinToken::new([7; 32], [9; 32]);
        let shown = token.shown().0;
        assert_eq!(shown.len(), 90);
        let read: JoinToken = shown.parse().unwrap();
        assert_eq!((read.secret, read.authority), ([7; 32], [9; 32]));
        assert!(!format!("{token:?} {read:?}").contains(&shown[4..20]));
        let (short, long) = (&shown[..89], format!("{shown}A"));
        for wrong in ["", "bht_", short, &long, &shown[4..], &shown.replace("bht_", "brt_"), &shown.replace('C', "!")] {
            assert!(wrong.parse::<JoinToken>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_certificate_is_renewed_once_a_third_of_its_time_is_left() {
        let now = Timestamp(1_000 * Timestamp::SECOND);
        let third = 10 * DAY;
        for (left, renewed) in [(30 * DAY, false), (third, false), (third - 1, true), (0, true), (-DAY, true)] {
            assert_eq!(is_renewed(now.plus_seconds(left), now), renewed, "{left}");
        }
        for (ago, lost) in [(0, false), (29, false), (30, true), (3000, true), (-5, false)] {
            assert_eq!(is_lost(now, now.plus_seconds(ago)), lost, "{ago}");
        }
    }
}
