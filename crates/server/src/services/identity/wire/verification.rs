//! Proving that a person reads an address or a number.

use utoipa::ToSchema;

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
