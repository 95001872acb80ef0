//! Keeps the row of the own host fresh.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::db::DbError;
use crate::services::host::{Hosts, store};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// Runs until told to stop.
pub async fn keep_fresh(hosts: Hosts, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Err(error) = refresh(&hosts).await {
            tracing::warn!(%error, "the row of this host cannot be kept fresh; trying again");
        }
    }
}

async fn refresh(hosts: &Hosts) -> Result<(), DbError> {
    let mut tx = hosts.db.begin().await?;
    let known = store::host::find(&mut tx, hosts.own.id).await?;
    let row = hosts.row(known.as_ref()).await;
    store::host::put(&mut tx, known.as_ref(), &row).await?;
    tx.commit().await
}
