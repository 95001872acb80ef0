//! Rows of people.

use berth_domain::Timestamp;
use berth_domain::ids::UserId;

use crate::db::listing::{Listed, Listing};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

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
    /// When the number was verified.
    pub phone_verified_at: Option<Timestamp>,
    /// When an administrator suspended the account.
    pub suspended_at: Option<Timestamp>,
    /// What others sign up with to be counted as brought by this person.
    pub referral_code: Option<String>,
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
            phone_verified_at: row.opt_time("phone_verified_at")?,
            suspended_at: row.opt_time("suspended_at")?,
            referral_code: row.opt_text("referral_code")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// Writes a new person.
pub async fn insert(tx: &mut Tx, user: &UserRow) -> Result<(), DbError> {
    sql(
        "INSERT INTO users (id, email, email_key, name, phone, password_hash, is_admin, email_verified_at, created_at, \
         updated_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(user.id)
    .bind(&user.email)
    .bind(user.email.to_lowercase())
    .bind(user.name.clone())
    .bind(user.phone.clone())
    .bind(&user.password_hash)
    .bind(user.is_admin)
    .bind(user.email_verified_at)
    .bind(user.created_at)
    .bind(user.updated_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Writes what may change of a person.
pub async fn update(tx: &mut Tx, user: &UserRow) -> Result<(), DbError> {
    sql("UPDATE users SET email = $2, email_key = $3, name = $4, phone = $5, password_hash = $6, \
         email_verified_at = $7, phone_verified_at = $8, suspended_at = $9, referral_code = $10, updated_at = $11 \
         WHERE id = $1")
    .bind(user.id)
    .bind(&user.email)
    .bind(user.email.to_lowercase())
    .bind(user.name.clone())
    .bind(user.phone.clone())
    .bind(&user.password_hash)
    .bind(user.email_verified_at)
    .bind(user.phone_verified_at)
    .bind(user.suspended_at)
    .bind(user.referral_code.clone())
    .bind(user.updated_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Makes a person an administrator of the platform, or takes that back.
pub async fn set_admin(tx: &mut Tx, id: UserId, is_admin: bool, now: Timestamp) -> Result<(), DbError> {
    let text = "UPDATE users SET is_admin = $2, updated_at = $3 WHERE id = $1";
    sql(text).bind(id).bind(is_admin).bind(now).execute(tx).await.map(drop)
}

/// Writes the hash of the same password at another cost, if the password is still that one.
pub async fn rehash(tx: &mut Tx, id: UserId, old: &str, new: &str) -> Result<(), DbError> {
    sql("UPDATE users SET password_hash = $3 WHERE id = $1 AND password_hash = $2")
        .bind(id)
        .bind(old)
        .bind(new)
        .execute(tx)
        .await
        .map(drop)
}

/// Takes the person out of a row. What is left is the id that records name; the address is free again.
pub async fn forget(tx: &mut Tx, id: UserId, now: Timestamp) -> Result<(), DbError> {
    sql("UPDATE users SET email = '', email_key = $2, name = NULL, phone = NULL, password_hash = '', is_admin = 0, \
         email_verified_at = NULL, phone_verified_at = NULL, referral_code = NULL, deleted_at = $3, updated_at = $3 \
         WHERE id = $1")
    .bind(id)
    .bind(format!("deleted:{id}"))
    .bind(now)
    .execute(tx)
    .await
    .map(drop)
}

/// A person by address, in whatever case.
pub async fn by_email(on: impl On, email: &str) -> Result<Option<UserRow>, DbError> {
    sql("SELECT * FROM users WHERE email_key = $1 AND deleted_at IS NULL")
        .bind(email.to_lowercase())
        .fetch_optional(on)
        .await
}

/// A person by referral code.
pub async fn by_referral_code(on: impl On, code: &str) -> Result<Option<UserRow>, DbError> {
    sql("SELECT * FROM users WHERE referral_code = $1 AND deleted_at IS NULL").bind(code).fetch_optional(on).await
}

/// A person by id.
pub async fn find(on: impl On, id: UserId) -> Result<Option<UserRow>, DbError> {
    sql("SELECT * FROM users WHERE id = $1 AND deleted_at IS NULL").bind(id).fetch_optional(on).await
}

/// How many administrators the platform has.
pub async fn administrators(tx: &mut Tx) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM users WHERE is_admin = 1 AND deleted_at IS NULL").fetch_one(tx).await
}

/// How many people there are or were.
pub async fn count(tx: &mut Tx) -> Result<i64, DbError> {
    sql("SELECT COUNT(*) FROM users").fetch_one(tx).await
}

/// By what a list of people can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "users.id",
    created: "users.created_at",
    name: Some("COALESCE(users.name, '')"),
    status: None,
    labels: None,
};

/// A page of everybody whose address holds a text, and how many there are.
pub async fn list(db: &Db, email: &str, listing: &Listing) -> Result<(Vec<UserRow>, i64), DbError> {
    let like = format!("%{}%", email.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"));
    let from = "users WHERE deleted_at IS NULL AND email_key LIKE $1 ESCAPE '\\'";
    page_of("*", from).bind(like).list(db, &LISTED, listing).await
}
