//! Addresses of files that are signed with a sandbox's token, so that whoever has one needs no other credential.

use crate::Timestamp;
use crate::query::Params;

/// What an address is signed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading a file.
    Read,
    /// Writing one.
    Write,
}

/// A signature, and what it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The path as it was signed.
    pub path: String,
    /// The account as it was signed; empty where none was named.
    pub user: String,
    /// When it ends, in Unix seconds, as it was signed.
    pub expires: Option<i64>,
    /// The digest of the text, in base64.
    pub digest: String,
}

/// Characters of a digest: SHA-256 in base64 without padding.
const DIGEST: usize = 43;
/// The longest path and the longest account, in bytes: the kernel's limit for a path.
const LONGEST: usize = 4096;

impl Signed {
    /// The signature in a query; none where it has none, or one that cannot be.
    pub fn read(query: &str) -> Option<Self> {
        let mut params = Params::parse(query);
        let digest = params.get("signature")?.strip_prefix("v1_").filter(|text| text.len() == DIGEST)?.to_owned();
        let text = |params: &Params, name: &str| params.get(name).unwrap_or_default().to_owned();
        let (path, user) = (text(&params, "path"), text(&params, "username"));
        // What stands before the token is one text: an account with a colon could say what a path says.
        if path.len() > LONGEST || user.len() > LONGEST || user.contains(':') {
            return None;
        }
        let expires = match params.get("signature_expiration").map(str::to_owned) {
            None => None,
            Some(_) => Some(params.read("signature_expiration", |text| text.parse().map_err(|_| String::new()))?),
        };
        Some(Self { path, user, expires, digest })
    }

    /// Whether its time is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|at| at < now.seconds())
    }

    /// What stands before and behind the token in the text whose SHA-256 a signature is.
    pub fn around(&self, operation: Operation) -> (String, String) {
        let word = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let behind = self.expires.map(|at| format!(":{at}")).unwrap_or_default();
        (format!("{}:{word}:{}:", self.path, self.user), behind)
    }
}

/// The answer's message to who comes too late, by which SDKs know it.
pub const EXPIRED: &str = "signature is already expired";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_over_path_operation_account_token_and_end() {
        let digest = "d".repeat(DIGEST);
        let signed = Signed::read(&format!("path=%2Ftmp%2Fa%20b&username=root&signature=v1_{digest}")).unwrap();
        assert_eq!((signed.path.as_str(), signed.user.as_str()), ("/tmp/a b", "root"));
        assert_eq!(signed.around(Operation::Read), ("/tmp/a b:read:root:".into(), String::new()));
        assert!(!signed.is_over(Timestamp(i64::MAX)));
        let query = format!("path=x&signature=v1_{digest}&signature_expiration=10");
        let signed = Signed::read(&query).unwrap();
        assert_eq!(signed.around(Operation::Write), ("x:write::".into(), ":10".into()));
        let at = |seconds: i64| Timestamp(seconds * Timestamp::SECOND);
        assert!(!signed.is_over(at(10)) && signed.is_over(at(11)));
        let long = |bytes: usize| Signed::read(&format!("path={}&signature=v1_{digest}", "x".repeat(bytes)));
        assert!(long(LONGEST).is_some() && long(LONGEST + 1).is_none());
        assert!(Signed::read(&format!("path=x&username=root:write:&signature=v1_{digest}")).is_none());
        for wrong in ["path=x", "path=x&signature=v1_d", &query.replace("=10", "=x"), &query.replace("v1_", "v2_")] {
            assert_eq!(Signed::read(wrong), None, "{wrong}");
        }
    }
}
