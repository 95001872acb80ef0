//! What administrators of the platform say about people.

use serde_json::Value;

use super::contact::email;
use super::password::presented;
use crate::error::{Error, Result};
use crate::fields::{Fields, boolean};
use crate::names::title;
use crate::secret::Secret;

/// A person to be made.
#[derive(Clone, Debug)]
pub struct NewUser {
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Password; a mail has a link that chooses one where it is absent. Its rules are looked at when the person is made.
    pub password: Option<Secret>,
    /// Whether they administer the platform.
    pub administrator: bool,
}

impl TryFrom<&Value> for NewUser {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let name = f.optional("name", title);
        let password = f.optional("password", presented);
        let administrator = f.optional("administrator", boolean).unwrap_or(false);
        f.finish(email.map(|email| Self { email, name, password, administrator }))
    }
}

/// Reads whether a person is to administer the platform.
///
/// # Errors
/// Every invalid field.
pub fn administrator(body: &Value) -> Result<bool> {
    let mut f = Fields::of(body);
    let administrator = f.required("administrator", boolean);
    f.finish(administrator)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nobody_administers_by_default() {
        let user = NewUser::try_from(&json!({"email": "a@b.c"})).unwrap();
        assert!(!user.administrator && user.password.is_none() && user.name.is_none());
        assert!(NewUser::try_from(&json!({"email": "a@b.c", "administrator": true})).unwrap().administrator);
        assert_eq!(administrator(&json!({"administrator": false})), Ok(false));
        assert!(administrator(&json!({})).is_err() && administrator(&json!({"administrator": "yes"})).is_err());
    }

    #[test]
    fn every_mistake_is_named() {
        let wrong = json!({"email": "a", "name": "\t", "password": "", "administrator": 1, "is_admin": true});
        let error = NewUser::try_from(&wrong).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["email", "name", "password", "administrator", "is_admin"]);
    }
}
