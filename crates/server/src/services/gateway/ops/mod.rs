//! One function for each verb; each owns its transaction.

pub mod model;
pub mod voice;

use berth_domain::{Error, Result, Timestamp};

use super::store::spec::{SpecRow, Specs};
use crate::db::Tx;
use crate::db::audit::Audit;
use crate::http::auth::Person;

/// Writes the audit record of what an administrator does with a model or a voice.
async fn record(tx: &mut Tx, admin: &Person, specs: Specs, verb: &str, row: &SpecRow, now: Timestamp) -> Result<()> {
    let action = format!("{}.{verb}", specs.word);
    let audit = Audit { data: row.spec.clone(), ..admin.caller.audit(&action, &row.id) };
    Ok(audit.write(tx, now).await?)
}

/// Commits a change and has the gateway take it over, in a task of its own: the caller may leave in between.
async fn commit(tx: Tx, take_over: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    let done = tokio::spawn(async move {
        tx.commit().await?;
        take_over.await
    });
    done.await.map_err(Error::internal)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use berth_host::clock::Clock;
    use serde_json::json;

    use crate::config::Config;
    use crate::db::Db;
    use crate::services::gateway::Gateway;
    use crate::services::gateway::store::spec::VOICES;

    use super::*;

    #[tokio::test]
    async fn what_is_true_is_taken_over_though_who_asked_for_it_leaves() {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| (name == "BERTH_DATA_DIR").then(|| dir.path().to_string_lossy().into_owned());
        let config = Config::from_sources(None, folder).unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let gateway = Gateway::start(db.clone(), Clock::default(), &config, 100).await.unwrap();
        let (created_at, updated_at) = Default::default();
        let spec = json!({"id": "robin", "espeak": "de"});
        let mut tx = db.begin().await.unwrap();
        VOICES.put(&mut tx, &SpecRow { id: "robin".into(), spec, created_at, updated_at }).await.unwrap();
        let others = gateway.inner.reloading.lock().await;
        let mut asks = Box::pin(commit(tx, gateway.clone().reload_voices()));
        while VOICES.find(&db, "robin").await.unwrap().is_none() {
            assert!(futures::poll!(&mut asks).is_pending());
        }
        drop(asks);
        drop(others);
        let spoken = async {
            while gateway.voice("robin").is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), spoken).await.unwrap();
    }
}
