//! Rows of models and voices that administrators added. A row keeps the body that makes its model or voice.

use berth_domain::{Error, Timestamp};
use serde_json::Value;

use crate::columns;
use crate::db::{DbError, FromRow, On, Row, Tx, record, sql};

/// A table of what administrators added.
#[derive(Clone, Copy)]
pub struct Specs {
    table: &'static str,
    /// The word for one of its rows.
    pub word: &'static str,
}

/// Models.
pub const MODELS: Specs = Specs { table: "models", word: "model" };
/// Voices.
pub const VOICES: Specs = Specs { table: "voices", word: "voice" };

/// The row of a model or a voice that an administrator added.
#[derive(Clone, Debug)]
pub struct SpecRow {
    /// Its id.
    pub id: String,
    /// The body that describes it.
    pub spec: Value,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for SpecRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            spec: row.json("spec")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl SpecRow {
    /// Parses its body. A row that a service with other rules wrote may not parse.
    pub fn read<T>(&self) -> berth_domain::Result<T>
    where
        T: for<'a> TryFrom<&'a Value, Error = Error>,
    {
        T::try_from(&self.spec).map_err(|e| Error::internal(format!("the body of '{}' cannot be read: {e}", self.id)))
    }
}

impl Specs {
    /// One of them.
    pub async fn find(self, on: impl On, id: &str) -> Result<Option<SpecRow>, DbError> {
        sql(format!("SELECT * FROM {} WHERE id = $1", self.table)).bind(id).fetch_optional(on).await
    }

    /// All of them, newest first.
    pub async fn all(self, on: impl On) -> Result<Vec<SpecRow>, DbError> {
        sql(format!("SELECT * FROM {} ORDER BY created_at DESC, id DESC", self.table)).fetch_all(on).await
    }

    /// Writes one, new or known.
    pub async fn put(self, tx: &mut Tx, row: &SpecRow) -> Result<(), DbError> {
        const CHANGED: &str = "(id) DO UPDATE SET spec = excluded.spec, updated_at = excluded.updated_at";
        let columns = columns! {
            "id": &row.id, "spec": row.spec.to_string(), "created_at": row.created_at, "updated_at": row.updated_at,
        };
        record::insert(self.table, columns).on_conflict(CHANGED).execute(tx).await.map(drop)
    }

    /// Removes one.
    pub async fn delete(self, tx: &mut Tx, id: &str) -> Result<(), DbError> {
        sql(format!("DELETE FROM {} WHERE id = $1", self.table)).bind(id).execute(tx).await.map(drop)
    }
}
