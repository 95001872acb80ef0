//! Passwords.

use berth_domain::Result;
use berth_domain::fields::{Fields, Parsed};
use serde_json::Value;
use utoipa::ToSchema;

use super::{chosen, email, secret};
use crate::config::Secret;

/// Reads the address of a body.
pub fn address(body: &Value) -> Result<String> {
    let mut f = Fields::of(body);
    let email = f.required("email", email);
    f.finish(email)
}

/// A new password by a link.
pub struct ResetPassword {
    /// The link's token.
    pub token: Secret,
    /// The password.
    pub new_password: Secret,
}

impl ResetPassword {
    /// Reads one. The rules tell what is wrong with a password.
    pub fn read(body: &Value, rules: impl Fn(&str) -> Parsed<()>) -> Result<Self> {
        let mut f = Fields::of(body);
        let token = f.required("token", secret(1, 1000));
        let password = f.required("new_password", |value| chosen(value, rules));
        f.finish(token.zip(password).map(|(token, new_password)| Self { token, new_password }))
    }
}

/// A new password by the present one.
pub struct ChangePassword {
    /// The present one.
    pub current_password: Secret,
    /// The password.
    pub new_password: Secret,
}

impl ChangePassword {
    /// Reads one. The rules tell what is wrong with a password.
    pub fn read(body: &Value, rules: impl Fn(&str) -> Parsed<()>) -> Result<Self> {
        let mut f = Fields::of(body);
        let current = f.required("current_password", secret(1, 4096));
        let password = f.required("new_password", |value| chosen(value, rules));
        f.finish(current.zip(password).map(|(current_password, new_password)| Self { current_password, new_password }))
    }
}

/// An address.
#[derive(ToSchema)]
#[schema(as = AddressRequest)]
#[expect(dead_code, reason = "describes")]
pub struct AddressBody {
    #[schema(format = Email, max_length = 254)]
    email: String,
}

/// A new password by a link.
#[derive(ToSchema)]
#[schema(as = ResetPasswordRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ResetPasswordBody {
    /// From the link of the mail.
    #[schema(min_length = 1, max_length = 1000)]
    token: String,
    #[schema(min_length = 12, max_length = 128)]
    new_password: String,
}

/// A new password by the present one.
#[derive(ToSchema)]
#[schema(as = ChangePasswordRequest)]
#[expect(dead_code, reason = "describes")]
pub struct ChangePasswordBody {
    #[schema(min_length = 1, max_length = 4096)]
    current_password: String,
    #[schema(min_length = 12, max_length = 128)]
    new_password: String,
}
