//! Keeps the row of the own host fresh.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::stores::{Known, Reaching};
use crate::db::DbError;
use crate::services::fleet::Fleet;
use crate::services::host::{Hosts, store};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// Runs until told to stop.
pub async fn keep_fresh(hosts: Hosts, fleet: Fleet, stop: CancellationToken) {
    let mut reaching = Reaching::new(hosts.clone(), hosts.own.id);
    // Which stores it reaches nobody has asked yet.
    let mut pause = if hosts.own.stores.is_empty() { LOOK } else { Duration::ZERO };
    while stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
        let known = reaching.look(|| fleet.here().vm.clone(), hosts.clock.now()).await;
        match refresh(&hosts, known).await {
            Ok(is_fenced) => reaching.fenced(is_fenced),
            Err(error) => tracing::warn!(%error, "the row of this host cannot be kept fresh; trying again"),
        }
        pause = LOOK;
    }
}

/// Writes how it is, and which stores it reaches if that is known anew; whether it is shut out of one.
async fn refresh(hosts: &Hosts, stores: Option<Known>) -> Result<bool, DbError> {
    let gpus = hosts.gpus().await;
    let mut tx = hosts.db.begin().await?;
    let known = store::host::find(&mut tx, hosts.own.id).await?;
    let mut row = hosts.row(known.as_ref(), gpus);
    if let Some(stores) = stores {
        stores.note(&mut row);
    }
    store::host::put(&mut tx, known.as_ref(), &row).await?;
    tx.commit().await?;
    Ok(!row.fences.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use async_trait::async_trait;
    use berth_domain::host::gpu::Gpu;
    use berth_domain::host::{Capacity, State};
    use berth_domain::ids::HostId;
    use berth_host::clock::Clock;
    use berth_host::lost::Lost;
    use uuid::Uuid;

    use super::*;
    use crate::config::{Config, DiskStores};
    use crate::db::Db;
    use crate::services::host::store::host::HostRow;
    use crate::services::host::{Own, Probe};

    struct Asked;

    #[async_trait]
    impl Probe for Asked {
        fn capacity(&self) -> Capacity {
            Capacity { cpus: 1, memory_mb: 1 }
        }

        async fn gpus(&self) -> berth_host::Result<Vec<Gpu>> {
            Ok(Vec::new())
        }

        fn boot(&self) -> String {
            "one".into()
        }
    }

    async fn start(db: &Db, id: HostId) -> Hosts {
        let folder = |name: &str| (name == "BERTH_DATA_DIR").then(|| "/nowhere".to_owned());
        let overcommit = Config::from_sources(None, folder).unwrap().overcommit();
        let own = Own {
            id,
            name: "alpha".into(),
            addresses: Vec::new(),
            replica: false,
            regions: Vec::new(),
            overcommit,
            stores: DiskStores::default(),
            lost: Lost::new(Path::new("/nowhere"), 1),
        };
        Hosts::start(db.clone(), Clock::default(), own, Box::new(Asked)).await.unwrap()
    }

    #[tokio::test]
    async fn one_that_is_lost_is_there_again_only_with_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let [own, next] = [(); 2].map(|()| HostId(Uuid::now_v7()));
        let hosts = start(&db, own).await;
        start(&db, next).await;
        let state = async || store::host::find(&db, own).await.unwrap().map(|host| host.state);
        assert_eq!(state().await, Some(State::Lost));
        refresh(&hosts, None).await.unwrap();
        assert_eq!(state().await, Some(State::Lost), "its service goes on for a while");
        start(&db, own).await;
        assert_eq!(state().await, Some(State::Ready));
    }

    #[tokio::test]
    async fn what_an_operator_said_of_one_outlives_its_loss() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let [own, next] = [(); 2].map(|()| HostId(Uuid::now_v7()));
        let hosts = start(&db, own).await;
        let mut tx = db.begin().await.unwrap();
        let known = store::host::find(&mut tx, own).await.unwrap().unwrap();
        let said = HostRow { cordoned: true, given_name: Some("north 1".into()), ..known.clone() };
        store::host::put(&mut tx, Some(&known), &said).await.unwrap();
        tx.commit().await.unwrap();
        let seen = async || {
            let host = store::host::find(&db, own).await.unwrap().unwrap();
            (host.name().to_owned(), host.state())
        };
        refresh(&hosts, None).await.unwrap();
        assert_eq!(seen().await, ("north 1".into(), State::Cordoned));
        start(&db, next).await;
        assert_eq!(seen().await, ("north 1".into(), State::Lost));
        start(&db, own).await;
        assert_eq!(seen().await, ("north 1".into(), State::Cordoned));
    }
}
