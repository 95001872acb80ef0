//! What the store of backups has of layers and memories, as their rows have it.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use berth_domain::ids::{HostId, LayerId, MemoryId};
use berth_host::sandbox::ImageFile;

use super::archived::Archived;
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

struct ArchivedRow(Option<Archived>);

impl FromRow for ArchivedRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Archived::of(row).map(Self)
    }
}

/// All of a layer or memory in a store; none where there is none, or where it goes.
pub async fn find(on: impl On, thing: Thing) -> Result<Option<Archived>, DbError> {
    let found = format!("SELECT * FROM {} WHERE id = $1 AND state = 'present'", thing.table());
    let row: Option<ArchivedRow> = sql(found).bind(thing.id()).fetch_optional(on).await?;
    Ok(row.and_then(|row| row.0))
}

/// Records that a store may have something of it from now on. Whether it is kept, and that store lacks something.
pub async fn begin(tx: &mut Tx, thing: Thing, store: &str) -> Result<bool, DbError> {
    let begun = format!(
        "UPDATE {} SET archive_next = $2 WHERE id = $1 AND state = 'present' AND (archive_store IS NULL OR archive_store <> $2 \
         OR archive_doubted = 1)",
        thing.table()
    );
    Ok(sql(begun).bind(thing.id()).bind(store).execute(tx).await? > 0)
}

/// Records that a store, which was to have it, has all of it. Whether it is kept.
pub async fn end(tx: &mut Tx, thing: Thing, store: &str, file: &ImageFile) -> Result<bool, DbError> {
    let ended = format!(
        "UPDATE {} SET archive_store = $2, archive_name = $3, archive_bytes = $4, archive_sha256 = $5, archive_doubted = 0, \
         archive_next = NULL WHERE id = $1 AND archive_next = $2 AND state = 'present'",
        thing.table()
    );
    let bytes = i64::try_from(file.bytes).unwrap_or(i64::MAX);
    let ended = sql(ended).bind(thing.id()).bind(store).bind(file.name.clone()).bind(bytes).bind(file.sha256.clone());
    Ok(ended.execute(tx).await? > 0)
}

/// Records that something of it was missing in a store, or wrong: it is sent there again where its host is there.
pub async fn doubt(tx: &mut Tx, thing: Thing, store: &str) -> Result<(), DbError> {
    let doubted = format!("UPDATE {} SET archive_doubted = 1 WHERE id = $1 AND archive_store = $2", thing.table());
    sql(doubted).bind(thing.id()).bind(store).execute(tx).await.map(drop)
}

/// Whether it is there, and nobody is about to remove it.
pub async fn is_kept(on: impl On, thing: Thing) -> Result<bool, DbError> {
    let kept = format!("SELECT COUNT(*) FROM {} WHERE id = $1 AND state = 'present'", thing.table());
    Ok(sql(kept).bind(thing.id()).fetch_one::<i64>(on).await? > 0)
}

/// Whether a store may have something of it, whether it goes or not.
pub async fn may_be_in(on: impl On, thing: Thing, store: &str) -> Result<bool, DbError> {
    let there =
        format!("SELECT COUNT(*) FROM {} WHERE id = $1 AND (archive_store = $2 OR archive_next = $2)", thing.table());
    Ok(sql(there).bind(thing.id()).bind(store).fetch_one::<i64>(on).await? > 0)
}

/// Whether a store has all of something, as far as rows know.
pub async fn lies_in(db: &Db, store: &str) -> Result<bool, DbError> {
    let some: i64 = sql("SELECT (SELECT COUNT(*) FROM sandbox_layers WHERE archive_store = $1) \
         + (SELECT COUNT(*) FROM sandbox_memories WHERE archive_store = $1)")
    .bind(store)
    .fetch_one(db)
    .await?;
    Ok(some > 0)
}

async fn things(db: &Db, condition: &str, values: &[&str]) -> Result<HashSet<Thing>, DbError> {
    let mut things = HashSet::new();
    for (kind, table) in [("layer", layer::TABLE), ("memory", memory::TABLE)] {
        let found = format!("SELECT id FROM {table} WHERE {condition}");
        let ids: Vec<String> = sql(found).bind_all(values.iter().copied()).fetch_all(db).await?;
        for id in ids {
            things.insert(format!("{kind}-{id}").parse().map_err(DbError::Other)?);
        }
    }
    Ok(things)
}

/// All of which a store may have something.
pub async fn named(db: &Db, store: &str) -> Result<HashSet<Thing>, DbError> {
    things(db, "archive_store = $1 OR archive_next = $1", &[store]).await
}

/// All that a store has whole, as far as rows know.
pub async fn whole(db: &Db, store: &str) -> Result<HashSet<Thing>, DbError> {
    things(db, "archive_store = $1 AND archive_doubted = 0 AND state = 'present'", &[store]).await
}

/// All that a store has, and that is to be on a host.
pub async fn on_host(db: &Db, store: &str, host: HostId) -> Result<Vec<Thing>, DbError> {
    let there = "archive_store = $1 AND state = 'present' AND host_id = $2";
    let mut found: Vec<_> = things(db, there, &[store, &host.to_string()]).await?.into_iter().collect();
    found.sort_by_key(|thing| (matches!(thing, Thing::Memory(_)), thing.to_string()));
    Ok(found)
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
