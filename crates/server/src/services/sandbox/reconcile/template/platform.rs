//! Templates that the platform brings along.

use std::time::Duration;

use berth_domain::ids::TemplateId;
use berth_domain::sandbox::TemplateStatus;
use berth_domain::time::Timestamp;
use berth_domain::{Error, Result};
use berth_host::sandbox::PlatformTemplate;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::services::sandbox::store::template::TemplateRow;
use crate::services::sandbox::{Sandboxes, ops, store};

/// What sandboxes begin with that name nothing else. The others are made once it is there, or cannot be.
const FIRST: &str = "base";
/// How long one that failed stays so, in seconds. Then it is made anew: no host is full for ever, and nobody else makes it.
const FAILED_SECONDS: i64 = 300;
/// Between two looks at them.
const LOOK: Duration = Duration::from_secs(2);

/// Adopts them until told to stop: they may be built beside a running service.
pub async fn keep_adopted(sandboxes: Sandboxes, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Err(error) = adopt(&sandboxes).await {
            tracing::debug!(%error, "the platform's templates cannot be looked at; trying again");
        }
    }
}

/// Whether a template's disk lies on the service's own host, or is to: another replica's may be lost with what it has.
async fn is_here(sandboxes: &Sandboxes, template: &TemplateRow) -> Result<bool> {
    let Some(layer) = template.base_layer else { return Ok(true) };
    Ok(store::layer::host(sandboxes.db(), layer).await?.is_none_or(|host| host == sandboxes.host()))
}

/// Whether it is known as it is found, and need not be made anew.
fn is_current(known: &TemplateRow, found: &PlatformTemplate, now: Timestamp) -> bool {
    let has_failed = known.status == TemplateStatus::Failed && known.status_since.plus_seconds(FAILED_SECONDS) <= now;
    known.version.as_ref() == Some(&found.version) && !has_failed
}

/// Whether the first of them is being made: a service that begins is to have it soon.
async fn first_is_made(sandboxes: &Sandboxes) -> Result<bool> {
    let first = store::template::of_platform(sandboxes.db(), FIRST).await?;
    Ok(first.is_some_and(|row| matches!(row.status, TemplateStatus::Pending | TemplateStatus::Building)))
}

/// They become rows, and those whose image changed are made anew.
pub(super) async fn adopt(sandboxes: &Sandboxes) -> Result<()> {
    let now = sandboxes.clock().now();
    let mut all = sandboxes.engine().templates().await.map_err(Error::unavailable)?;
    all.sort_by_key(|template| template.name != FIRST);
    for found in all {
        let known = store::template::of_platform(sandboxes.db(), &found.name).await?;
        if let Some(known) = known
            && is_current(&known, &found, now)
            && is_here(sandboxes, &known).await?
        {
            continue;
        }
        if found.name != FIRST && first_is_made(sandboxes).await? {
            return Ok(());
        }
        let mut tx = sandboxes.db().begin().await?;
        if let Some(before) = store::template::of_platform(&mut tx, &found.name).await? {
            let fresh = ops::template::of_platform(&found, before.id, now);
            let after = TemplateRow { created_at: before.created_at, ..fresh };
            store::template::update(&mut tx, &before, &after, now).await?;
        } else {
            let id = TemplateId(Uuid::now_v7());
            store::template::insert(&mut tx, &ops::template::of_platform(&found, id, now)).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}
