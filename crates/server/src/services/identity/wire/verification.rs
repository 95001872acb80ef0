//! Proving that a person reads an address or a number.

use berth_domain::fields::Fields;
use berth_domain::{Error, Result};
use serde_json::Value;
use utoipa::ToSchema;

use super::{code, email, phone, secret};
use crate::config::Secret;

/// What a mail said: its link's token, or its code.
pub enum VerifyEmail {
    /// The link's token.
    Token(Secret),
    /// The code, with the address it was sent to.
    Code {
        /// Address.
        email: String,
        /// Code.
        code: Secret,
    },
}

impl TryFrom<&Value> for VerifyEmail {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        if f.has("token") {
            let token = f.required("token", secret(1, 1000));
            if f.has("email") || f.has("code") {
                f.fail("token", "cannot be given with email and code; give one of them");
            }
            return f.finish(token.map(Self::Token));
        }
        if !f.has("email") && !f.has("code") {
            f.fail("token", "give the token of the link, or email and code");
        }
        let email = f.required("email", email);
        let code = f.required("code", code);
        f.finish(email.zip(code).map(|(email, code)| Self::Code { email, code }))
    }
}

/// Reads the number of a body.
pub fn number(body: &Value) -> Result<String> {
    let mut f = Fields::of(body);
    let phone = f.required("phone", phone);
    f.finish(phone)
}

/// What a text message said.
pub struct VerifyPhone {
    /// Number.
    pub phone: String,
    /// Code.
    pub code: Secret,
}

impl TryFrom<&Value> for VerifyPhone {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let phone = f.required("phone", phone);
        let code = f.required("code", code);
        f.finish(phone.zip(code).map(|(phone, code)| Self { phone, code }))
    }
}

/// The link's token, or the address with the code.
#[derive(ToSchema)]
#[schema(as = VerifyEmailRequest)]
#[expect(dead_code, reason = "describes")]
pub struct VerifyEmailBody {
    #[schema(min_length = 1, max_length = 1000)]
    token: Option<String>,
    #[schema(format = Email, max_length = 254)]
    email: Option<String>,
    #[schema(pattern = "^[0-9]{6}$")]
    code: Option<String>,
}

/// A phone number.
#[derive(ToSchema)]
#[schema(as = PhoneRequest)]
#[expect(dead_code, reason = "describes")]
pub struct PhoneBody {
    #[schema(pattern = r"^\+[1-9][0-9]{7,14}$")]
    phone: String,
}

/// A phone number with the code that was sent to it.
#[derive(ToSchema)]
#[schema(as = VerifyPhoneRequest)]
#[expect(dead_code, reason = "describes")]
pub struct VerifyPhoneBody {
    #[schema(pattern = r"^\+[1-9][0-9]{7,14}$")]
    phone: String,
    #[schema(pattern = "^[0-9]{6}$")]
    code: String,
}
