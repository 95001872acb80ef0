//! Rows of the keys that sign access tokens.

use berth_domain::Timestamp;

use crate::columns;
use crate::db::{DbError, FromRow, On, Row, Tx, record, sql};

/// A key that signs tokens.
#[derive(Clone)]
pub struct SigningKeyRow {
    /// Its name in tokens.
    pub kid: String,
    /// PKCS#8, base64, sealed; in clear where an older service wrote it.
    pub secret: String,
    /// Raw public key, base64url.
    pub public: String,
    /// When it was made.
    pub created_at: Timestamp,
}

impl FromRow for SigningKeyRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            kid: row.text("kid")?,
            secret: row.text("secret_key")?,
            public: row.text("public_key")?,
            created_at: row.time("created_at")?,
        })
    }
}

/// The keys, newest first.
pub async fn list(on: impl On) -> Result<Vec<SigningKeyRow>, DbError> {
    sql("SELECT * FROM signing_keys ORDER BY created_at DESC").fetch_all(on).await
}

/// Writes a new key.
pub async fn insert(tx: &mut Tx, key: &SigningKeyRow) -> Result<(), DbError> {
    let columns = columns! {
        "kid": &key.kid, "public_key": &key.public, "secret_key": &key.secret, "created_at": key.created_at,
    };
    record::insert("signing_keys", columns).execute(tx).await.map(drop)
}

/// Writes a key's secret anew.
pub async fn reseal(tx: &mut Tx, kid: &str, secret: &str) -> Result<(), DbError> {
    sql("UPDATE signing_keys SET secret_key = $2 WHERE kid = $1").bind(kid).bind(secret).execute(tx).await.map(drop)
}

/// Removes a key whose last token has ended.
pub async fn forget(tx: &mut Tx, kid: &str) -> Result<(), DbError> {
    sql("DELETE FROM signing_keys WHERE kid = $1").bind(kid).execute(tx).await.map(drop)
}
