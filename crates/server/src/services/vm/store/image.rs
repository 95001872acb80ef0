//! Rows of images.

use std::collections::HashSet;

use berth_domain::Timestamp;
use berth_domain::vm::ImageStatus;

use crate::columns;
use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, page_of, sql};

/// An image as its row has it.
#[derive(Clone, Debug)]
pub struct ImageRow {
    /// Its id, chosen by who made it.
    pub id: String,
    /// Name for people.
    pub name: String,
    /// Operating system.
    pub os: String,
    /// Content hash of what it was made from.
    pub version: String,
    /// The user that SSH keys are installed for.
    pub login_user: String,
    /// Size its disk has for a guest, in bytes.
    pub virtual_size: i64,
    /// Least memory it boots with, in MiB.
    pub min_memory_mb: i64,
    /// Where it stands.
    pub status: ImageStatus,
    /// The step, or the reason of a failure.
    pub message: Option<String>,
    /// JSON of where it is imported from.
    pub source: Option<String>,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change.
    pub updated_at: Timestamp,
}

impl FromRow for ImageRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.text("id")?,
            name: row.text("name")?,
            os: row.text("os")?,
            version: row.text("version")?,
            login_user: row.text("login_user")?,
            virtual_size: row.int("virtual_size")?,
            min_memory_mb: row.int("min_memory_mb")?,
            status: row.word("status", ImageStatus::parse)?,
            message: row.opt_text("message")?,
            source: row.opt_text("source")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

/// An image that is not gone.
pub async fn find(on: impl On, id: &str) -> Result<Option<ImageRow>, DbError> {
    sql("SELECT * FROM images WHERE id = $1 AND deleted_at IS NULL").bind(id).fetch_optional(on).await
}

/// An image, gone or not.
pub async fn find_ever(on: impl On, id: &str) -> Result<Option<ImageRow>, DbError> {
    sql("SELECT * FROM images WHERE id = $1").bind(id).fetch_optional(on).await
}

/// By what a list of images can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "images.id",
    created: "images.created_at",
    name: Some("images.name"),
    status: Some(Words { param: "status", column: "images.status", words: &["importing", "ready", "failed"] }),
    labels: None,
};

/// A page of images, and how many there are.
pub async fn list(db: &Db, listing: &Listing) -> Result<(Vec<ImageRow>, i64), DbError> {
    page_of("*", "images WHERE deleted_at IS NULL").list(db, &LISTED, listing).await
}

/// What is written of an image beside its id, every time.
fn columns(image: &ImageRow) -> Columns {
    let gone = matches!(image.status, ImageStatus::Deleting | ImageStatus::Deleted);
    columns! {
        "name": &image.name, "os": &image.os, "version": &image.version, "login_user": &image.login_user,
        "virtual_size": image.virtual_size, "min_memory_mb": image.min_memory_mb, "status": image.status.as_str(),
        "message": image.message.clone(), "source": image.source.clone(), "work_at": image.work_at,
        "created_at": image.created_at, "updated_at": image.updated_at,
        "deleted_at": gone.then_some(image.updated_at),
    }
}

/// Writes an image, new or known.
pub async fn put(tx: &mut Tx, image: &ImageRow) -> Result<(), DbError> {
    record::upsert("images", columns! { "id": &image.id }, columns(image)).execute(tx).await.map(drop)
}

/// Ids of every image that somebody may see.
pub async fn ids(db: &Db) -> Result<Vec<String>, DbError> {
    sql("SELECT id FROM images WHERE deleted_at IS NULL").fetch_all(db).await
}

/// Ids of images that do not go to other hosts now: they are on their way in, or nobody wants them any more.
pub async fn that_stay(db: &Db) -> Result<HashSet<String>, DbError> {
    let ids: Vec<String> =
        sql("SELECT id FROM images WHERE status IN ('importing', 'deleting', 'deleted')").fetch_all(db).await?;
    Ok(ids.into_iter().collect())
}

/// What the imports under way come from.
pub async fn sources(db: &Db) -> Result<Vec<String>, DbError> {
    sql("SELECT source FROM images WHERE status = 'importing' AND source IS NOT NULL").fetch_all(db).await
}

/// Ids of images that want work, with the time, longest due first.
pub async fn with_work(db: &Db, limit: usize) -> Result<Vec<(String, Timestamp)>, DbError> {
    sql("SELECT id, work_at FROM images WHERE work_at IS NOT NULL ORDER BY work_at LIMIT $1")
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(db)
        .await
}
