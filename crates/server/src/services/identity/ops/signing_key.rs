//! The keys that sign access tokens: made, replaced, forgotten when their last token has ended.

use std::sync::{Arc, PoisonError};

use berth_domain::{Result, Timestamp};

use crate::clock::Clock;
use crate::db::{Db, Tx};
use crate::http::auth::Person;
use crate::services::identity::store::signing_key::SigningKeyRow;
use crate::services::identity::{Identity, store, token};

/// The keys, newest first; the first is made at the first start.
pub(in crate::services::identity) async fn at_start(db: &Db, clock: &Clock) -> Result<Vec<SigningKeyRow>> {
    let mut tx = db.begin().await?;
    let mut keys = store::signing_key::list(&mut tx).await?;
    if keys.is_empty() {
        keys.push(make(&mut tx, clock.now()).await?);
        tx.commit().await?;
    }
    Ok(keys)
}

async fn make(tx: &mut Tx, now: Timestamp) -> Result<SigningKeyRow> {
    let key = token::new_key(now)?;
    store::signing_key::insert(tx, &key).await?;
    Ok(key)
}

/// Signs with a new key from now on. What older keys signed stays valid until it ends.
pub(in crate::services::identity) async fn rotate(identity: &Identity, admin: &Person) -> Result<String> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin().await?;
    let key = make(&mut tx, now).await?;
    admin.caller.audit("signing_key.rotate", &key.kid).write(&mut tx, now).await?;
    tx.commit().await?;
    reload(identity).await?;
    Ok(key.kid)
}

/// Replaces a key that is old, and forgets those that are of no use any more.
pub(in crate::services::identity) async fn keep_fresh(identity: &Identity) -> Result<()> {
    let (inner, now) = (&identity.inner, identity.inner.clock.now());
    let mut tx = inner.db.begin().await?;
    let keys = store::signing_key::list(&mut tx).await?;
    let life = inner.config.signing_key_days.saturating_mul(86_400);
    if keys.first().is_none_or(|newest| newest.created_at.plus_seconds(life) <= now) {
        make(&mut tx, now).await?;
    }
    for pair in keys.windows(2) {
        // The older one signed until the younger one came; then its last token had its whole life to go.
        if pair[0].created_at.plus_seconds(inner.config.access_token_seconds) < now {
            store::signing_key::forget(&mut tx, &pair[1].kid).await?;
        }
    }
    tx.commit().await?;
    reload(identity).await
}

/// Reads the keys again.
pub(in crate::services::identity) async fn reload(identity: &Identity) -> Result<()> {
    let inner = &identity.inner;
    let keys = store::signing_key::list(&inner.db).await?;
    let signer = token::Signer::new(&keys, &inner.issuer, &inner.config.audience)?;
    *inner.signer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(signer);
    Ok(())
}
