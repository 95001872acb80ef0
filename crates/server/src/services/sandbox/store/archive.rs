//! What the store of backups has of layers and memories, as their rows have it.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use berth_domain::ids::{LayerId, MemoryId};
use berth_host::sandbox::ImageFile;

use super::{layer, memory};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, Value, sql};

/// What may lie in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thing {
    /// A layer to which nobody writes any more.
    Layer(LayerId),
    /// A captured memory.
    Memory(MemoryId),
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(id) => write!(f, "layer-{id}"),
            Self::Memory(id) => write!(f, "memory-{id}"),
        }
    }
}

impl FromStr for Thing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text} names no layer and no memory");
        let (kind, id) = text.split_once('-').ok_or_else(unknown)?;
        match kind {
            "layer" => id.parse().map(Self::Layer).map_err(|_| unknown()),
            "memory" => id.parse().map(Self::Memory).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl Thing {
    const fn table(self) -> &'static str {
        match self {
            Self::Layer(_) => layer::TABLE,
            Self::Memory(_) => memory::TABLE,
        }
    }

    fn id(self) -> Value {
        match self {
            Self::Layer(id) => id.into(),
            Self::Memory(id) => id.into(),
        }
    }
}

/// What a store has of a layer or a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archived {
    /// The store's name.
    pub store: String,
    /// All of it, once that is there.
    pub file: Option<ImageFile>,
}

impl Archived {
    /// What a row says of it; none where no store has anything.
    pub fn of(row: &Row) -> Result<Option<Self>, DbError> {
        let Some(store) = row.opt_text("archive_store")? else { return Ok(None) };
        let file = match (row.opt_text("archive_name")?, row.opt_int("archive_bytes")?, row.opt_text("archive_sha256")?)
        {
            (Some(name), Some(bytes), Some(sha256)) => {
                Some(ImageFile { name, bytes: u64::try_from(bytes).unwrap_or_default(), sha256 })
            }
            _ => None,
        };
        Ok(Some(Self { store, file }))
    }

    /// Whether all of it is there.
    pub const fn is_whole(&self) -> bool {
        self.file.is_some()
    }
}

struct StoreRow(Option<String>);

impl FromRow for StoreRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        row.opt_text("archive_store").map(Self)
    }
}

struct ArchivedRow(Option<Archived>);

impl FromRow for ArchivedRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Archived::of(row).map(Self)
    }
}

/// What a store has of a layer or memory; none of one that goes.
pub async fn find(on: impl On, thing: Thing) -> Result<Option<Archived>, DbError> {
    let found = format!(
        "SELECT archive_store, archive_name, archive_bytes, archive_sha256 FROM {} WHERE id = $1 AND state = 'present'",
        thing.table()
    );
    let row: Option<ArchivedRow> = sql(found).bind(thing.id()).fetch_optional(on).await?;
    Ok(row.and_then(|row| row.0))
}

/// Records that a store may have something of it from now on. Whether it is kept, and lacks something there.
pub async fn begin(tx: &mut Tx, thing: Thing, store: &str) -> Result<bool, DbError> {
    let begun = format!(
        "UPDATE {} SET archive_store = $2, archive_bytes = NULL, archive_sha256 = NULL WHERE id = $1 AND state = 'present' \
         AND (archive_store IS NULL OR archive_store <> $2 OR archive_sha256 IS NULL)",
        thing.table()
    );
    Ok(sql(begun).bind(thing.id()).bind(store).execute(tx).await? > 0)
}

/// Records that a store, which was to have it, has all of it.
pub async fn end(tx: &mut Tx, thing: Thing, store: &str, file: &ImageFile) -> Result<(), DbError> {
    let ended = format!(
        "UPDATE {} SET archive_name = $3, archive_bytes = $4, archive_sha256 = $5 WHERE id = $1 AND archive_store = $2 AND state = 'present'",
        thing.table()
    );
    let bytes = i64::try_from(file.bytes).unwrap_or(i64::MAX);
    let ended = sql(ended).bind(thing.id()).bind(store).bind(file.name.clone()).bind(bytes).bind(file.sha256.clone());
    ended.execute(tx).await.map(drop)
}

/// Records that what a store has of it is not all, or not as it was. Nobody is told any more that it outlives its host.
pub async fn doubt(tx: &mut Tx, thing: Thing) -> Result<(), DbError> {
    let doubted = format!("UPDATE {} SET archive_bytes = NULL, archive_sha256 = NULL WHERE id = $1", thing.table());
    sql(doubted).bind(thing.id()).execute(tx).await.map(drop)
}

/// The store that may have something of one that goes.
pub async fn of_going(on: impl On, thing: Thing) -> Result<Option<String>, DbError> {
    let found = format!("SELECT archive_store FROM {} WHERE id = $1", thing.table());
    let row: Option<StoreRow> = sql(found).bind(thing.id()).fetch_optional(on).await?;
    Ok(row.and_then(|row| row.0))
}

/// Whether a store has all of something, as far as rows know.
pub async fn lies_in(db: &Db, store: &str) -> Result<bool, DbError> {
    let some: i64 =
        sql("SELECT (SELECT COUNT(*) FROM sandbox_layers WHERE archive_store = $1 AND archive_sha256 IS NOT NULL) \
         + (SELECT COUNT(*) FROM sandbox_memories WHERE archive_store = $1 AND archive_sha256 IS NOT NULL)")
        .bind(store)
        .fetch_one(db)
        .await?;
    Ok(some > 0)
}

/// All of which a store may have something.
pub async fn named(db: &Db) -> Result<HashSet<Thing>, DbError> {
    let layers: Vec<String> =
        sql("SELECT id FROM sandbox_layers WHERE archive_store IS NOT NULL").fetch_all(db).await?;
    let memories: Vec<String> =
        sql("SELECT id FROM sandbox_memories WHERE archive_store IS NOT NULL").fetch_all(db).await?;
    let parsed = |kind: &'static str| move |id: String| format!("{kind}-{id}").parse::<Thing>().map_err(DbError::Other);
    layers.into_iter().map(parsed("layer")).chain(memories.into_iter().map(parsed("memory"))).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn what_lies_in_the_store_is_found_by_its_name() {
        let id = Uuid::from_u128(7);
        for thing in [Thing::Layer(LayerId(id)), Thing::Memory(MemoryId(id))] {
            assert_eq!(thing.to_string().parse(), Ok(thing));
        }
        for wrong in ["layer", "layer-", "layer-7", "disk-00000000-0000-0000-0000-000000000007", ""] {
            assert!(wrong.parse::<Thing>().is_err(), "{wrong}");
        }
    }
}
