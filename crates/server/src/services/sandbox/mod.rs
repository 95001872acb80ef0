//! The sandbox service: small machines for agents, made, copied and thrown away in a blink.
//!
//! The life of a sandbox is drawn in [`berth_domain::sandbox`]; what the worker does next is decided in
//! [`berth_domain::sandbox::plan`]. Invariants of this house:
//!
//! - A request writes a wish and returns; only [`reconcile`] touches the host.
//! - A disk is a chain of layers. A layer or memory goes when no row names it any more, decided over rows
//!   ([`store`]), the file before the row.
//! - What a checkpoint leads to is written before the checkpoint, so that one that was interrupted finds itself.

pub mod api;
mod coming_back;
mod metrics;
pub mod ops;
pub mod reconcile;
pub mod runtime;
mod service;
pub mod store;
mod travels;
mod under_way;
mod warm;
pub mod wire;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::identity::KeyScope;
use berth_domain::ids::{OrgId, ProjectId, SandboxId};
use berth_domain::resource_usage::Kind;
use berth_domain::{Result, Timestamp};
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use self::reconcile::shared::{ExpiredUpload, SharedLife};
use self::store::layer::LayerRow;
use self::store::memory::MemoryRow;
use super::depot::Depot;
use super::fleet::Fleet;
use super::{Holder, Stops, Takes};
use crate::config::Config;
use crate::db::resource_usage::Use;
use crate::db::tenant::Whose;
use crate::db::{Db, DbError, Tx, usage};
use crate::http::auth::{AnyOf, Right};
use crate::work::Poker;
use crate::work::lifecycle::{Life, Lifecycle};
use coming_back::ComingBack;
use service::Inner;
use under_way::Builds;
use warm::WarmPool;

pub use service::Sandboxes;

/// The service's place in the store of backups, below the database's id.
const ARCHIVES: &str = "sandboxes";
/// Layers and memories that are removed at the same time.
const REMOVERS: usize = 4;
/// Those of them that may be removed from the store of backups at the same time: it may be away.
const CLEARERS: usize = 2;
/// Between two looks at sandboxes that are being put away.
const PAUSING_LOOK: Duration = Duration::from_millis(200);
/// Templates that are worked on at the same time.
const KEEPERS: usize = 8;

impl Sandboxes {
    /// The service over a database, of which this is the id, and the hosts that machines can be on.
    pub fn new((db, database): (Db, &str), clock: Clock, config: &Config, fleet: Fleet) -> Self {
        let here = WarmPool::new(fleet.here().sandbox.most_warm());
        let warm = Mutex::new([(fleet.own(), Arc::new(here))].into());
        let (builds, lost) = (Builds::new(config.sandbox.builders), Lost::new(&config.data_dir, config.lost.days));
        let (began_at, overcommit, catalog) = (clock.now(), config.overcommit(), config.catalog.clone());
        let depot = Depot::inside(&config.backups, database, ARCHIVES);
        let config = config.sandbox.clone();
        let silent = Mutex::default();
        let travels = travels::Travels::default();
        let carried = under_way::Carried::default();
        let inner = Inner {
            db,
            clock,
            fleet,
            config,
            catalog,
            overcommit,
            builds,
            carried,
            warm,
            lost,
            began_at,
            silent,
            travels,
            depot,
            clearing: Semaphore::new(CLEARERS),
            coming_back: ComingBack::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// What has to be so before the first request is answered.
    pub async fn prepare(&self) -> Result<()> {
        let mut tx = self.db().begin().await?;
        store::layer::bring_home(&mut tx, self.host()).await?;
        store::memory::bring_home(&mut tx, self.host()).await?;
        tx.commit().await?;
        reconcile::archive::fetch::look_back(self).await?;
        reconcile::warm::prepare(self).await?;
        reconcile::template::prepare(self).await
    }

    /// Its workers, until told to stop. Once `taken_over`, everything is another service's.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken, taken_over: &CancellationToken) {
        let workers = self.inner.config.workers;
        let poke = self.drive(tasks, stop, reconcile::sandbox::SandboxLife::new(self.clone()), workers);
        self.drive(tasks, stop, reconcile::template::TemplateLife::new(self.clone(), stop.clone()), KEEPERS);
        self.drive(tasks, stop, SharedLife::<LayerRow>::new(self.clone()), REMOVERS);
        let copies = reconcile::layer_copy::LayerCopyLife::new(self.clone());
        self.drive(tasks, stop, copies, reconcile::layer_copy::MOST);
        self.drive(tasks, stop, SharedLife::<MemoryRow>::new(self.clone()), REMOVERS);
        self.drive(tasks, stop, SharedLife::<ExpiredUpload>::new(self.clone()), REMOVERS);
        let (engine, ending) = (self.inner.fleet.here().sandbox.clone(), stop.clone());
        tasks.spawn(async move { engine.tend(ending).await });
        tasks.spawn(reconcile::template::keep_adopted(self.clone(), stop.clone()));
        tasks.spawn(reconcile::warm::watch(self.clone(), stop.clone(), taken_over.clone()));
        tasks.spawn(reconcile::host::watch(self.clone(), poke, stop.clone()));
        tasks.spawn(reconcile::guest_travel::watch(self.clone(), stop.clone()));
        tasks.spawn(reconcile::drain::watch(self.clone(), stop.clone()));
        tasks.spawn(reconcile::durable::watch(self.clone(), stop.clone()));
        tasks.spawn(reconcile::archive::search(self.clone(), stop.clone()));
        tasks.spawn(reconcile::archive::fetch::bring_back(self.clone(), stop.clone()));
        let (rounds, to_write) = metrics::channel();
        tasks.spawn(metrics::sample(self.clone(), rounds, stop.clone()));
        tasks.spawn(metrics::write(self.clone(), to_write, stop.clone()));
    }

    fn drive<L: Life>(
        &self,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
        life: L,
        workers: usize,
    ) -> Poker<L::Key> {
        Lifecycle::new(life, self.inner.clock.clone(), stop.clone()).spawn(tasks, &self.inner.db, workers)
    }

    /// Waits until no machine of the service's own host is being put away any more; whether that was so in time.
    pub async fn all_paused(&self, patience: Duration) -> bool {
        let paused = async {
            // Who cannot look does not know, and looks again.
            while store::sandbox::pausing_on(self.db(), self.host()).await.map_or(true, |pausing| pausing > 0) {
                tokio::time::sleep(PAUSING_LOOK).await;
            }
        };
        tokio::time::timeout(patience, paused).await.is_ok()
    }

    /// Sandboxes that are not gone, with their projects: this one, or all.
    pub async fn living(&self, only: Option<SandboxId>) -> Result<Vec<(SandboxId, ProjectId)>> {
        let living = store::standing::living(self.db(), only).await?;
        Ok(living.into_iter().map(|one| (one.id, one.project)).collect())
    }

    /// Metrics in Prometheus' text format.
    pub async fn prometheus(&self) -> std::result::Result<String, DbError> {
        let counts = store::sandbox::by_phase(self.db()).await?;
        let mut text = String::from("# HELP berth_sandboxes Sandboxes by phase.\n# TYPE berth_sandboxes gauge\n");
        for (phase, count) in counts {
            text.push_str(&format!("berth_sandboxes{{phase=\"{phase}\"}} {count}\n"));
        }
        let unlimited: u64 = self.fleet().all().iter().map(|(_, engines)| engines.sandbox.unlimited()).sum();
        text.push_str(&format!(
            "# HELP berth_sandboxes_unlimited_total Machines that run without the limits that their host could set.\n\
             # TYPE berth_sandboxes_unlimited_total counter\nberth_sandboxes_unlimited_total {unlimited}\n"
        ));
        for (table, what) in [("sandboxes", "Sandboxes"), ("snapshots", "Snapshots")] {
            text.push_str(&format!(
                "# HELP berth_{table}_durable {what} that are to outlive their host, by whether there is a second copy.\n\
                 # TYPE berth_{table}_durable gauge\n"
            ));
            let (copied, lacking) = store::durable::counts(self.db(), table == "snapshots").await?;
            for (is_copied, count) in [(true, copied), (false, lacking)] {
                text.push_str(&format!("berth_{table}_durable{{copied=\"{is_copied}\"}} {count}\n"));
            }
        }
        text.push_str(&self.travels().lines());
        Ok(text)
    }
}

/// A key of scope `sandbox` is for sandboxes, their templates and snapshots, and for what runs inside.
impl Right for Sandboxes {
    const SCOPES: AnyOf = AnyOf::of(&[KeyScope::Sandbox]);
}

#[async_trait]
impl Holder for Sandboxes {
    async fn holds(&self, tx: &mut Tx, project: ProjectId) -> Result<bool> {
        let sandboxes = usage::held(&mut *tx, Whose::Project(project)).await?.sandboxes;
        let snapshots = store::snapshot::count(&mut *tx, project).await?;
        Ok(sandboxes + snapshots + store::template::count(tx, project).await? > 0)
    }
}

#[async_trait]
impl Takes for Sandboxes {
    async fn taken(&self, tx: &mut Tx) -> Result<Vec<Use>> {
        let mut taken = store::sandbox::taken(&mut *tx).await?;
        taken.extend(store::snapshot::taken(tx).await?);
        Ok(taken)
    }

    async fn ended_with_host(&self, tx: &mut Tx, seen: Timestamp, now: Timestamp) -> Result<Vec<(Kind, Uuid)>> {
        let boot = self.engine().host_boot();
        let ended = store::sandbox::of_another_boot(&mut *tx, self.host(), &boot).await?;
        store::sandbox::take_out(tx, (self.host(), &boot), seen, now).await?;
        Ok(ended.into_iter().map(|id| (Kind::Sandbox, id.0)).collect())
    }
}

#[async_trait]
impl Stops for Sandboxes {
    async fn stop(&self, org: Option<OrgId>, reason: &str) -> Result<usize> {
        ops::sandbox::pause_all(self, org, reason).await
    }
}
