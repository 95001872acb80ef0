//! The first host key of a guest, made by its host: on an emulated processor the program that makes one takes as long as a
//! tenth of a login.

use aws_lc_rs::rand;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::{Error, Result};

const TYPE: &[u8] = b"ssh-ed25519";
/// Characters of a line.
const LINE: usize = 70;
/// What the private part of a key that is not encrypted is filled up to a multiple of.
const BLOCK: usize = 8;

/// A pair of Ed25519 keys in the files of OpenSSH. Deliberately without `Debug`.
pub(crate) struct HostKey {
    /// What `ssh_host_ed25519_key` holds.
    pub(crate) private: String,
    /// What lies beside it: type, key and comment.
    pub(crate) public: String,
}

impl HostKey {
    /// A new one.
    ///
    /// # Errors
    /// The host gives no random bytes.
    pub(crate) fn generate(comment: &str) -> Result<Self> {
        let mut secret = [0; 32];
        rand::fill(&mut secret).map_err(|_| Error::Invalid("the host gives no random bytes".into()))?;
        let mut check = [0; 4];
        rand::fill(&mut check).map_err(|_| Error::Invalid("the host gives no random bytes".into()))?;
        Self::of(&secret, check, comment)
    }

    /// The key of a secret. OpenSSH, `PROTOCOL.key`; the parts of both are those of RFC 8709.
    fn of(secret: &[u8; 32], check: [u8; 4], comment: &str) -> Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(secret);
        let pair = pair.map_err(|_| Error::Invalid("a host key cannot be made".into()))?;
        let public = pair.public_key().as_ref();
        let blob = [text(TYPE), text(public)].concat();
        let both = [secret.as_slice(), public].concat();
        let mut private = [&check, &check, &*blob, &text(&both), &text(comment.as_bytes())].concat();
        private.extend((1..).take(private.len().wrapping_neg() % BLOCK));
        let none = [text(b"none"), text(b"none"), text(b""), 1_u32.to_be_bytes().to_vec()].concat();
        let whole = [b"openssh-key-v1\0".as_slice(), &none, &text(&blob), &text(&private)].concat();
        Ok(Self {
            private: armoured(&BASE64_STANDARD.encode(whole)),
            public: format!("ssh-ed25519 {} {comment}\n", BASE64_STANDARD.encode(blob)),
        })
    }
}

/// Bytes behind their length.
fn text(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

fn armoured(base64: &str) -> String {
    let mut file = String::from("-----BEGIN OPENSSH PRIVATE KEY-----\n");
    for (number, character) in base64.chars().enumerate() {
        if number > 0 && number % LINE == 0 {
            file.push('\n');
        }
        file.push(character);
    }
    file.push_str("\n-----END OPENSSH PRIVATE KEY-----\n");
    file
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// Lengths of a comment that leave every number of bytes to fill up.
    #[test]
    fn openssh_reads_each_key_as_the_one_that_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        for length in 1..=BLOCK {
            let key = HostKey::generate(&"c".repeat(length)).unwrap();
            std::fs::write(&file, &key.private).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
            let output = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&file).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(String::from_utf8(output.stdout).unwrap(), key.public);
        }
    }

    #[test]
    fn no_two_are_the_same() {
        let [one, two] = [(), ()].map(|()| HostKey::generate("root@web").unwrap().public);
        assert_ne!(one, two);
    }
}
