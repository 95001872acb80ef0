//! The audit log taken out of the platform, and cleared of what is old.

use berth_domain::identity::audit::Filter;
use berth_domain::{Result, Timestamp};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::http::auth::{Grant, Person};
use crate::services::identity::store::audit::{AuditRow, Old, Place};
use crate::services::identity::wire::audit::told;
use crate::services::identity::{Identity, standing, store};

/// Records of one step of an export.
const STEP: i64 = 500;

/// Records that an administrator takes the log, or what of it a filter lets through.
pub(in crate::services::identity) async fn export(identity: &Identity, admin: &Person, filter: &Filter) -> Result<()> {
    let now = identity.inner.clock.now();
    let mut tx = identity.inner.db.begin_as(admin).await?;
    let data = json!({"filter": told(filter)});
    admin.caller.audit("audit.export", "audit").with(data).write(&mut tx, now).await?;
    Ok(tx.commit().await?)
}

/// The next records of an export, newest first, and where it goes on; refused to who is no administrator any more.
pub(in crate::services::identity) async fn step(
    identity: &Identity,
    admin: &Person,
    filter: &Filter,
    after: Option<Place>,
) -> Result<(Vec<AuditRow>, Option<Place>)> {
    let db = &identity.inner.db;
    standing::require(identity, db, &admin.caller.who, Grant::Administration).await?;
    let rows = store::audit::after(db, filter, after, STEP).await?;
    let whole = i64::try_from(rows.len()).is_ok_and(|count| count == STEP);
    let next = rows.last().filter(|_| whole).map(|row| Place { at: row.created_at, id: row.id.clone() });
    Ok((rows, next))
}

/// Removes records older than the configuration keeps them, until told to stop.
pub(in crate::services::identity) async fn forget_old(
    identity: &Identity,
    now: Timestamp,
    stop: &CancellationToken,
) -> Result<()> {
    let days = identity.inner.audit.retention_days;
    if days == 0 {
        return Ok(());
    }
    let before = now.plus_seconds(-days.saturating_mul(86_400));
    Ok(store::audit::forget(&identity.inner.db, Old::Before(before), stop).await?)
}

/// Removes the oldest records of refusals beyond as many as are kept, until told to stop.
pub(in crate::services::identity) async fn forget_refusals(
    identity: &Identity,
    stop: &CancellationToken,
) -> Result<()> {
    let inner = &identity.inner;
    let Some(until) = store::audit::refusal_at(&inner.db, inner.audit.refusals).await? else {
        return Ok(());
    };
    Ok(store::audit::forget(&inner.db, Old::Refusals(until), stop).await?)
}
