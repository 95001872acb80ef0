//! Passwords.

use utoipa::ToSchema;

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
