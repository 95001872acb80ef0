//! Reads rows of either database into our types.

use std::fmt::Display;
use std::str::FromStr;

use berth_domain::Timestamp;
use berth_domain::ids::Owner;
use sqlx::Row as _;

use super::DbError;

/// A row of either database.
pub enum Row {
    /// Of SQLite.
    Sqlite(sqlx::sqlite::SqliteRow),
    /// Of PostgreSQL.
    Postgres(sqlx::postgres::PgRow),
}

/// A type that can be read from a row.
pub trait FromRow: Sized {
    /// Reads it; an error means that the schema and the code disagree.
    fn from_row(row: &Row) -> Result<Self, DbError>;
}

impl Row {
    /// Whether it has such a column: a start reads some rows before it brings the schema up to date.
    pub fn has(&self, column: &str) -> bool {
        match self {
            Self::Sqlite(row) => row.try_column(column).is_ok(),
            Self::Postgres(row) => row.try_column(column).is_ok(),
        }
    }

    /// A `BIGINT` that may be null.
    pub fn opt_int(&self, column: &str) -> Result<Option<i64>, DbError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A `TEXT` that may be null.
    pub fn opt_text(&self, column: &str) -> Result<Option<String>, DbError> {
        Ok(match self {
            Self::Sqlite(row) => row.try_get(column)?,
            Self::Postgres(row) => row.try_get(column)?,
        })
    }

    /// A `BIGINT`.
    pub fn int(&self, column: &str) -> Result<i64, DbError> {
        self.opt_int(column)?.ok_or_else(|| null(column))
    }

    /// A `TEXT`.
    pub fn text(&self, column: &str) -> Result<String, DbError> {
        self.opt_text(column)?.ok_or_else(|| null(column))
    }

    /// A truth value, stored as 0 or 1.
    pub fn flag(&self, column: &str) -> Result<bool, DbError> {
        Ok(self.int(column)? != 0)
    }

    /// A time, stored as microseconds.
    pub fn time(&self, column: &str) -> Result<Timestamp, DbError> {
        self.int(column).map(Timestamp)
    }

    /// A time that may be null.
    pub fn opt_time(&self, column: &str) -> Result<Option<Timestamp>, DbError> {
        Ok(self.opt_int(column)?.map(Timestamp))
    }

    /// A text in the form of `T`, ids among them.
    pub fn parsed<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, DbError> {
        self.text(column)?.parse().map_err(|e| DbError::Other(format!("{column}: {e}")))
    }

    /// The same where null is allowed.
    pub fn opt_parsed<T: FromStr<Err: Display>>(&self, column: &str) -> Result<Option<T>, DbError> {
        let text = self.opt_text(column)?;
        text.map(|t| t.parse().map_err(|e| DbError::Other(format!("{column}: {e}")))).transpose()
    }

    /// A word of one of the domain's enums, by its `parse`.
    pub fn word<T>(&self, column: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, DbError> {
        parse(&self.text(column)?).map_err(|e| DbError::Other(format!("{column}: {e}")))
    }

    /// The same where null is allowed.
    pub fn opt_word<T>(&self, column: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, DbError> {
        let text = self.opt_text(column)?;
        text.map(|t| parse(&t).map_err(|e| DbError::Other(format!("{column}: {e}")))).transpose()
    }

    /// JSON in a `TEXT`.
    pub fn json<T: serde::de::DeserializeOwned>(&self, column: &str) -> Result<T, DbError> {
        serde_json::from_str(&self.text(column)?).map_err(|e| DbError::Other(format!("{column}: {e}")))
    }
}

fn null(column: &str) -> DbError {
    DbError::Other(format!("{column} is null"))
}

/// A single number: the first column of the row.
impl FromRow for i64 {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let value: Option<Self> = match row {
            Row::Sqlite(row) => row.try_get(0)?,
            Row::Postgres(row) => row.try_get(0)?,
        };
        value.ok_or_else(|| null("the first column"))
    }
}

/// A single text: the first column of the row.
impl FromRow for String {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let value: Option<Self> = match row {
            Row::Sqlite(row) => row.try_get(0)?,
            Row::Postgres(row) => row.try_get(0)?,
        };
        value.ok_or_else(|| null("the first column"))
    }
}

/// The owner of a row: `org_id` and `project_id`; none where the row is the platform's.
impl FromRow for Option<Owner> {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(row.opt_parsed("org_id")?.zip(row.opt_parsed("project_id")?))
    }
}

/// A line of a work list: `id` and `work_at`.
impl<K: FromStr<Err: Display>> FromRow for (K, Timestamp) {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok((row.parsed("id")?, row.time("work_at")?))
    }
}
