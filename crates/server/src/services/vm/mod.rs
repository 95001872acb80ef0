//! The VM service: virtual machines, root disk volumes, data disks and images of a project.
//!
//! The life of a VM is drawn in [`berth_domain::vm`]; what the worker does next is decided in
//! [`berth_domain::vm::plan`]. Invariants of this house:
//!
//! - A request writes a wish and returns; only [`reconcile`] touches the host.
//! - Everything on the host is named after its row's id, and the row is older than the thing.
//! - Sums over rows are the only counters.
//! - The answer of a request never waits for a machine.

pub mod api;
mod carrying;
mod copies;
mod lacking;
mod metrics;
mod nameserver;
pub mod ops;
pub mod reconcile;
mod sampler;
mod service;
mod slots;
pub mod store;
mod told;
mod travels;
mod views;
mod ways;
pub mod wire;
mod zone;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::ids::{OrgId, ProjectId};
use berth_domain::resource_usage::Kind;
use berth_domain::vm::slots::CONVERSIONS;
use berth_domain::{Result, Timestamp};
use berth_host::clock::Clock;
use berth_host::lost::Lost;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

use super::depot::Depot;
use super::fleet::Fleet;
use super::placement::Estimates;
use super::{Holder, Stops, Takes};
use crate::config::Config;
use crate::db::resource_usage::Use;
use crate::db::{Db, DbError, Tx};
use crate::http::auth::{AnyOf, Right};
use crate::work::Poker;
use crate::work::lifecycle::{Life, Lifecycle};
use carrying::Carrying;
use service::Inner;
use slots::Slots;

pub use lacking::lacking_stores;
pub use service::Vms;

/// Between two looks at machines that are stopping.
const STOPPING_LOOK: Duration = Duration::from_millis(200);

impl Vms {
    /// The service over a database, of which this is the id, and the hosts that machines can be on.
    pub fn new((db, database): (Db, &str), clock: Clock, config: &Config, fleet: Fleet) -> Self {
        let inner = Inner {
            depot: Depot::of(&config.backups, database),
            lost_days: config.lost.days,
            storing: Semaphore::new(config.backups.at_once),
            restoring: Arc::new(Slots::new(config.backups.at_once)),
            began_at: clock.now(),
            db,
            clock,
            fleet,
            catalog: config.catalog.clone(),
            stores: config.disk_stores.clone(),
            config: config.vm.clone(),
            disk_gb_hour: config.prices.disk_gb_hour,
            overcommit: config.overcommit(),
            names: config.network.answered(),
            next_address: AtomicU32::new(config.vm.first_address.to_bits()),
            metrics: metrics::Metrics::default(),
            backup_failures: AtomicU64::new(0),
            travels: travels::Travels::default(),
            views: views::Views::default(),
            ways: ways::Ways::default(),
            copies: copies::Copies::default(),
            estimates: Estimates::default(),
            exporting: Carrying::new("exports"),
            importing: Carrying::new("imports"),
            converting: Arc::new(Slots::new(CONVERSIONS)),
            lost: Lost::new(&config.data_dir, config.lost.days),
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
        store::disk::bring_home(&mut tx, self.host()).await?;
        store::disk_snapshot::bring_home(&mut tx, self.host()).await?;
        store::project_image::bring_home(&mut tx, self.host()).await?;
        tx.commit().await?;
        for lacking in lacking_stores(self.db(), &self.inner.stores).await? {
            tracing::warn!("{lacking}");
        }
        reconcile::brought_disk::prepare(self).await?;
        reconcile::image::prepare(self).await
    }

    /// Its workers, until told to stop. They first look at every machine that should exist.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let life = reconcile::vm::VmLife::new(self.clone(), stop.clone());
        let poke = self.drive_with(tasks, stop, life, reconcile::drain::IN_ALL);
        self.drive_with(tasks, stop, reconcile::disk::DiskLife::new(self.clone()), ways::WAYS);
        self.drive(tasks, stop, reconcile::disk_snapshot::DiskSnapshotLife::new(self.clone()));
        self.drive(tasks, stop, reconcile::backup::BackupLife::new(self.clone()));
        self.drive_brought(tasks, stop);
        self.drive(tasks, stop, reconcile::backup_schedule::BackupScheduleLife::new(self.clone()));
        tasks.spawn(reconcile::backup::search(self.clone(), stop.clone()));
        self.drive(tasks, stop, reconcile::project_image::ProjectImageLife::new(self.clone()));
        let poke_image = self.drive(tasks, stop, reconcile::image::ImageLife::new(self.clone()));
        let (engine, ending) = (self.inner.fleet.here().vm.clone(), stop.clone());
        tasks.spawn(async move { engine.tend(ending).await });
        tasks.spawn(reconcile::host::watch(self.clone(), poke, stop.clone()));
        tasks.spawn(reconcile::image::watch(self.clone(), poke_image, stop.clone()));
        tasks.spawn(reconcile::image_travel::watch(self.clone(), stop.clone()));
        tasks.spawn(reconcile::drain::watch(self.clone(), stop.clone()));
        tasks.spawn(reconcile::fence::watch(self.clone(), stop.clone()));
        tasks.spawn(sampler::sample(self.clone(), stop.clone()));
        if let Some(place) = self.inner.names.clone() {
            tasks.spawn(nameserver::serve(self.clone(), place, stop.clone()));
        }
    }

    fn drive<L: Life>(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken, life: L) -> Poker<L::Key> {
        self.drive_with(tasks, stop, life, 0)
    }

    /// The same, with workers for so many that have a turn for hours: those keep none from the others, which take places, end
    /// and go meanwhile.
    fn drive_with<L: Life>(
        &self,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
        life: L,
        turns: usize,
    ) -> Poker<L::Key> {
        let lives = Lifecycle::new(life, self.inner.clock.clone(), stop.clone());
        lives.spawn(tasks, &self.inner.db, self.inner.config.workers + turns)
    }

    fn drive_brought(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let life = reconcile::brought_disk::BroughtDiskLife::new(self.clone());
        self.drive_with(tasks, stop, life, self.restoring().count() + self.converting().count());
    }

    /// Waits until no machine of the service's own host is stopping or being suspended any more; whether that was so in time.
    pub async fn all_stopped(&self, patience: Duration) -> bool {
        let stopped = async {
            // Who cannot look does not know, and looks again.
            while store::vm::stopping_on(self.db(), self.host()).await.map_or(true, |stopping| stopping > 0) {
                tokio::time::sleep(STOPPING_LOOK).await;
            }
        };
        tokio::time::timeout(patience, stopped).await.is_ok()
    }

    /// Metrics in Prometheus' text format.
    pub async fn prometheus(&self) -> std::result::Result<String, DbError> {
        let counts = store::vm::by_status(self.db()).await?;
        let mut text = String::from("# HELP berth_vms VMs by status.\n# TYPE berth_vms gauge\n");
        for (status, count) in counts {
            text.push_str(&format!("berth_vms{{status=\"{status}\"}} {count}\n"));
        }
        text.push_str("# HELP berth_backups Backups of disks by status.\n# TYPE berth_backups gauge\n");
        for (status, count) in store::backup::by_status(self.db()).await? {
            text.push_str(&format!("berth_backups{{status=\"{status}\"}} {count}\n"));
        }
        text.push_str(
            "# HELP berth_backup_schedule_last_made_seconds When the last backup that a schedule which is on keeps was ready, in Unix time; 0 for none.\n\
             # TYPE berth_backup_schedule_last_made_seconds gauge\n",
        );
        for (schedule, at) in store::backup_schedule::last_made(self.db()).await? {
            let seconds = at.0 / Timestamp::SECOND;
            text.push_str(&format!("berth_backup_schedule_last_made_seconds{{schedule=\"{schedule}\"}} {seconds}\n"));
        }
        let failures = self.inner.backup_failures.load(Ordering::Relaxed);
        text.push_str(&format!(
            "# HELP berth_backup_failures_total Backups that failed since the service began.\n\
             # TYPE berth_backup_failures_total counter\nberth_backup_failures_total {failures}\n"
        ));
        text.push_str(&self.travels().lines());
        Ok(text)
    }
}

/// A key of scope `vm` is for machines, disks and their consoles.
impl Right for Vms {
    const SCOPES: AnyOf = AnyOf::of_vms();
}

#[async_trait]
impl Holder for Vms {
    async fn holds(&self, tx: &mut Tx, project: ProjectId) -> Result<bool> {
        let has_disks = store::vm::any(&mut *tx, project).await? || store::disk::any(&mut *tx, project).await?;
        let has_copies =
            store::disk_snapshot::any(&mut *tx, project).await? || store::backup::any(&mut *tx, project).await?;
        Ok(has_disks
            || has_copies
            || store::backup_schedule::any(&mut *tx, project).await?
            || store::brought_disk::any(&mut *tx, project).await?
            || store::project_image::any(tx, project).await?)
    }
}

#[async_trait]
impl Takes for Vms {
    async fn taken(&self, tx: &mut Tx) -> Result<Vec<Use>> {
        let mut taken = store::vm::taken(&mut *tx).await?;
        taken.extend(store::disk::taken(&mut *tx).await?);
        taken.extend(store::disk_snapshot::taken(&mut *tx).await?);
        taken.extend(store::backup::taken(&mut *tx).await?);
        taken.extend(store::project_image::taken(tx).await?);
        Ok(taken)
    }

    async fn ended_with_host(&self, tx: &mut Tx, _: Timestamp, _: Timestamp) -> Result<Vec<(Kind, Uuid)>> {
        let ended = store::vm::of_another_boot(tx, self.host(), &self.engine().host_boot()).await?;
        Ok(ended.into_iter().map(|id| (Kind::Vm, id.0)).collect())
    }
}

#[async_trait]
impl Stops for Vms {
    async fn stop(&self, org: Option<OrgId>, reason: &str) -> Result<usize> {
        ops::vm::stop_all(self, org, reason).await
    }
}
