//! Signing in and out; passwords.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, Error, List, Page, Result, Tokens};

/// A sign-in that has not ended.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Session {
    /// Id.
    pub id: String,
    /// The program that signed in, as it calls itself.
    pub client: Option<String>,
    /// The address of the sign-in.
    pub address: Option<String>,
    /// Whether it is the caller's present one.
    pub current: bool,
    /// Sign-in, RFC 3339.
    pub created_at: String,
    /// Last renewal, RFC 3339.
    pub last_used_at: String,
    /// When it ends if it is not used, RFC 3339.
    pub expires_at: String,
}

impl Client {
    /// Signs in and keeps the tokens.
    pub async fn login(&self, email: &str, password: &str) -> Result<Tokens> {
        self.set_tokens(None);
        let body = json!({ "email": email, "password": password });
        let tokens: Tokens = self.post("/api/v1/auth/login", Some(&body)).await?;
        self.keep_tokens(tokens.clone());
        Ok(tokens)
    }

    /// Ends the session, or all sessions of the account.
    pub async fn logout(&self, all: bool) -> Result<()> {
        self.post::<()>("/api/v1/auth/logout", Some(&json!({ "all": all }))).await?;
        self.set_tokens(None);
        Ok(())
    }

    /// The caller's sessions, newest first.
    pub async fn sessions(&self, page: Page) -> Result<List<Session>> {
        self.list("/api/v1/users/me/sessions", &page).await
    }

    /// Ends one of the caller's sessions.
    pub async fn end_session(&self, id: &str) -> Result<()> {
        self.delete(&format!("/api/v1/users/me/sessions/{}", segment(id))).await
    }

    /// Asks for a mail with a link to set a new password. The answer is the same if there is no such account.
    pub async fn forgot_password(&self, email: &str) -> Result<()> {
        self.post("/api/v1/auth/password/forgot", Some(&json!({ "email": email }))).await
    }

    /// Sets a new password with the token of the mail. Every session ends.
    pub async fn reset_password(&self, token: &str, new_password: &str) -> Result<()> {
        let body = json!({ "token": token, "new_password": new_password });
        self.post("/api/v1/auth/password/reset", Some(&body)).await
    }

    /// Sets a new password. Every other session ends.
    pub async fn change_password(&self, current_password: &str, new_password: &str) -> Result<()> {
        let body = json!({ "current_password": current_password, "new_password": new_password });
        self.post("/api/v1/auth/password/change", Some(&body)).await
    }

    /// Makes the service sign its tokens with a new key; for administrators of the platform. Returns its id.
    pub async fn rotate_signing_key(&self) -> Result<String> {
        let answer: serde_json::Value = self.post("/api/v1/admin/signing_keys", None::<&()>).await?;
        let kid = answer["kid"].as_str();
        kid.map(str::to_owned).ok_or_else(|| Error::Protocol("the answer names no key".into()))
    }
}
