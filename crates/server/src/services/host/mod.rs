//! The host service: what machines run on.
//!
//! A host is a row. The service writes the row of its own host before anything else looks at machines, and keeps it fresh:
//! which boot it is in, what it has to give, when it was last seen. The row's id is the data folder's, so that it stays the
//! same whatever the host is called and wherever the folder lies. What administrators of the platform say of it stays, whatever
//! its service finds: a name, labels, that it takes no new machines (`cordon`), and
//! that VMs leave it (`drain`).
//!
//! A database has one data folder ([`crate::db::keeper`]): whichever host that was on before is lost, and its machines are
//! this one's. Of replicas each has a host; the active one asks those of the others as it asks hosts that joined.
//!
//! Other hosts join ([`Enrolment`]): an administrator names one and gets a token, that host exchanges the token for a
//! certificate of the platform's [`authority`], and from then on the service asks it over `berth_host::link`. Such a host
//! knows no database and asks nothing. The service keeps the rows of those fresh, too, renews their certificates, and says
//! of one that does not answer that it is lost.

mod api;
mod authority;
mod enrolment;
mod metrics;
mod ops;
mod reconcile;
mod service;
mod store;
mod wire;

use std::collections::BTreeMap;

use berth_domain::Result;
use berth_domain::host::gpu::Gpu;
use berth_domain::host::{Service, State};
use berth_domain::ids::HostId;
use berth_host::clock::Clock;
use berth_host::link::HostName;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::fleet::Fleet;
use crate::db::{Db, DbError, Tx, machine};

pub use authority::find as authority;
pub use enrolment::Enrolment;
pub use service::{Hosts, Own, Probe};
pub use store::host::{HostRow, all, all_removed, among, fenced, find, joined, set_fence};

/// What the host of a replica is called in its certificates. Nobody joins as it: it makes them itself.
pub const fn name_of_replica(id: HostId) -> HostName {
    HostName { id, enrolment: 1 }
}

impl Hosts {
    /// Writes the row of the service's own host, and says of every other one that it is lost, but for those that are asked
    /// over the network.
    pub async fn start(db: Db, clock: Clock, own: Own, probe: Box<dyn Probe>) -> Result<Self> {
        let hosts = Self { db, clock, own: own.into(), probe: probe.into() };
        let gpus = hosts.gpus().await;
        let (now, mut tx) = (hosts.clock.now(), hosts.db.begin().await?);
        let row = hosts.enlist(&mut tx, gpus, Service::Active).await?;
        store::host::lose_others(&mut tx, row.id).await?;
        machine::bring_home(&mut tx, row.id).await?;
        machine::give_slots(&mut tx, row.id).await?;
        tx.commit().await?;
        tracing::debug!(host = %row.id, name = row.name, %now, "this host has its row");
        Ok(hosts)
    }

    /// Writes the row of the host of a replica that stands by.
    pub async fn stand_by(db: &Db, clock: &Clock, own: Own, probe: Box<dyn Probe>) -> Result<()> {
        let hosts = Self { db: db.clone(), clock: clock.clone(), own: own.into(), probe: probe.into() };
        let mut tx = hosts.db.begin().await?;
        hosts.enlist(&mut tx, None, Service::Standby).await?;
        Ok(tx.commit().await?)
    }

    async fn enlist(&self, tx: &mut Tx, gpus: Option<Vec<Gpu>>, service: Service) -> Result<HostRow> {
        // One that was removed, and whose service starts again, is there.
        store::host::bring_back(&mut *tx, self.own.id).await?;
        let known = store::host::find(&mut *tx, self.own.id).await?;
        let state = known.as_ref().map_or(State::Lost, |known| known.state);
        let state = match (service, state) {
            // One that was given up and is there again takes machines again.
            (Service::Active, State::Lost) => State::Ready,
            // That it answers says the active service, once it has asked it.
            (_, state) => state,
        };
        let row = HostRow { state, service: Some(service), ..self.row(known.as_ref(), gpus) };
        store::host::put(tx, known.as_ref(), &row).await?;
        Ok(row)
    }

    /// The own host.
    pub fn own(&self) -> HostId {
        self.own.id
    }

    /// The GPUs that it has, if it says.
    async fn gpus(&self) -> Option<Vec<Gpu>> {
        let found = self.probe.gpus().await;
        found.inspect_err(|error| tracing::warn!(%error, "the host does not say which GPUs it has")).ok()
    }

    /// The own host as it is now; what was said of it stays as it was said, and GPUs too where it does not say.
    fn row(&self, known: Option<&HostRow>, gpus: Option<Vec<Gpu>>) -> HostRow {
        let (own, now) = (&self.own, self.clock.now());
        HostRow {
            id: own.id,
            name: own.name.clone(),
            given_name: known.and_then(|known| known.given_name.clone()),
            addresses: own.addresses.clone(),
            regions: own.regions.clone(),
            capacity: self.probe.capacity(),
            overcommit: BTreeMap::from([
                ("vm".to_owned(), own.overcommit.vm),
                ("sandbox".to_owned(), own.overcommit.sandbox),
            ]),
            gpus: gpus.or_else(|| known.map(|known| known.gpus.clone())).unwrap_or_default(),
            boot: Some(self.probe.boot()),
            labels: known.map(|known| known.labels.clone()).unwrap_or_default(),
            state: known.map_or(State::Ready, |known| known.state),
            cordoned: known.is_some_and(|known| known.cordoned),
            drain: known.and_then(|known| known.drain),
            last_seen: now,
            created_at: known.map_or(now, |known| known.created_at),
            joined: own.replica,
            service: Some(Service::Active),
            enrolment: if own.replica { name_of_replica(own.id).enrolment } else { 0 },
            token_hash: None,
            token_until: None,
            certificate_until: None,
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            trouble: None,
            stores: known.map(|known| known.stores.clone()).unwrap_or_default(),
            store_addresses: known.map(|known| known.store_addresses.clone()).unwrap_or_default(),
            fences: known.map(|known| known.fences.clone()).unwrap_or_default(),
        }
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// Its workers, until told to stop.
    pub fn spawn_workers(&self, fleet: &Fleet, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        tasks.spawn(reconcile::host::keep_fresh(self.clone(), fleet.clone(), stop.clone()));
        tasks.spawn(self.own.lost.clone().keep(self.clock.clone(), stop.clone()));
    }

    /// Metrics in Prometheus' text format.
    pub async fn prometheus(&self) -> std::result::Result<String, DbError> {
        let (hosts, promised) = (store::host::all(&self.db).await?, machine::promised(&self.db).await?);
        Ok(metrics::text(&hosts, &promised))
    }
}

impl Enrolment {
    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::joining().with_state(self.clone())
    }

    /// Its worker, until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        tasks.spawn(reconcile::join::ask_all(self.clone(), stop.clone()));
    }
}
