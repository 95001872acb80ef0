//! The only SQL of identity.

use berth_domain::Timestamp;
use berth_domain::identity::{OrgRole, ProjectRole};
use berth_domain::ids::{OrgId, ProjectId, SessionId, UserId};
use berth_domain::page::Page;

use crate::db::{Db, DbError, FromRow, On, Row, Tx, sql};

/// A person.
#[derive(Clone, Debug)]
pub struct UserRow {
    /// Id.
    pub id: UserId,
    /// Address, as given.
    pub email: String,
    /// Name.
    pub name: Option<String>,
    /// Phone number.
    pub phone: Option<String>,
    /// Hash of the password, in PHC form.
    pub password_hash: String,
    /// Administrator of the platform.
    pub is_admin: bool,
    /// When the address was verified.
    pub email_verified_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for UserRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            email: row.text("email")?,
            name: row.opt_text("name")?,
            phone: row.opt_text("phone")?,
            password_hash: row.text("password_hash")?,
            is_admin: row.flag("is_admin")?,
            email_verified_at: row.opt_time("email_verified_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// An organization, with the caller's role.
#[derive(Clone, Debug)]
pub struct OrgRow {
    /// Id.
    pub id: OrgId,
    /// Name.
    pub name: String,
    /// Slug.
    pub slug: String,
    /// The caller's role.
    pub role: OrgRole,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for OrgRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            name: row.text("name")?,
            slug: row.text("slug")?,
            role: row.word("role", OrgRole::parse)?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// A project, with the caller's role in it.
#[derive(Clone, Debug)]
pub struct ProjectRow {
    /// Id.
    pub id: ProjectId,
    /// Its organization.
    pub org: OrgId,
    /// Name.
    pub name: String,
    /// Slug.
    pub slug: String,
    /// The caller's role, if it is a member of the project itself.
    pub role: Option<ProjectRole>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for ProjectRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let role = row.opt_text("role")?.map(|r| ProjectRole::parse(&r).map_err(DbError::Other)).transpose()?;
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            name: row.text("name")?,
            slug: row.text("slug")?,
            role,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// Writes a new person.
pub async fn insert_user(tx: &mut Tx, user: &UserRow) -> Result<(), DbError> {
    sql("INSERT INTO users (id, email, email_key, name, phone, password_hash, is_admin, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)")
    .bind(user.id)
    .bind(&user.email)
    .bind(user.email.to_lowercase())
    .bind(user.name.clone())
    .bind(user.phone.clone())
    .bind(&user.password_hash)
    .bind(user.is_admin)
    .bind(user.created_at)
    .bind(user.updated_at)
    .execute(tx)
    .await
    .map(drop)
}

/// A person by address, in whatever case.
pub async fn user_by_email(on: impl On, email: &str) -> Result<Option<UserRow>, DbError> {
    sql("SELECT * FROM users WHERE email_key = $1").bind(email.to_lowercase()).fetch_optional(on).await
}

/// A person by id.
pub async fn user(db: &Db, id: UserId) -> Result<Option<UserRow>, DbError> {
    sql("SELECT * FROM users WHERE id = $1").bind(id).fetch_optional(db).await
}

/// How many people there are.
pub async fn count_users(tx: &mut Tx) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM users").fetch_one(tx).await
}

/// Whether an organization has this slug.
pub async fn org_slug_taken(tx: &mut Tx, slug: &str) -> Result<bool, DbError> {
    let n: i64 = sql("SELECT COUNT(*) FROM orgs WHERE slug = $1").bind(slug).fetch_one(tx).await?;
    Ok(n > 0)
}

/// Writes a new organization with its owner.
pub async fn insert_org(tx: &mut Tx, org: &OrgRow, owner: UserId, personal: bool) -> Result<(), DbError> {
    sql("INSERT INTO orgs (id, name, slug, is_personal, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(org.id)
        .bind(&org.name)
        .bind(&org.slug)
        .bind(personal)
        .bind(org.created_at)
        .bind(org.updated_at)
        .execute(tx)
        .await?;
    sql("INSERT INTO org_members (org_id, user_id, role, created_at) VALUES ($1, $2, $3, $4)")
        .bind(org.id)
        .bind(owner)
        .bind(org.role.as_str())
        .bind(org.created_at)
        .execute(tx)
        .await
        .map(drop)
}

/// An organization as one of its members sees it, by id or slug.
pub async fn org_of(db: &Db, user: UserId, name: &str) -> Result<Option<OrgRow>, DbError> {
    sql("SELECT o.*, m.role AS role FROM orgs o JOIN org_members m ON m.org_id = o.id \
         WHERE m.user_id = $1 AND (o.id = $2 OR o.slug = $2)")
    .bind(user)
    .bind(name)
    .fetch_optional(db)
    .await
}

/// A page of the organizations a person belongs to, and how many there are.
pub async fn orgs_of(db: &Db, user: UserId, page: Page) -> Result<(Vec<OrgRow>, i64), DbError> {
    let total = sql("SELECT COUNT(*) FROM org_members WHERE user_id = $1").bind(user).fetch_one(db).await?;
    let rows = sql("SELECT o.*, m.role AS role FROM orgs o JOIN org_members m ON m.org_id = o.id \
                    WHERE m.user_id = $1 ORDER BY o.created_at DESC, o.id DESC LIMIT $2 OFFSET $3")
    .bind(user)
    .bind(page.limit)
    .bind(page.offset())
    .fetch_all(db)
    .await?;
    Ok((rows, total))
}

/// Whether a project of the organization has this slug.
pub async fn project_slug_taken(tx: &mut Tx, org: OrgId, slug: &str) -> Result<bool, DbError> {
    let n: i64 =
        sql("SELECT COUNT(*) FROM projects WHERE org_id = $1 AND slug = $2").bind(org).bind(slug).fetch_one(tx).await?;
    Ok(n > 0)
}

/// Writes a new project; its maker becomes a member.
pub async fn insert_project(tx: &mut Tx, project: &ProjectRow, maker: UserId) -> Result<(), DbError> {
    sql("INSERT INTO projects (id, org_id, name, slug, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(project.id)
        .bind(project.org)
        .bind(&project.name)
        .bind(&project.slug)
        .bind(project.created_at)
        .bind(project.updated_at)
        .execute(tx)
        .await?;
    sql("INSERT INTO project_members (project_id, user_id, role, created_at) VALUES ($1, $2, $3, $4)")
        .bind(project.id)
        .bind(maker)
        .bind(ProjectRole::Admin.as_str())
        .bind(project.created_at)
        .execute(tx)
        .await
        .map(drop)
}

/// A project of an organization, by id or slug, with a person's role in it.
pub async fn project_of(db: &Db, org: OrgId, user: UserId, name: &str) -> Result<Option<ProjectRow>, DbError> {
    sql("SELECT p.*, m.role AS role FROM projects p \
         LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2 \
         WHERE p.org_id = $1 AND (p.id = $3 OR p.slug = $3)")
    .bind(org)
    .bind(user)
    .bind(name)
    .fetch_optional(db)
    .await
}

/// A page of an organization's projects: all of them, or only those a person is a member of.
pub async fn projects_of(
    db: &Db,
    org: OrgId,
    user: UserId,
    all: bool,
    page: Page,
) -> Result<(Vec<ProjectRow>, i64), DbError> {
    let total = sql("SELECT COUNT(*) FROM projects p \
         LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2 \
         WHERE p.org_id = $1 AND ($3 = 1 OR m.role IS NOT NULL)")
    .bind(org)
    .bind(user)
    .bind(all)
    .fetch_one(db)
    .await?;
    let rows = sql("SELECT p.*, m.role AS role FROM projects p \
         LEFT JOIN project_members m ON m.project_id = p.id AND m.user_id = $2 \
         WHERE p.org_id = $1 AND ($3 = 1 OR m.role IS NOT NULL) \
         ORDER BY p.created_at DESC, p.id DESC LIMIT $4 OFFSET $5")
    .bind(org)
    .bind(user)
    .bind(all)
    .bind(page.limit)
    .bind(page.offset())
    .fetch_all(db)
    .await?;
    Ok((rows, total))
}

/// A signed-in session.
#[derive(Clone, Debug)]
pub struct SessionRow {
    /// Id.
    pub id: SessionId,
    /// Whose.
    pub user: UserId,
    /// Whether that person administers the platform.
    pub is_admin: bool,
    /// The absolute limit.
    pub expires_at: Timestamp,
    /// When it was ended.
    pub revoked_at: Option<Timestamp>,
}

impl FromRow for SessionRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            user: row.parsed("user_id")?,
            is_admin: row.flag("is_admin")?,
            expires_at: row.time("expires_at")?,
            revoked_at: row.opt_time("revoked_at")?,
        })
    }
}

/// Writes a new session.
pub async fn insert_session(tx: &mut Tx, session: &SessionRow, now: Timestamp) -> Result<(), DbError> {
    sql("INSERT INTO sessions (id, user_id, created_at, last_used_at, expires_at) VALUES ($1, $2, $3, $3, $4)")
        .bind(session.id)
        .bind(session.user)
        .bind(now)
        .bind(session.expires_at)
        .execute(tx)
        .await
        .map(drop)
}

/// A session by id.
pub async fn session(on: impl On, id: SessionId) -> Result<Option<SessionRow>, DbError> {
    sql("SELECT s.*, u.is_admin AS is_admin FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = $1")
        .bind(id)
        .fetch_optional(on)
        .await
}

/// Ends a session.
pub async fn revoke_session(tx: &mut Tx, id: SessionId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE sessions SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL")
        .bind(id)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}

struct SessionIdRow(SessionId);

impl FromRow for SessionIdRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.parsed("id").map(Self)
    }
}

/// Ends every session of a person; those that were ended.
pub async fn revoke_sessions(tx: &mut Tx, user: UserId, now: Timestamp) -> Result<Vec<SessionId>, DbError> {
    let open: Vec<SessionIdRow> =
        sql("SELECT id FROM sessions WHERE user_id = $1 AND revoked_at IS NULL").bind(user).fetch_all(&mut *tx).await?;
    sql("UPDATE sessions SET revoked_at = $2 WHERE user_id = $1 AND revoked_at IS NULL")
        .bind(user)
        .bind(now)
        .execute(tx)
        .await?;
    Ok(open.into_iter().map(|row| row.0).collect())
}

/// A refresh token at rest.
#[derive(Clone, Debug)]
pub struct RefreshRow {
    /// SHA-256 of the token, in hexadecimal.
    pub hash: String,
    /// Its session.
    pub session: SessionId,
    /// When it ends.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
    /// What it was exchanged for, sealed with a key that only the token yields.
    pub successor: Option<String>,
}

impl FromRow for RefreshRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            hash: row.text("hash")?,
            session: row.parsed("session_id")?,
            expires_at: row.time("expires_at")?,
            used_at: row.opt_time("used_at")?,
            successor: row.opt_text("successor")?,
        })
    }
}

/// Writes a new refresh token.
pub async fn insert_refresh(tx: &mut Tx, token: &RefreshRow, now: Timestamp) -> Result<(), DbError> {
    sql("INSERT INTO refresh_tokens (hash, session_id, created_at, expires_at) VALUES ($1, $2, $3, $4)")
        .bind(&token.hash)
        .bind(token.session)
        .bind(now)
        .bind(token.expires_at)
        .execute(tx)
        .await
        .map(drop)
}

/// A refresh token by its hash.
pub async fn refresh(tx: &mut Tx, hash: &str) -> Result<Option<RefreshRow>, DbError> {
    sql("SELECT * FROM refresh_tokens WHERE hash = $1").bind(hash).fetch_optional(tx).await
}

/// Marks a refresh token as used.
pub async fn use_refresh(tx: &mut Tx, hash: &str, successor: &str, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE refresh_tokens SET used_at = $2, successor = $3 WHERE hash = $1")
        .bind(hash)
        .bind(now)
        .bind(successor)
        .execute(tx)
        .await
        .map(drop)
}

/// A key that signs tokens.
#[derive(Clone)]
pub struct SigningKeyRow {
    /// Its name in tokens.
    pub kid: String,
    /// PKCS#8, base64.
    pub secret: String,
    /// Raw public key, base64url.
    pub public: String,
}

impl FromRow for SigningKeyRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { kid: row.text("kid")?, secret: row.text("secret_key")?, public: row.text("public_key")? })
    }
}

/// The keys, newest first.
pub async fn signing_keys(tx: &mut Tx) -> Result<Vec<SigningKeyRow>, DbError> {
    sql("SELECT * FROM signing_keys ORDER BY created_at DESC").fetch_all(tx).await
}

/// Writes a new key.
pub async fn insert_signing_key(tx: &mut Tx, key: &SigningKeyRow, now: Timestamp) -> Result<(), DbError> {
    sql("INSERT INTO signing_keys (kid, public_key, secret_key, created_at) VALUES ($1, $2, $3, $4)")
        .bind(&key.kid)
        .bind(&key.public)
        .bind(&key.secret)
        .bind(now)
        .execute(tx)
        .await
        .map(drop)
}
