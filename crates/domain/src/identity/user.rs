//! People: signing up, changing and deleting oneself.

use serde_json::Value;

use super::contact::{email, phone};
use super::password::{Rules, presented, token};
use crate::error::{Error, Result};
use crate::fields::{Fields, sized};
use crate::names::public_name;
use crate::secret::Secret;

/// Most characters of a code of who brought somebody.
const REFERRAL_CODE: usize = 100;

/// A person who signs up.
#[derive(Clone, Debug)]
pub struct SignUp {
    /// Address.
    pub email: String,
    /// Password.
    pub password: Secret,
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// The code of who brought them.
    pub referral_code: Option<String>,
    /// Invitation that is accepted by signing up.
    pub invitation_token: Option<Secret>,
}

impl SignUp {
    /// Reads a sign-up, whose password keeps these rules.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn read(body: &Value, rules: Rules) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let password = f.required("password", rules.chosen(email.as_deref().unwrap_or_default()));
        let name = f.optional("name", public_name);
        let phone = f.optional("phone", phone);
        let referral_code = f.optional("referral_code", sized(1, REFERRAL_CODE));
        let invitation_token = f.optional("invitation_token", token);
        let parsed = email.zip(password);
        f.finish(parsed.map(|(email, password)| Self { email, password, name, phone, referral_code, invitation_token }))
    }
}

/// What a person changes of themselves.
#[derive(Clone, Debug)]
pub struct ChangeMe {
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// Address.
    pub email: Option<String>,
    /// The password, which another address needs.
    pub current_password: Option<Secret>,
}

impl TryFrom<&Value> for ChangeMe {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", public_name);
        let phone = f.optional("phone", phone);
        let email = f.optional("email", email);
        let current_password = f.optional("current_password", presented);
        f.finish(Some(Self { name, phone, email, current_password }))
    }
}

/// Reads the password that confirms a deletion, if there is one.
///
/// # Errors
/// Every invalid field.
pub fn confirmation(body: &Value) -> Result<Option<Secret>> {
    let mut f = Fields::of(body);
    let current = f.optional("current_password", presented);
    f.finish(Some(current))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::mistakes;

    const RULES: Rules = Rules { least: 12, most: 128 };

    #[test]
    fn a_sign_up_needs_an_address_and_a_password() {
        let least = json!({"email": "ada@example.org", "password": "correct horse battery"});
        let ada = SignUp::read(&least, RULES).unwrap();
        assert_eq!((ada.email.as_str(), ada.password.0.as_str()), ("ada@example.org", "correct horse battery"));
        assert_eq!(mistakes(SignUp::read(&json!({}), RULES)), ["email", "password"]);
        let all_wrong = json!({"email": "ada", "password": "short", "name": "evil.com", "phone": "1",
            "referral_code": "", "invitation_token": "", "admin": true});
        assert_eq!(
            mistakes(SignUp::read(&all_wrong, RULES)),
            ["email", "password", "name", "phone", "referral_code", "invitation_token", "admin"]
        );
    }

    #[test]
    fn the_password_is_not_the_address() {
        let body = json!({"email": "ada.lovelace@example.org", "password": "Ada.Lovelace@example.org"});
        assert_eq!(SignUp::read(&body, RULES).unwrap_err().details[0].message, "must not be the address");
    }

    #[test]
    fn codes_have_two_sides() {
        let read = |length: usize| {
            let code = "c".repeat(length);
            SignUp::read(
                &json!({"email": "a@b.org", "password": "correct horse battery", "referral_code": code}),
                RULES,
            )
        };
        assert!(read(REFERRAL_CODE).is_ok() && read(REFERRAL_CODE + 1).is_err());
    }

    #[test]
    fn whoever_changes_themselves_names_what_changes() {
        let change = ChangeMe::try_from(&json!({"phone": "+4915112345678", "name": null})).unwrap();
        assert_eq!((change.phone.as_deref(), change.name), (Some("+4915112345678"), None));
        let wrong = json!({"name": "\n", "phone": "+0", "email": "x", "current_password": "", "is_admin": true});
        assert_eq!(mistakes(ChangeMe::try_from(&wrong)), ["name", "phone", "email", "current_password", "is_admin"]);
        assert!(confirmation(&json!({})).unwrap().is_none());
        assert_eq!(mistakes(confirmation(&json!({"password": "x"}))), ["password"]);
    }
}
