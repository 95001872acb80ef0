//! The keys that sign access tokens: made, sealed, replaced, forgotten when their last token has ended.

use std::sync::{Arc, PoisonError};

use berth_domain::{Error, Result, Secret, Timestamp};
use berth_host::clock::Clock;

use crate::db::{Db, Tx};
use crate::http::auth::Person;
use crate::http::idempotency::{Idempotency, Outcome};
use crate::seal::{self, Sealer};
use crate::services::identity::store::signing_key::SigningKeyRow;
use crate::services::identity::wire::signing_key::SigningKeyView;
use crate::services::identity::{Identity, store, token};

/// The keys, newest first; the first is made at the first start. A key that lay in clear is sealed, and signs no more:
/// copies of the database from before hold it. With `anew`, keys that do not open are forgotten, and with them what they
/// signed.
pub(in crate::services::identity) async fn at_start(
    db: &Db,
    clock: &Clock,
    sealer: &Sealer,
    anew: bool,
) -> Result<Vec<SigningKeyRow>> {
    let mut tx = db.begin().await?;
    let mut keys = store::signing_key::list(&mut tx).await?;
    if anew {
        keys = forget_unopened(&mut tx, sealer, keys).await?;
    }
    let needs_new = keys.first().is_none_or(|newest| !seal::is_sealed(&newest.secret));
    for key in &mut keys {
        if let Some(sealed) = sealer.renew(&context(&key.kid), &key.secret)? {
            store::signing_key::reseal(&mut tx, &key.kid, &sealed).await?;
            key.secret = sealed;
        }
    }
    if needs_new {
        keys.insert(0, make(&mut tx, sealer, clock.now()).await?);
    }
    tx.commit().await?;
    Ok(keys)
}

/// Forgets the keys whose secret does not open; answers the others.
async fn forget_unopened(tx: &mut Tx, sealer: &Sealer, keys: Vec<SigningKeyRow>) -> Result<Vec<SigningKeyRow>> {
    let (opened, unopened): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| sealer.renew(&context(&key.kid), &key.secret).is_ok());
    for key in unopened {
        tracing::warn!(kid = key.kid, "forgetting a signing key that the key of secrets does not open");
        store::signing_key::forget(tx, &key.kid).await?;
    }
    Ok(opened)
}

/// What a key's secret is sealed for.
fn context(kid: &str) -> String {
    format!("signing_keys/{kid}")
}

/// Makes a key that is newer than every other, whatever the clock was once set to: the newest signs.
async fn make(tx: &mut Tx, sealer: &Sealer, now: Timestamp) -> Result<SigningKeyRow> {
    let newest = store::signing_key::list(&mut *tx).await?.into_iter().next();
    let mut key = token::new_key(newest.map_or(now, |newest| now.max(Timestamp(newest.created_at.0 + 1))))?;
    key.secret = sealer.seal(&context(&key.kid), key.secret.as_bytes())?;
    store::signing_key::insert(tx, &key).await?;
    Ok(key)
}

/// What signs with the newest of the keys.
pub(in crate::services::identity) fn signer(
    sealer: &Sealer,
    keys: &[SigningKeyRow],
    issuer: &token::Issuer,
    audience: &str,
) -> Result<token::Signer> {
    let newest = keys.first().ok_or_else(|| Error::internal("no signing key"))?;
    let secret = sealer.open_sealed(&context(&newest.kid), &newest.secret)?;
    let secret = Secret(String::from_utf8(secret).map_err(Error::internal)?);
    token::Signer::new(keys, &secret, issuer, audience)
}

/// Signs with a new key from now on. What older keys signed stays valid until it ends.
pub(in crate::services::identity) async fn rotate(
    identity: &Identity,
    admin: &Person,
    idempotency: Idempotency,
) -> Result<Outcome<SigningKeyView>> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    if let Some(replayed) = idempotency.replay(&mut tx, now).await? {
        return Ok(replayed);
    }
    let key = make(&mut tx, &identity.inner.sealer, now).await?;
    admin.caller.audit("signing_key.rotate", &key.kid).write(&mut tx, now).await?;
    let view = SigningKeyView { kid: key.kid };
    let created = idempotency.created(&mut tx, now, "/.well-known/jwks.json".into(), view).await?;
    tx.commit().await?;
    reload(identity).await?;
    Ok(created)
}

/// Replaces a key that is old, and forgets those that are of no use any more.
pub(in crate::services::identity) async fn keep_fresh(identity: &Identity) -> Result<()> {
    let (inner, now) = (&identity.inner, identity.inner.clock.now());
    let mut tx = inner.db.begin().await?;
    let keys = store::signing_key::list(&mut tx).await?;
    let life = inner.config.signing_key_days.saturating_mul(86_400);
    if keys.first().is_none_or(|newest| newest.created_at.plus_seconds(life) <= now) {
        make(&mut tx, &inner.sealer, now).await?;
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
    let signer = signer(&inner.sealer, &keys, &inner.issuer, &inner.config.audience)?;
    *inner.signer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(signer);
    Ok(())
}
