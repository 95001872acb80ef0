//! Passwords: which are taken, and the requests that set one.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde_json::Value;

use super::contact::email;
use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, secret};
use crate::secret::Secret;

/// Most characters of a password that somebody says is theirs. Which are taken for a new one, [`Rules`] say.
pub const MOST: usize = 4096;
/// Most characters of a token that the platform gave out.
pub const TOKEN: usize = 1000;
/// Common passwords, one a line, in lower case.
const COMMON: &str = include_str!("common_passwords.txt");

static COMMON_SET: LazyLock<HashSet<&'static str>> = LazyLock::new(|| COMMON.lines().collect());

/// What the operator asks of passwords.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Fewest characters.
    pub least: usize,
    /// Most characters.
    pub most: usize,
}

impl Rules {
    /// The rule that a password for an address breaks, if it breaks one.
    ///
    /// # Errors
    /// That rule.
    pub fn check(self, password: &str, email: &str) -> Parsed<()> {
        let Self { least, most } = self;
        if !(least..=most).contains(&password.chars().count()) {
            return Err(format!("must have {least} to {most} characters"));
        }
        let lower = password.to_lowercase();
        if lower == email.to_lowercase() {
            return Err("must not be the address".into());
        }
        if COMMON_SET.contains(lower.as_str()) {
            return Err("is one of the most common passwords; choose another".into());
        }
        Ok(())
    }

    /// Refuses the password of a field that breaks a rule, where its address is known only after the request was read.
    ///
    /// # Errors
    /// The field, with the rule.
    pub fn require(self, field: &str, password: &Secret, email: &str) -> Result<()> {
        self.check(&password.0, email).map_err(|rule| Error::field(field, rule))
    }

    /// Rule: a new password for an address, which is empty where it is not known yet.
    pub fn chosen(self, email: &str) -> impl Fn(&Value) -> Parsed<Secret> {
        move |value| {
            let password = secret(1, MOST)(value)?;
            self.check(&password.0, email).map(|()| password)
        }
    }
}

/// Rule: a password that somebody says is theirs.
pub fn presented(value: &Value) -> Parsed<Secret> {
    secret(1, MOST)(value)
}

/// Rule: a token that the platform gave out: of a link, or of a session.
pub fn token(value: &Value) -> Parsed<Secret> {
    secret(1, TOKEN)(value)
}

/// Reads the address that a link or code is asked for.
///
/// # Errors
/// Every invalid field.
pub fn address(body: &Value) -> Result<String> {
    let mut f = Fields::of(body);
    let email = f.required("email", email);
    f.finish(email)
}

/// A new password by a link.
#[derive(Clone, Debug)]
pub struct ResetPassword {
    /// The link's token.
    pub token: Secret,
    /// The password.
    pub new_password: Secret,
}

impl ResetPassword {
    /// Reads one. Whose address the link is for, nobody knows yet.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn read(body: &Value, rules: Rules) -> Result<Self> {
        let mut f = Fields::of(body);
        let token = f.required("token", token);
        let password = f.required("new_password", rules.chosen(""));
        f.finish(token.zip(password).map(|(token, new_password)| Self { token, new_password }))
    }
}

/// A new password by the present one.
#[derive(Clone, Debug)]
pub struct ChangePassword {
    /// The present one.
    pub current_password: Secret,
    /// The password.
    pub new_password: Secret,
}

impl ChangePassword {
    /// Reads one. The address of who asks is not known yet.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn read(body: &Value, rules: Rules) -> Result<Self> {
        let mut f = Fields::of(body);
        let current = f.required("current_password", presented);
        let password = f.required("new_password", rules.chosen(""));
        f.finish(current.zip(password).map(|(current_password, new_password)| Self { current_password, new_password }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::identity::mistakes;

    const RULES: Rules = Rules { least: 12, most: 128 };

    #[test]
    fn rules_on_both_sides() {
        let check = |password: &str| RULES.check(password, "someone.long@example.org");
        assert!(check(&"ä1b2".repeat(3)).is_ok());
        assert!(check("a1b2c3d4e5f").is_err());
        assert!(check(&"ab3x".repeat(32)).is_ok());
        assert!(check(&format!("{}y", "ab3x".repeat(32))).is_err());
        assert!(check("Someone.Long@example.org").is_err());
        assert!(check("Password1234").is_err());
        assert!(COMMON_SET.len() >= 3000, "{}", COMMON_SET.len());
        assert!(COMMON_SET.iter().all(|p| !p.chars().any(char::is_uppercase)));
    }

    #[test]
    fn requests_name_every_mistake() {
        let (good, token) = ("correct horse battery", "t".repeat(TOKEN));
        let reset = |token: &str, password: &str| {
            mistakes(ResetPassword::read(&json!({"token": token, "new_password": password}), RULES))
        };
        assert!(reset(&token, good).is_empty());
        assert_eq!(reset(&format!("{token}t"), "short"), ["token", "new_password"]);
        let change = |current: &str, password: &str| {
            mistakes(ChangePassword::read(&json!({"current_password": current, "new_password": password}), RULES))
        };
        assert!(change(&"p".repeat(MOST), good).is_empty());
        assert_eq!(change("", "password1234"), ["current_password", "new_password"]);
        assert_eq!(change(&"p".repeat(MOST + 1), good), ["current_password"]);
        assert_eq!(mistakes(address(&json!({"mail": "a@b.c"}))), ["email", "mail"]);
    }

    #[test]
    fn a_password_shows_itself_nowhere() {
        let body = json!({"token": "unseen", "new_password": "correct horse battery"});
        let shown = format!("{:?}", ResetPassword::read(&body, RULES).unwrap());
        assert!(!shown.contains("unseen") && !shown.contains("horse"), "{shown}");
        let error = RULES.require("password", &Secret("hunter2".into()), "").unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
        assert_eq!(error.details[0].field, "password");
    }

    proptest! {
        #[test]
        fn what_is_taken_keeps_every_rule(password in "\\PC{0,40}|[a-z0-9]{8,14}", least in 1_usize..16, more in 0_usize..32) {
            let rules = Rules { least, most: least + more };
            let count = password.chars().count();
            let taken = rules.chosen(&password)(&json!(password));
            // It is the address itself, so nothing is.
            prop_assert!(taken.is_err());
            let taken = rules.chosen("")(&json!(password)).is_ok();
            let fits = (least..=least + more).contains(&count) && !COMMON_SET.contains(password.to_lowercase().as_str());
            prop_assert_eq!(taken, fits);
        }
    }
}
