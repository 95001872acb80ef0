//! Rows of stored keys.

use berth_domain::Timestamp;
use berth_domain::ids::{ProjectId, SshKeyId, UserId};

use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::record;
use crate::db::ssh_key::KeyOwner;
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// A stored key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshKeyRow {
    /// Its id.
    pub id: SshKeyId,
    /// Who stores it.
    pub owner: KeyOwner,
    /// Its name.
    pub name: String,
    /// The key, as it was given.
    pub public_key: String,
    /// The key without its comment.
    pub bare_key: String,
    /// Creation.
    pub created_at: Timestamp,
}

impl FromRow for SshKeyRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let owner = match row.text("owner_kind")?.as_str() {
            "user" => KeyOwner::User(row.parsed::<UserId>("owner_id")?),
            _ => KeyOwner::Project(row.parsed::<ProjectId>("owner_id")?),
        };
        Ok(Self {
            id: row.parsed("id")?,
            owner,
            name: row.text("name")?,
            public_key: row.text("public_key")?,
            bare_key: row.text("bare_key")?,
            created_at: row.time("created_at")?,
        })
    }
}

/// Writes a new key.
pub async fn insert(tx: &mut Tx, key: &SshKeyRow) -> Result<(), DbError> {
    let columns = columns! {
        "id": key.id, "owner_kind": key.owner.kind(), "owner_id": key.owner.id().to_string(), "name": &key.name,
        "public_key": &key.public_key, "bare_key": &key.bare_key, "created_at": key.created_at,
    };
    record::insert("ssh_keys", columns).execute(tx).await.map(drop)
}

/// Removes a key.
pub async fn remove(tx: &mut Tx, key: &SshKeyRow) -> Result<(), DbError> {
    sql("DELETE FROM ssh_keys WHERE id = $1").bind(key.id).execute(tx).await.map(drop)
}

/// A key of an owner.
pub async fn find(on: impl On, owner: KeyOwner, id: SshKeyId) -> Result<Option<SshKeyRow>, DbError> {
    sql("SELECT * FROM ssh_keys WHERE id = $1 AND owner_id = $2 AND owner_kind = $3")
        .bind(id)
        .bind(owner.id().to_string())
        .bind(owner.kind())
        .fetch_optional(on)
        .await
}

/// All keys of an owner.
pub async fn of_owner(tx: &mut Tx, owner: KeyOwner) -> Result<Vec<SshKeyRow>, DbError> {
    let all = sql("SELECT * FROM ssh_keys WHERE owner_id = $1 AND owner_kind = $2");
    all.bind(owner.id().to_string()).bind(owner.kind()).fetch_all(tx).await
}

/// By what a list of keys can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "ssh_keys.id",
    created: "ssh_keys.created_at",
    name: Some("ssh_keys.name"),
    status: None,
    labels: None,
};

/// A page of an owner's keys, and how many there are.
pub async fn list(db: &Db, owner: KeyOwner, listing: &Listing) -> Result<(Vec<SshKeyRow>, i64), DbError> {
    let page = page_of("*", "ssh_keys WHERE ssh_keys.owner_id = $1 AND ssh_keys.owner_kind = $2");
    page.bind(owner.id().to_string()).bind(owner.kind()).list(db, &LISTED, listing).await
}
