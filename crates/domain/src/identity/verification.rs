//! Proving that a person reads an address or a number.

use serde_json::Value;

use super::contact::{email, phone};
use super::password;
use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, text};
use crate::secret::Secret;

/// Digits of a code.
const DIGITS: usize = 6;

/// Rule: a code: six digits.
fn code(value: &Value) -> Parsed<Secret> {
    let text = text(value)?;
    let good = text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
    if good { Ok(Secret(text.to_owned())) } else { Err("must have six digits".into()) }
}

/// What a mail said: its link's token, or its code.
#[derive(Clone, Debug)]
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
            let token = f.required("token", password::token);
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

/// Reads the number that a code is asked for.
///
/// # Errors
/// Every invalid field.
pub fn number(body: &Value) -> Result<String> {
    let mut f = Fields::of(body);
    let phone = f.required("phone", phone);
    f.finish(phone)
}

/// What a text message said.
#[derive(Clone, Debug)]
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn codes_have_six_digits() {
        for (text, good) in [
            ("123456", true),
            ("000000", true),
            ("12345", false),
            ("1234567", false),
            ("12345a", false),
            ("１２", false),
        ] {
            assert_eq!(code(&json!(text)).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_link_or_a_code_and_never_both() {
        let read = |body: Value| VerifyEmail::try_from(&body);
        assert!(matches!(read(json!({"token": "t"})), Ok(VerifyEmail::Token(token)) if token.0 == "t"));
        let with_code = read(json!({"email": "a@b.c", "code": "123456"}));
        assert!(matches!(with_code, Ok(VerifyEmail::Code { email, code }) if email == "a@b.c" && code.0 == "123456"));
        let fields = |body: Value| read(body).unwrap_err().details.into_iter().map(|d| d.field).collect::<Vec<_>>();
        assert_eq!(fields(json!({"token": "t", "code": "123456"})), ["token"]);
        assert_eq!(fields(json!({})), ["token", "email", "code"]);
        assert_eq!(fields(json!({"email": "a", "code": "1"})), ["email", "code"]);
    }

    #[test]
    fn a_number_with_its_code() {
        let read = |body: Value| VerifyPhone::try_from(&body);
        assert_eq!(read(json!({"phone": "+12345678", "code": "123456"})).unwrap().phone, "+12345678");
        assert_eq!(read(json!({"phone": "1", "code": 1})).unwrap_err().details.len(), 2);
        assert!(number(&json!({"phone": "+12345678"})).is_ok() && number(&json!({"phone": ""})).is_err());
    }
}
