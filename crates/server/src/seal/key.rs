//! The keys that seal: 256 bits each, as 64 hexadecimal digits in a file or a variable, one a line. The first one
//! seals.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use aws_lc_rs::aead::{AES_256_GCM, RandomizedNonceKey};
use aws_lc_rs::{hmac, rand};
use berth_domain::hex;
use sha2::{Digest, Sha256};

use crate::config::Secrets;
use crate::private_file;

/// Bytes of a key.
pub const LENGTH: usize = 32;
/// Bits of a mode by which others than the owner may read or write.
const OTHERS: u32 = 0o066;

/// A key and its name, which reveals nothing of it.
pub struct Key {
    /// Eight hexadecimal digits of a hash.
    pub name: String,
    /// Seals and opens.
    pub cipher: RandomizedNonceKey,
    /// Makes the MACs of texts ([`Sealer::mac`](super::Sealer::mac)).
    pub mac: hmac::Key,
}

impl Key {
    /// A key of these bytes.
    pub fn new(bytes: &[u8; LENGTH]) -> Result<Self> {
        let name = hex::encode(&Sha256::new().chain_update(b"berth sealing key").chain_update(bytes).finalize()[..4]);
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, bytes).context("the key that seals cannot be used")?;
        let mac = Sha256::new().chain_update(b"berth marking key").chain_update(bytes).finalize();
        Ok(Self { name, cipher, mac: hmac::Key::new(hmac::HMAC_SHA256, &mac) })
    }
}

/// The configured keys; `None` if their file is missing.
pub fn read(config: &Secrets) -> Result<Option<Vec<Key>>> {
    let path = &config.key_file;
    let text = if config.key_env.is_empty() {
        match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{} cannot be read", config.place())),
        }
    } else {
        config.key.0.clone()
    };
    if config.key_env.is_empty() && fs::metadata(path)?.permissions().mode() & OTHERS != 0 {
        tracing::warn!("others may read the key that seals secrets; type: chmod 600 {}", path.display());
    }
    let keys = text.split_whitespace().map(hex::decode).collect::<Option<Vec<_>>>();
    let keys = keys.filter(|keys| !keys.is_empty()).with_context(|| {
        format!("{} must hold 64 hexadecimal digits, as `openssl rand -hex 32` prints them", config.place())
    })?;
    keys.iter().map(Key::new).collect::<Result<Vec<_>>>().map(Some)
}

/// Makes a key and its file.
pub fn make(path: &Path) -> Result<Key> {
    let mut bytes = [0; LENGTH];
    ensure!(rand::fill(&mut bytes).is_ok(), "this machine gives no random numbers");
    let key = Key::new(&bytes)?;
    private_file::write(path, format!("{}\n", hex::encode(&bytes)).as_bytes())
        .with_context(|| format!("the key that seals secrets cannot be written to {}", path.display()))?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: Option<&str>) -> (tempfile::TempDir, Secrets) {
        let folder = tempfile::tempdir().unwrap();
        let key_file = folder.path().join("secrets.key");
        if let Some(text) = text {
            private_file::write(&key_file, text.as_bytes()).unwrap();
        }
        (folder, Secrets { key_file, ..Secrets::default() })
    }

    #[test]
    fn a_key_has_64_hexadecimal_digits() {
        let good = "0f".repeat(32);
        for (text, keys) in
            [(good.clone(), 1), (format!("\n{good}\r\n"), 1), (format!("{good}\n{}\n", "A1".repeat(32)), 2)]
        {
            assert_eq!(read(&config(Some(&text)).1).unwrap().unwrap().len(), keys);
        }
        for text in ["", "\n", "0f", &"0f".repeat(31), &"0f".repeat(33), &"0g".repeat(32), &format!("{good}\nx")] {
            let error = read(&config(Some(text)).1).err().unwrap().to_string();
            assert!(error.contains("openssl rand -hex 32") && !error.contains(&good), "{error}");
        }
    }

    #[test]
    fn a_key_that_was_made_is_read_again() {
        let (_folder, config) = config(None);
        assert!(read(&config).unwrap().is_none());
        let made = make(&config.key_file).unwrap();
        let read = read(&config).unwrap().unwrap();
        assert_eq!(read.iter().map(|key| key.name.as_str()).collect::<Vec<_>>(), [made.name.as_str()]);
    }
}
