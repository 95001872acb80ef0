//! Accounts, organizations and projects.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::transport::segment;
use crate::{Client, List, Page, Result};

/// Tokens of a session.
#[derive(Clone, Deserialize, Serialize)]
pub struct Tokens {
    /// For `Authorization: Bearer`.
    pub access_token: String,
    /// Good for one new pair.
    pub refresh_token: String,
}

/// A person.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct User {
    /// Id.
    pub id: String,
    /// Address.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Administrator of the platform.
    pub is_admin: bool,
}

/// An organization.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Organization {
    /// Id.
    pub id: String,
    /// Name in paths.
    pub slug: String,
    /// Name.
    pub name: String,
    /// The caller's role.
    pub role: String,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// A project.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Project {
    /// Id.
    pub id: String,
    /// Organization it belongs to.
    pub org_id: String,
    /// Name in paths.
    pub slug: String,
    /// Name.
    pub name: String,
    /// The caller's role in the project itself.
    pub role: Option<String>,
    /// Creation, RFC 3339.
    pub created_at: String,
}

/// Who signs up.
#[derive(Clone, Serialize)]
pub struct SignUp {
    /// Address.
    pub email: String,
    /// Password, 12 to 128 characters.
    pub password: String,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a sign-up made.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SignedUp {
    /// The person.
    pub user: User,
    /// Their own organization.
    pub organization: Organization,
    /// Its first project.
    pub project: Project,
    /// Whether the address must be verified first.
    pub verification_required: bool,
}

impl Client {
    /// Makes an account.
    pub async fn sign_up(&self, request: &SignUp) -> Result<SignedUp> {
        self.post("/api/v1/auth/signup", Some(request)).await
    }

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

    /// Who calls.
    pub async fn me(&self) -> Result<User> {
        self.get("/api/v1/users/me").await
    }

    /// Organizations of the caller.
    pub async fn organizations(&self, page: Page) -> Result<List<Organization>> {
        self.list("/api/v1/orgs", &page).await
    }

    /// Makes an organization.
    pub async fn create_organization(&self, name: &str, slug: Option<&str>) -> Result<Organization> {
        self.post("/api/v1/orgs", Some(&json!({ "name": name, "slug": slug }))).await
    }

    /// Projects of an organization.
    pub async fn projects(&self, org: &str, page: Page) -> Result<List<Project>> {
        self.list(&format!("/api/v1/orgs/{}/projects", segment(org)), &page).await
    }

    /// Makes a project.
    pub async fn create_project(&self, org: &str, name: &str, slug: Option<&str>) -> Result<Project> {
        let body = json!({ "name": name, "slug": slug });
        self.post(&format!("/api/v1/orgs/{}/projects", segment(org)), Some(&body)).await
    }

    /// One project.
    pub async fn get_project(&self, org: &str, project: &str) -> Result<Project> {
        self.get(&format!("/api/v1/orgs/{}/projects/{}", segment(org), segment(project))).await
    }
}
