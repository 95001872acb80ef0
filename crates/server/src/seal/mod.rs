//! Secrets at rest: the service seals secrets that it must read again, with a key outside the database.
//!
//! A copy of the database, a backup or a replica alone opens nothing. A sealed text is AES-256-GCM with a random nonce
//! over the secret, bound to its context (the row it belongs to), so that nobody can move it into another row. It names
//! its key, so that a service with another key reports that instead of failing somewhere.
//!
//! The first key seals, every key opens. At the start, the service that keeps a secret seals it again
//! ([`Sealer::renew`]) if another key than the first had sealed it or it lay in clear: so an operator replaces a key by
//! putting another one before it.

mod key;

use std::sync::Arc;

use anyhow::bail;
use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use aws_lc_rs::{constant_time, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_domain::hex;
use berth_domain::{Error, Result};

use crate::config::Secrets;
use crate::db::{Db, setting};
use key::Key;

/// The beginning of a sealed text. No secret in clear begins so.
const PREFIX: &str = "sealed";
/// The setting that tells which key sealed the database's secrets.
const CHECK: &str = "secrets.check";

/// Seals and opens. Clones share their keys.
#[derive(Clone)]
pub struct Sealer {
    keys: Arc<[Key]>,
}

impl Sealer {
    /// A sealer with the configured keys, which must be those of the database's secrets. Makes the key's file if
    /// nothing is sealed yet. If something is sealed and the key is missing or another one, fails with an error that
    /// says what to do; with `replaces_lost_key`, gives up what the lost key sealed, and each keeper of such a secret
    /// makes a new one.
    pub async fn open(config: &Secrets, db: &Db) -> anyhow::Result<Self> {
        let mut tx = db.begin().await?;
        let check = setting::find(&mut tx, CHECK).await?;
        let place = config.place();
        let keys = match (key::read(config)?, &check) {
            (Some(keys), _) => keys,
            (None, Some(check)) if !config.replaces_lost_key => bail!(
                "the secrets in this database are sealed with the key {}, and {place} is not there; {REMEDY}",
                name_of(check)
            ),
            (None, _) => vec![key::make(&config.key_file)?],
        };
        let sealer = Self { keys: keys.into() };
        let renewed = match check.as_deref().map(|check| (check, sealer.renew(CHECK, check))) {
            Some((_, Ok(renewed))) => renewed,
            Some((check, Err(_))) if !config.replaces_lost_key => {
                let names: Vec<_> = sealer.keys.iter().map(|key| key.name.as_str()).collect();
                let (needed, held) = (name_of(check), names.join(", "));
                bail!(
                    "the secrets in this database are sealed with the key {needed}, and {place} holds {held}; {REMEDY}"
                )
            }
            _ => Some(sealer.seal(CHECK, b"berth").map_err(anyhow::Error::from)?),
        };
        if let Some(text) = renewed {
            setting::put(&mut tx, CHECK, &text).await?;
            tx.commit().await?;
        }
        Ok(sealer)
    }

    /// Seals a secret for a context: the kind and the id of the row that keeps it.
    pub fn seal(&self, context: &str, secret: &[u8]) -> Result<String> {
        let key = self.keys.first().ok_or_else(|| Error::internal("no key that seals"))?;
        let mut bytes = secret.to_vec();
        let aad = Aad::from(context.as_bytes());
        let nonce = key.cipher.seal_in_place_append_tag(aad, &mut bytes).map_err(Error::internal)?;
        let text = URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &bytes].concat());
        Ok(format!("{PREFIX}:{}:{text}", key.name))
    }

    /// Opens a text that was sealed for the same context.
    pub fn open_sealed(&self, context: &str, sealed: &str) -> Result<Vec<u8>> {
        let (name, text) = parts(sealed).ok_or_else(|| Error::internal("a secret is not sealed"))?;
        let key = self.keys.iter().find(|key| key.name == name);
        let key =
            key.ok_or_else(|| Error::internal(format!("a secret is sealed with the key {name}, which is away")))?;
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(Error::internal)?;
        let (nonce, rest) =
            bytes.split_at_checked(NONCE_LEN).ok_or_else(|| Error::internal("a secret is too short"))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(Error::internal)?;
        let mut rest = rest.to_vec();
        let aad = Aad::from(context.as_bytes());
        let plain = key.cipher.open_in_place(nonce, aad, &mut rest);
        Ok(plain.map_err(|_| Error::internal(format!("the secret of {context} cannot be opened")))?.to_vec())
    }

    /// A MAC of a text, which distinguishes it from others and reveals nothing to a reader of the database:
    /// HMAC-SHA-256 with the first key, in hexadecimal.
    pub fn mac(&self, text: &[u8]) -> Result<String> {
        let key = self.keys.first().ok_or_else(|| Error::internal("no key that authenticates"))?;
        Ok(hex::encode(hmac::sign(&key.mac, text).as_ref()))
    }

    /// The same with every key, the first key's first: so the service recognizes a MAC from before a key was replaced.
    pub fn macs(&self, text: &[u8]) -> Vec<String> {
        self.keys.iter().map(|key| hex::encode(hmac::sign(&key.mac, text).as_ref())).collect()
    }

    /// Whether this is a MAC of a text, by any of the keys.
    pub fn is_mac(&self, text: &[u8], mac: &str) -> bool {
        let is_same = |own: &String| constant_time::verify_slices_are_equal(own.as_bytes(), mac.as_bytes()).is_ok();
        self.macs(text).iter().any(is_same)
    }

    /// Seals a text with the first key, if it lay in clear or another key sealed it; `None` if it needs no change.
    pub fn renew(&self, context: &str, text: &str) -> Result<Option<String>> {
        let current = self.keys.first().map(|key| key.name.as_str());
        if !is_sealed(text) {
            return self.seal(context, text.as_bytes()).map(Some);
        }
        // Opens it in either case, so that a wrong key is reported now.
        let secret = self.open_sealed(context, text)?;
        if parts(text).map(|(name, _)| name) == current { Ok(None) } else { self.seal(context, &secret).map(Some) }
    }
}

/// What to do about a wrong key.
const REMEDY: &str = "put back the file that lay there, or name the right one as key_file or key_env of [secrets]. If \
     the key is lost, type: berth serve --new-secrets-key; what it sealed, the keys that sign access tokens, is then made \
     anew, and everybody's access token ends";

/// Whether a text is sealed; otherwise it lies in clear.
pub fn is_sealed(text: &str) -> bool {
    parts(text).is_some()
}

/// The key's name and the rest of a sealed text.
fn parts(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix(PREFIX)?.strip_prefix(':')?.split_once(':')
}

fn name_of(text: &str) -> &str {
    parts(text).map_or("of another kind", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(keys: &[u8]) -> Sealer {
        Sealer { keys: keys.iter().map(|byte| Key::new(&[*byte; key::LENGTH]).unwrap()).collect() }
    }

    #[test]
    fn a_secret_opens_in_its_own_context_only() {
        let sealer = sealer(&[1]);
        let text = sealer.seal("row/1", b"a secret").unwrap();
        assert!(is_sealed(&text) && !text.contains("secret"));
        assert_eq!(sealer.open_sealed("row/1", &text).unwrap(), b"a secret");
        assert!(sealer.open_sealed("row/2", &text).is_err());
        assert_ne!(sealer.seal("row/1", b"a secret").unwrap(), text, "equal secrets are not seen to be equal");
        assert_eq!(sealer.open_sealed("e", &sealer.seal("e", b"").unwrap()).unwrap(), b"");
    }

    #[test]
    fn what_was_changed_or_is_of_another_key_does_not_open() {
        let sealed = sealer(&[1]).seal("row", b"a secret").unwrap();
        let (start, end) = sealed.split_at(sealed.len() - 1);
        let other = if end == "A" { "E" } else { "A" };
        for wrong in [format!("{start}{other}"), start.into(), "sealed:00:".into(), "clear".into(), String::new()] {
            assert!(sealer(&[1]).open_sealed("row", &wrong).is_err(), "{wrong}");
        }
        assert!(sealer(&[2]).open_sealed("row", &sealed).is_err());
    }

    #[test]
    fn a_mac_is_the_same_for_the_same_text_and_key_only() {
        let mac = sealer(&[1]).mac(b"a body").unwrap();
        assert_eq!((mac.len(), sealer(&[1, 2]).mac(b"a body").unwrap()), (64, mac.clone()));
        assert_ne!(sealer(&[1]).mac(b"a bodY").unwrap(), mac);
        assert_ne!(sealer(&[2, 1]).mac(b"a body").unwrap(), mac);
        assert_eq!(sealer(&[2, 1]).macs(b"a body"), [sealer(&[2]).mac(b"a body").unwrap(), mac]);
    }

    #[test]
    fn the_first_key_seals_and_every_key_opens() {
        let old = sealer(&[1]).seal("row", b"a secret").unwrap();
        let both = sealer(&[2, 1]);
        let renewed = both.renew("row", &old).unwrap().unwrap();
        assert_eq!(sealer(&[2]).open_sealed("row", &renewed).unwrap(), b"a secret");
        assert_eq!(both.renew("row", &renewed).unwrap(), None);
        assert!(sealer(&[2]).renew("row", &old).is_err());
        let from_clear = both.renew("row", "a secret").unwrap().unwrap();
        assert_eq!(both.open_sealed("row", &from_clear).unwrap(), b"a secret");
    }
}
