//! Sessions: signing in, refreshing, signing out.

use serde_json::Value;

use super::password::{self, presented};
use crate::error::{Error, Result};
use crate::fields::{Fields, boolean, sized};
use crate::secret::Secret;

/// Most characters of what somebody calls their address: one that is none is told to be wrong as every other.
const ADDRESS: usize = 1000;
/// Longest name of a program that is kept, in characters.
const PROGRAM: usize = 200;

/// A person who signs in.
#[derive(Clone, Debug)]
pub struct Login {
    /// Address.
    pub email: String,
    /// Password.
    pub password: Secret,
}

impl TryFrom<&Value> for Login {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", sized(1, ADDRESS));
        let password = f.required("password", presented);
        f.finish(email.zip(password).map(|(email, password)| Self { email, password }))
    }
}

/// What is kept of a program's own name for itself.
pub fn program(name: &str) -> String {
    name.chars().take(PROGRAM).collect()
}

/// Reads a refresh token.
///
/// # Errors
/// Every invalid field.
pub fn refresh_token(body: &Value) -> Result<Secret> {
    let mut f = Fields::of(body);
    let token = f.required("refresh_token", password::token);
    f.finish(token)
}

/// A session that ends.
#[derive(Clone, Debug, Default)]
pub struct Logout {
    /// The refresh token whose session ends.
    pub refresh_token: Option<Secret>,
    /// Whether all sessions end.
    pub all: bool,
}

impl TryFrom<&Value> for Logout {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let refresh_token = f.optional("refresh_token", password::token);
        let all = f.optional("all", boolean).unwrap_or(false);
        f.finish(Some(Self { refresh_token, all }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_signs_in_may_say_anything_of_a_length() {
        let login = |email: &str, password: &str| Login::try_from(&json!({"email": email, "password": password}));
        assert!(login(&"a".repeat(ADDRESS), &"p".repeat(password::MOST)).is_ok());
        let error = login(&"a".repeat(ADDRESS + 1), &"p".repeat(password::MOST + 1)).unwrap_err();
        assert_eq!(error.details.len(), 2);
        assert!(login("", "p").is_err() && login("a", "").is_err());
    }

    #[test]
    fn a_program_s_name_is_cut() {
        assert_eq!(program("curl/8"), "curl/8");
        assert_eq!(program(&"ä".repeat(PROGRAM + 1)), "ä".repeat(PROGRAM));
    }

    #[test]
    fn what_ends() {
        let this = Logout::try_from(&json!({})).unwrap();
        assert!(this.refresh_token.is_none() && !this.all);
        assert!(Logout::try_from(&json!({"all": true})).unwrap().all);
        let error = Logout::try_from(&json!({"all": 1, "refresh_token": ""})).unwrap_err();
        assert_eq!(error.details.len(), 2);
        let longest = "t".repeat(password::TOKEN);
        assert_eq!(refresh_token(&json!({"refresh_token": longest})).unwrap().0, longest);
        assert!(refresh_token(&json!({"refresh_token": format!("{longest}t")})).is_err());
    }
}
