//! The tokens of a sandbox: the one with which an SDK works inside, `envdAccessToken`, and the one that is passed on to who
//! only reaches servers inside, `trafficAccessToken`.
//!
//! Each is the id of the project's key that got it, and a MAC over that, the sandbox and the purpose. So it needs no row, ends
//! with its key, and another key gets another one.

use uuid::Uuid;

use crate::ids::{KeyId, SandboxId};

/// Characters of the key's id.
const ID: usize = 32;
/// Characters of the MAC.
const MAC: usize = 64;

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Everything inside the sandbox, servers among it.
    Inside,
    /// Servers inside.
    Ports,
}

/// What the MAC is over.
pub fn subject(sandbox: SandboxId, key: KeyId, purpose: Purpose) -> String {
    let purpose = match purpose {
        Purpose::Inside => "inside",
        Purpose::Ports => "ports",
    };
    format!("e2b access token {purpose} {sandbox} {key}")
}

/// A token of a key's id and a MAC.
pub fn written(key: KeyId, mac: &str) -> String {
    format!("{}{mac}", key.0.simple())
}

/// The key's id and the MAC of a token; none of what cannot be one.
pub fn read(token: &str) -> Option<(KeyId, &str)> {
    let plain = token.len() == ID + MAC && token.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let (id, mac) = plain.then(|| token.split_at(ID))?;
    Some((KeyId(Uuid::try_parse(id).ok()?), mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_key() {
        let key = KeyId(Uuid::from_u128(7));
        let mac = "ab".repeat(32);
        let token = written(key, &mac);
        assert_eq!(read(&token), Some((key, mac.as_str())));
        let sandbox = SandboxId(Uuid::nil());
        assert_ne!(subject(sandbox, key, Purpose::Inside), subject(sandbox, key, Purpose::Ports));
        for wrong in ["", &token[1..], &format!("{token}0"), &token.to_uppercase(), &token.replace('a', "ä")] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
