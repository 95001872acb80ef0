//! Stored SSH keys: whose they are, and those that a request chooses. Their own service makes and deletes them
//! (`services/ssh_key`); VMs copy them, and a person's go with the person.

use berth_domain::ids::{ProjectId, SshKeyId, UserId};
use uuid::Uuid;

use super::{DbError, FromRow, Row, Tx, sql};

/// Who stores a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// A person.
    User(UserId),
    /// A project.
    Project(ProjectId),
}

impl KeyOwner {
    /// Its id.
    pub const fn id(self) -> Uuid {
        match self {
            Self::User(id) => id.0,
            Self::Project(id) => id.0,
        }
    }

    /// The word for what it is.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Project(_) => "project",
        }
    }
}

struct PublicKey(String);

impl FromRow for PublicKey {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.text("public_key").map(Self)
    }
}

/// The key with an id, if this owner stores it.
pub async fn public_key(tx: &mut Tx, owner: KeyOwner, id: SshKeyId) -> Result<Option<String>, DbError> {
    let found = sql("SELECT public_key FROM ssh_keys WHERE id = $1 AND owner_id = $2 AND owner_kind = $3");
    let found: Option<PublicKey> =
        found.bind(id).bind(owner.id().to_string()).bind(owner.kind()).fetch_optional(tx).await?;
    Ok(found.map(|found| found.0))
}

/// Forgets all keys of an owner that is gone.
pub async fn forget(tx: &mut Tx, owner: KeyOwner) -> Result<(), DbError> {
    let forget = sql("DELETE FROM ssh_keys WHERE owner_id = $1 AND owner_kind = $2");
    forget.bind(owner.id().to_string()).bind(owner.kind()).execute(tx).await.map(drop)
}
