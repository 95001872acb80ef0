//! Rows of models that administrators added. A row keeps the body that makes its model.

use berth_domain::gateway::Model;
use berth_domain::{Error, Timestamp};
use serde_json::Value;

use crate::db::{DbError, FromRow, On, Row, Tx, sql};

/// A model as its row has it.
#[derive(Clone, Debug)]
pub struct ModelRow {
    /// Its id.
    pub id: String,
    /// The body that makes it.
    pub spec: Value,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for ModelRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            spec: row.json("spec")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

impl ModelRow {
    /// The model. What was written by a service with other rules may not be one.
    pub fn model(&self) -> berth_domain::Result<Model> {
        Model::try_from(&self.spec).map_err(|e| Error::internal(format!("the model {} cannot be read: {e}", self.id)))
    }
}

/// One of them.
pub async fn find(on: impl On, id: &str) -> Result<Option<ModelRow>, DbError> {
    sql("SELECT * FROM models WHERE id = $1").bind(id).fetch_optional(on).await
}

/// All of them, newest first.
pub async fn all(on: impl On) -> Result<Vec<ModelRow>, DbError> {
    sql("SELECT * FROM models ORDER BY created_at DESC, id DESC").fetch_all(on).await
}

/// Writes a model, new or known.
pub async fn put(tx: &mut Tx, row: &ModelRow) -> Result<(), DbError> {
    sql("INSERT INTO models (id, spec, created_at, updated_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (id) DO UPDATE SET spec = $2, updated_at = $4")
    .bind(&row.id)
    .bind(row.spec.to_string())
    .bind(row.created_at)
    .bind(row.updated_at)
    .execute(tx)
    .await
    .map(drop)
}

/// Removes a model.
pub async fn delete(tx: &mut Tx, id: &str) -> Result<(), DbError> {
    sql("DELETE FROM models WHERE id = $1").bind(id).execute(tx).await.map(drop)
}
