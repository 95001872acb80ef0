//! People: accounts, addresses, numbers.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Client, Organization, Project, Result};

/// A person.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct User {
    /// Id.
    pub id: String,
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Phone number, in E.164.
    pub phone: Option<String>,
    /// Whether the address is verified.
    pub email_verified: bool,
    /// Whether the number is verified.
    pub phone_verified: bool,
    /// Administrator of the platform.
    pub is_admin: bool,
    /// Creation, RFC 3339.
    pub created_at: String,
    /// Last change, RFC 3339.
    pub updated_at: String,
}

/// A new account.
#[derive(Clone, Default, Serialize)]
pub struct SignUp {
    /// Address.
    pub email: String,
    /// Password, 12 to 128 characters.
    pub password: String,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Phone number, in E.164.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phone: Option<String>,
    /// Referral code of the person who recommended Berth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub referral_code: Option<String>,
    /// Token of an invitation to this address; signing up accepts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invitation_token: Option<String>,
}

/// The result of a sign-up.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SignedUp {
    /// The person.
    pub user: User,
    /// Their own organization.
    pub organization: Organization,
    /// Its first project.
    pub project: Project,
    /// Whether the address must be verified before signing in.
    pub verification_required: bool,
}

/// A change of the caller's account; what is absent stays.
#[derive(Clone, Default, Serialize)]
pub struct ChangeUser {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Phone number, in E.164.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phone: Option<String>,
    /// Address; needs the current password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Current password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_password: Option<String>,
}

impl Client {
    /// Makes an account.
    pub async fn sign_up(&self, request: &SignUp) -> Result<SignedUp> {
        self.post("/api/v1/auth/signup", Some(request)).await
    }

    /// The calling person.
    pub async fn me(&self) -> Result<User> {
        self.get("/api/v1/users/me").await
    }

    /// Changes the caller's account.
    pub async fn update_me(&self, change: &ChangeUser) -> Result<User> {
        self.patch("/api/v1/users/me", change).await
    }

    /// Deletes the caller's account, given its password, with their empty organizations that have no other member.
    pub async fn delete_me(&self, current_password: &str) -> Result<()> {
        let body = json!({ "current_password": current_password });
        self.send(Method::DELETE, "/api/v1/users/me", Some(body)).await?;
        self.set_tokens(None);
        Ok(())
    }

    /// Asks for a mail that verifies an address. The answer is the same if there is no such account.
    pub async fn request_email_verification(&self, email: &str) -> Result<()> {
        self.post("/api/v1/auth/email/verification", Some(&json!({ "email": email }))).await
    }

    /// Verifies an address with the token of the mail's link.
    pub async fn verify_email(&self, token: &str) -> Result<()> {
        self.post("/api/v1/auth/email/verify", Some(&json!({ "token": token }))).await
    }

    /// Verifies an address with the code of the mail.
    pub async fn verify_email_by_code(&self, email: &str, code: &str) -> Result<()> {
        self.post("/api/v1/auth/email/verify", Some(&json!({ "email": email, "code": code }))).await
    }

    /// Asks for a text message that verifies the caller's number.
    pub async fn request_phone_verification(&self, phone: &str) -> Result<()> {
        self.post("/api/v1/auth/phone/verification", Some(&json!({ "phone": phone }))).await
    }

    /// Verifies the caller's number with the code of the message.
    pub async fn verify_phone(&self, phone: &str, code: &str) -> Result<()> {
        self.post("/api/v1/auth/phone/verify", Some(&json!({ "phone": phone, "code": code }))).await
    }
}
