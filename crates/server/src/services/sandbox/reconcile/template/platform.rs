//! Templates that the platform brings along.

use std::time::Duration;

use berth_domain::ids::TemplateId;
use berth_domain::{Error, Result};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::services::sandbox::store::template::TemplateRow;
use crate::services::sandbox::{Sandboxes, ops, store};

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

/// They become rows, and those whose image changed are made anew.
pub(super) async fn adopt(sandboxes: &Sandboxes) -> Result<()> {
    let now = sandboxes.clock().now();
    for found in sandboxes.engine().templates().await.map_err(Error::unavailable)? {
        let known = store::template::of_platform(sandboxes.db(), &found.name).await?;
        if let Some(known) = known
            && known.version.as_ref() == Some(&found.version)
            && is_here(sandboxes, &known).await?
        {
            continue;
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
