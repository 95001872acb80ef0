//! Rows of people.

use berth_domain::Timestamp;
use berth_domain::ids::UserId;

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// The table.
const TABLE: &str = "users";

/// A person.
#[derive(Clone, Debug, PartialEq)]
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

/// The id, and what may change of a person but whether they administer the platform.
fn changeable(user: &UserRow) -> Columns {
    columns! {
        "id": user.id, "email": &user.email, "email_key": user.email.to_lowercase(), "name": user.name.clone(),
        "phone": user.phone.clone(), "password_hash": &user.password_hash,
        "email_verified_at": user.email_verified_at, "phone_verified_at": user.phone_verified_at,
        "suspended_at": user.suspended_at, "referral_code": user.referral_code.clone(),
        "updated_at": user.updated_at,
    }
}

fn columns(user: &UserRow) -> Columns {
    [changeable(user), columns! { "is_admin": user.is_admin, "created_at": user.created_at }].concat()
}

/// Writes a new person.
pub async fn insert(tx: &mut Tx, user: &UserRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(user)).execute(tx).await.map(drop)
}

/// Writes what may change of a person.
pub async fn update(tx: &mut Tx, user: &UserRow) -> Result<(), DbError> {
    record::overwrite(TABLE, changeable(user)).execute(tx).await.map(drop)
}

/// Makes a person an administrator of the platform, or takes that back.
pub async fn set_admin(tx: &mut Tx, id: UserId, is_admin: bool, now: Timestamp) -> Result<(), DbError> {
    let columns = columns! { "id": id, "is_admin": is_admin, "updated_at": now };
    record::overwrite(TABLE, columns).execute(tx).await.map(drop)
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
    let left = columns! {
        "id": id, "email": "", "email_key": format!("deleted:{id}"), "name": None::<String>, "phone": None::<String>,
        "password_hash": "", "is_admin": false, "email_verified_at": None::<Timestamp>,
        "phone_verified_at": None::<Timestamp>, "referral_code": None::<String>, "deleted_at": now, "updated_at": now,
    };
    record::overwrite(TABLE, left).execute(tx).await.map(drop)
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
