//! The composition root: makes everything, once, and hands each part to those that need it.

#[cfg(feature = "faults")]
mod by_bytes;
mod doctor;
mod doors;
mod engines;
mod folder;
mod host;
mod joined;
mod listener;
mod lock;
mod members;
mod offer;
mod own;
mod process;
mod reachable;
mod replica_door;
mod standby;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use axum::Router;
use berth_host::clock::Clock;
use berth_host::link::{Authority, Terms};
use berth_qemu::confinement;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use utoipa_axum::router::OpenApiRouter;
use uuid::Uuid;

pub use doctor::{Report, doctor, doctor_of_gpus};
pub use doors::{Bound, Doors};
pub use joined::{Answer, Joined, Request, Wanted, join, joined, serve_host};

pub use crate::services::fleet::Engines;

use crate::config::{self, Config};
use crate::db::{Db, DbError, keeper};
use crate::facade;
use crate::http::auth::Gate;
use crate::http::base_url::Configured;
use crate::http::client_address::TrustedProxies;
use crate::http::cors::Cors;
use crate::http::edge::Edge;
use crate::http::idempotency::Turns;
use crate::http::paced::Grace;
use crate::http::probes::{self, Probes};
use crate::http::seats::Seats;
use crate::http::streams::Streams;
use crate::http::tls::Certificate;
use crate::seal::Sealer;
use crate::services::fleet::Fleet;
use crate::services::gateway::Gateway;
use crate::services::host::{Hosts, name_of_replica};
use crate::services::identity::{FirstLogin, Identity};
use crate::services::network::Networks;
use crate::services::project::Projects;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::runtime::{self, Runtime};
use crate::services::ssh_key::SshKeys;
use crate::services::vm::Vms;
use crate::services::{Holder, Stops, suspension};
use engines::{reached, ready};
use process::{ENDING, Signals, begin, ended};

/// Why a service ended from which another one took the database. Starting it again would take the database back.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("another service has taken over the database; machines of this host keep running")]
pub struct TakenOver;

/// Why a replica ended that was active. Started again it stands by.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "this replica is active no more: another one has taken over, or may have. Machines of this host keep running. Start it \
     again, and it stands by"
)]
pub struct ActiveNoMore;

/// How long workers may take to finish a step whose outcome nobody takes from them any more.
const TAKEN_OVER: Duration = Duration::from_secs(2);
/// How long closing the database may take.
const LEAVING: Duration = Duration::from_secs(10);

/// A service that is ready to answer.
pub struct App {
    /// Its routes.
    pub edge: Edge,
    /// Its connections.
    pub seats: Arc<Seats>,
    /// Connections of the addresses that only metrics and administration have.
    pub operators_seats: Arc<Seats>,
    /// Its clock; tests set it forward.
    pub clock: Clock,
    /// Its database.
    pub db: Db,
    /// The hosts that it can ask.
    pub fleet: Fleet,
    /// Seals and opens secrets.
    pub sealer: Sealer,
    /// The first administrator's login, if this start made it up.
    pub first_login: Option<FirstLogin>,
    /// Cancelled once another service has taken over the database; this one then does nothing more.
    pub taken_over: CancellationToken,
    /// The platform's authority.
    authority: Arc<Authority>,
    run: Uuid,
    vms: Vms,
    sandboxes: Sandboxes,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    /// Says that the service lives, until its last worker has ended.
    keeping: AbortOnDropHandle<()>,
    _lock: lock::DataDir,
}

impl App {
    /// Makes everything and starts the workers, over the engines of this host.
    pub async fn start(config: &Config) -> Result<Self> {
        let lock = joined::take(&config.data_dir).await?;
        Self::start_in(lock, config).await
    }

    /// The same in a folder that is taken already.
    async fn start_in(lock: lock::DataDir, config: &Config) -> Result<Self> {
        let config = &reached(config)?;
        // Now, so that an operator reads at the start what is missing, and not with the first machine.
        if let Err(error) = confinement::of_host(&config.data_dir).await {
            tracing::warn!(%error, "how machines are confined here cannot be found out; the first machine tries again");
        }
        let engines = Engines::of_this_host(config).await?;
        #[cfg(feature = "faults")]
        let engines = by_bytes::by_bytes(config, engines).await?;
        Self::start_on(lock, Clock::default(), config, engines).await
    }

    /// The same over other engines.
    pub async fn start_with(config: &Config, engines: Engines) -> Result<Self> {
        Self::start_by(Clock::default(), config, engines).await
    }

    /// The same by another clock.
    pub async fn start_by(clock: Clock, config: &Config, engines: Engines) -> Result<Self> {
        let lock = joined::take(&config.data_dir).await?;
        Self::start_on(lock, clock, config, engines).await
    }

    async fn start_on(lock: lock::DataDir, clock: Clock, config: &Config, engines: Engines) -> Result<Self> {
        let config = &offer::with_gpus(config, &*engines.vm).await;
        let (keeper, before) = (folder::keeper(config)?, folder::uptime());
        let (db, seen) = folder::open(config, &keeper, &clock).await?;
        let (stop, taken_over, mut tasks) = (CancellationToken::new(), CancellationToken::new(), JoinSet::new());
        let health = folder::Health::default();
        let keeping = folder::Keeping::new(&db, &keeper, config, health.clone(), before);
        let keeping = keep(keeping, config, &db, (&clock, &stop, &taken_over))?;
        let sealer = Sealer::open(&config.secrets, &db).await?;
        let (hosts, fleet) = own::enrol(config, &keeper, &db, &clock, &engines).await?;
        let held = Held::new((&db, &folder::id_of(&db).await?), &clock, config, &fleet);
        let (vms, sandboxes) = (held.vms.clone(), held.sandboxes.clone());
        let (identity, first_login) =
            Identity::start(db.clone(), clock.clone(), config, sealer.clone(), held.holders()).await?;
        let enrolment = own::enrolment(config, (&hosts, &fleet), &sealer, &identity).await?;
        let seats = Seats::configured(&config.http);
        let gateway = Gateway::start(db.clone(), clock.clone(), config, seats.most()).await?;
        held.prepare().await?;
        let projects = Projects::start(db.clone(), clock.clone(), config, &[&vms, &sandboxes], seen).await?;
        let inside = runtime::routes(Runtime { db: db.clone(), clock: clock.clone(), fleet: fleet.clone() });
        let operators_seats = Seats::of_operators(seats.most());
        let host = (config.data_dir.clone(), [seats.clone(), operators_seats.clone()]);
        let metrics = metrics(config, (&hosts, &held), gateway.clone(), host);
        let probes = probes(&db, &health, engines, metrics);
        let managed = identity.routes().merge(held.routes()).merge(gateway.routes());
        let of_hosts = hosts.routes().merge(enrolment.routes());
        let services = OpenApiRouter::new().merge(managed).merge(projects.routes()).merge(of_hosts).merge(inside);
        let (base, gate): (_, Arc<dyn Gate>) =
            (Configured(config.public_url().map(Arc::from)), Arc::new(identity.clone()));
        let facades = |api| facade::routes(api, sealer.clone(), gate.clone(), sandboxes.clone());
        let (known, turns) = ((gate.clone(), db.clone()), Turns::new(sealer.clone()));
        let router = crate::http::router(services, known, base, probes, turns, facades);
        let edge = edge((router, gate), &gateway, &config.http, seats.most());
        hosts.spawn_workers(&fleet, &mut tasks, &stop);
        enrolment.spawn_workers(&mut tasks, &stop);
        identity.spawn_workers(&mut tasks, &stop);
        projects.spawn_workers(&mut tasks, &stop);
        held.spawn_workers(&mut tasks, &stop, &taken_over);
        gateway.spawn_workers(&mut tasks, &stop);
        held.follow_suspensions((config, &db), identity, &mut tasks, &stop);
        Ok(Self {
            edge,
            seats,
            operators_seats,
            clock,
            db,
            fleet,
            sealer,
            first_login,
            taken_over,
            authority: enrolment.authority(),
            run: keeper.run,
            vms,
            sandboxes,
            tasks,
            stop,
            keeping,
            _lock: lock,
        })
    }

    /// Ends the workers; each may finish its step, up to a time limit. Machines keep running.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let patience = if self.taken_over.is_cancelled() { TAKEN_OVER } else { ENDING };
        if !ended(&mut self.tasks, patience).await {
            tracing::warn!(
                "workers are still at a step after {patience:?} and are called off; the next start goes on there"
            );
        }
        self.keeping.abort();
        let leave = async {
            if let Err(error) = keeper::left(&self.db, self.run, self.clock.now()).await {
                tracing::warn!(%error, "the database cannot be told that the service ended");
            }
            self.db.close().await;
        };
        if tokio::time::timeout(LEAVING, leave).await.is_err() {
            tracing::warn!("the database does not let go within {LEAVING:?}");
        }
    }

    /// Returns when a worker ended that nobody told to stop: its work would stay undone.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            Some(ended) = self.tasks.join_next() => match ended {
                Err(error) => anyhow!("a worker of the service failed: {error}"),
                Ok(()) => anyhow!("a worker of the service ended by itself"),
            },
            _ = &mut self.keeping => anyhow!("nothing says any more that the service lives"),
        }
    }

    /// Calls its workers off at once: whoever has the database by now goes on with what they did.
    fn call_off(&mut self) {
        self.tasks.abort_all();
        self.vms.call_off();
    }
}

/// What projects hold on hosts: the services over the engines.
#[derive(Clone)]
struct Held {
    vms: Vms,
    sandboxes: Sandboxes,
    networks: Networks,
    ssh_keys: SshKeys,
}

impl Held {
    fn new((db, database): (&Db, &str), clock: &Clock, config: &Config, fleet: &Fleet) -> Self {
        Self {
            vms: Vms::new((db.clone(), database), clock.clone(), config, fleet.clone()),
            sandboxes: Sandboxes::new((db.clone(), database), clock.clone(), config, fleet.clone()),
            networks: Networks::new(db.clone(), clock.clone(), fleet.clone()),
            ssh_keys: SshKeys::new(db.clone(), clock.clone()),
        }
    }

    /// Whom to ask whether a project still holds anything.
    fn holders(&self) -> Vec<Arc<dyn Holder>> {
        vec![Arc::new(self.vms.clone()), Arc::new(self.sandboxes.clone()), Arc::new(self.networks.clone())]
    }

    /// Who runs what has to stop where an organization is suspended.
    fn stops(&self) -> Vec<Arc<dyn Stops>> {
        vec![Arc::new(self.vms.clone()), Arc::new(self.sandboxes.clone())]
    }

    /// What has to be so before the first request is answered.
    async fn prepare(&self) -> Result<()> {
        self.vms.prepare().await?;
        self.sandboxes.prepare().await?;
        Ok(self.networks.prepare().await?)
    }

    fn routes(&self) -> OpenApiRouter {
        self.vms.routes().merge(self.sandboxes.routes()).merge(self.networks.routes()).merge(self.ssh_keys.routes())
    }

    /// Metrics in Prometheus' text format.
    async fn prometheus(&self) -> std::result::Result<String, DbError> {
        let machines = self.vms.prometheus().await? + &self.sandboxes.prometheus().await?;
        Ok(machines + &self.networks.prometheus().await?)
    }

    /// Has what an organization runs stop where that is suspended, if the configuration says so.
    fn follow_suspensions(
        &self,
        (config, db): (&Config, &Db),
        identity: Identity,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) {
        if config.identity.suspension_stops_machines {
            tasks.spawn(suspension::watch(db.clone(), Arc::new(identity), self.stops(), stop.clone()));
        }
    }

    fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken, taken_over: &CancellationToken) {
        self.vms.spawn_workers(tasks, stop);
        self.sandboxes.spawn_workers(tasks, stop, taken_over);
        self.networks.spawn_workers(tasks, stop);
    }
}

/// The edge of these routes, with the configured limits of requests.
fn edge((router, gate): (Router, Arc<dyn Gate>), gateway: &Gateway, config: &config::Http, connections: usize) -> Edge {
    Edge::new(router, gate, gateway.hot(), TrustedProxies::new(config.trusted_proxies.clone()))
        .with_cors(Cors::new(&config.cors_origins))
        .with_streams(Streams::of(connections))
        .with_grace(Grace(Duration::from_secs(config.body_grace_seconds)))
}

/// What is asked of the service from outside without a credential.
fn probes(db: &Db, health: &folder::Health, engines: Engines, metrics: probes::Metrics) -> Probes {
    Probes { db: db.clone(), writes: health.writes(), engines: Arc::new(move || ready(&engines)), metrics }
}

fn metrics(
    config: &Config,
    (hosts, held): (&Hosts, &Held),
    gateway: Gateway,
    (data_dir, seats): (PathBuf, [Arc<Seats>; 2]),
) -> crate::http::probes::Metrics {
    // Nobody has to say who asks: who sees what machines hold of each host could find out whose machines share one.
    let are_hosts_told = config.http.metrics_listen.is_some() || config.is_loopback_only();
    let (hosts, held) = (are_hosts_told.then(|| hosts.clone()), held.clone());
    Arc::new(move || {
        let (hosts, held, gateway) = (hosts.clone(), held.clone(), gateway.clone());
        let host = host::prometheus(&data_dir, seats.iter().map(|seats| seats.taken()).sum());
        Box::pin(async move {
            // Counts from the database are left out where it does not answer in time.
            let hosts = async {
                match hosts {
                    Some(hosts) => hosts.prometheus().await,
                    None => Ok(String::new()),
                }
            };
            let (hosts, held) = tokio::join!(probes::soon(hosts), probes::soon(held.prometheus()));
            hosts.unwrap_or_default() + &held.unwrap_or_default() + &gateway.prometheus() + &host
        })
    })
}

/// `berth serve`: answers until SIGTERM or SIGINT, then drains and leaves machines running.
pub async fn serve(config: Config) -> Result<()> {
    begin(&config);
    // Finds typing errors before it opens anything.
    let certificate = config.http.tls.as_ref().map(Certificate::load).transpose()?.map(Arc::new);
    let bound = Bound::new(&config).await?;
    let mut signals = Signals::new()?;
    let Some(lock) = take(&config, (&bound, certificate.clone()), &mut signals).await? else { return Ok(()) };
    let Some((mut app, doors, _renewing)) =
        begin_active(&config, lock, (bound, certificate.clone()), &mut signals).await?
    else {
        return Ok(());
    };
    announce(&config, &app, &doors);
    let ending = CancellationToken::new();
    let _reloading =
        certificate.map(|certificate| AbortOnDropHandle::new(tokio::spawn(certificate.reload_on_hangup())));
    let taken_over = app.taken_over.clone();
    let mut serving = pin!(doors.serve(ending.clone()));
    let outcome = tokio::select! {
        served = serving.as_mut() => {
            ending.cancel();
            served.context("connections cannot be served")
        }
        () = signals.next() => {
            tracing::info!("draining; machines keep running");
            Ok(())
        }
        () = taken_over.cancelled() => {
            app.call_off();
            Err(why_it_ends(&config))
        }
        error = app.failed() => Err(if taken_over.is_cancelled() { why_it_ends(&config) } else { error }),
    };
    let rest = async {
        if ending.is_cancelled() {
            return Ok(());
        }
        ending.cancel();
        serving.await.context("connections cannot be served")
    };
    tokio::select! {
        drained = drain(rest, app.stop()) => outcome.and(drained),
        () = signals.next() => bail!("ended at once by a second signal; machines keep running, the next start goes on"),
    }
}

/// Takes the data folder, and of a replica its turn with the database: until then it stands by. None where it is told to end.
async fn take(
    config: &Config,
    doors: (&Bound, Option<Arc<Certificate>>),
    signals: &mut Signals,
) -> Result<Option<lock::DataDir>> {
    let lock = joined::take(&config.data_dir).await?;
    if !config.replica.is_one() || standby::stand_by(config, doors, signals).await? {
        return Ok(Some(lock));
    }
    Ok(None)
}

/// Adds the address at which an active replica takes what the others pass on, with a certificate that is renewed until the
/// second value is dropped.
async fn for_replicas(bound: Bound, config: &Config, app: &App) -> Result<(Bound, Option<AbortOnDropHandle<()>>)> {
    if !config.replica.is_one() {
        return Ok((bound, None));
    }
    let name = name_of_replica(app.fleet.own());
    let (certificate, renewing) = replica_door::certificate(app.authority.clone(), name)?;
    Ok((bound.with_replicas(replica_door::listener(config).await?, certificate), Some(renewing)))
}

/// Has the service begin to work, and opens its doors; none where the process is told to end before. A replica that does not
/// begin lets the others have its turn.
async fn begin_active(
    config: &Config,
    lock: lock::DataDir,
    (bound, certificate): (Bound, Option<Arc<Certificate>>),
    signals: &mut Signals,
) -> Result<Option<(App, Doors, Option<AbortOnDropHandle<()>>)>> {
    let begun = async {
        let app = App::start_in(lock, config).await?;
        let (bound, renewing) = for_replicas(bound, config, &app).await?;
        let doors = bound.open(config, certificate, &app);
        anyhow::Ok((app, doors, renewing))
    };
    let begun = tokio::select! {
        begun = begun => begun.map(Some),
        () = signals.next() => Ok(None),
    };
    if config.replica.is_one() && !matches!(begun, Ok(Some(_))) {
        folder::give_up(config).await;
    }
    begun
}

/// Has the service say that it lives, from the first moment on: whoever stands by takes what gives no sign of life. The host
/// of a replica notes in which term that is active: who was active before and wakes up is let in there no more.
fn keep(
    keeping: folder::Keeping,
    config: &Config,
    db: &Db,
    (clock, stop, taken_over): (&Clock, &CancellationToken, &CancellationToken),
) -> Result<AbortOnDropHandle<()>> {
    let keeping = tokio::spawn(keeping.keep(clock.clone(), stop.clone(), taken_over.clone()));
    let keeping = AbortOnDropHandle::new(keeping);
    if config.replica.is_one() {
        let terms = Terms::open(&config.data_dir).context("the term in which this host was asked last is not known")?;
        terms.admit(db.term()).context("the term of this service cannot be noted")?;
    }
    Ok(keeping)
}

fn why_it_ends(config: &Config) -> anyhow::Error {
    if config.replica.is_one() { ActiveNoMore.into() } else { TakenOver.into() }
}

/// Waits for the remaining connections, then for the workers, which end in order even if a connection failed.
async fn drain(connections: impl Future<Output = Result<()>>, workers: impl Future<Output = ()>) -> Result<()> {
    let served = connections.await;
    workers.await;
    served
}

/// Binds the addresses, then takes the database, then begins to work: a service without an address touches nothing.
pub async fn open(config: &Config, certificate: Option<Arc<Certificate>>) -> Result<(App, Doors)> {
    let bound = Bound::new(config).await?;
    let app = App::start(config).await?;
    let doors = bound.open(config, certificate, &app);
    Ok((app, doors))
}

/// `berth shutdown`: stops every machine of a service that is not running, in good order, and ends.
pub async fn shut_down(config: Config) -> Result<()> {
    begin(&config);
    let app = App::start(&config).await?;
    let count = app.vms.stop(None, "the platform is shut down").await?;
    println!("Stopping {count} machines; a guest has {} s to answer the power button", config.vm.stop_seconds);
    let paused = app.sandboxes.stop(None, "the platform was shut down").await?;
    println!("Pausing {paused} sandboxes; their memory is kept");
    let patience = Duration::from_secs((config.vm.stop_seconds + config.vm.stopping_seconds).unsigned_abs());
    let (machines, sandboxes) = tokio::join!(app.vms.all_stopped(patience), app.sandboxes.all_paused(patience));
    let stopped = machines && sandboxes;
    app.stop().await;
    anyhow::ensure!(stopped, "some machines are still stopping; type it again");
    Ok(())
}

/// `berth backup`: copies the database into a new file, whether the service runs or not.
pub async fn back_up(config: &Config, to: &Path) -> Result<()> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    crate::db::copy(&config.database_url, to).await.context("the database cannot be copied")
}

fn announce(config: &Config, app: &App, doors: &Doors) {
    let address = doors.main;
    let url = Config { listen: address, ..config.clone() }.own_url();
    println!("Berth answers at {url} (documentation at {url}/docs)");
    println!("Data: {}", config.data_dir.display());
    if let Some(FirstLogin { email, file }) = &app.first_login {
        println!("First administrator: {email}");
        println!("Its password is the second line of {}", file.display());
    }
    tracing::info!(%address, sign_up = config.sign_up().describe(), "ready");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workers_are_ended_where_connections_cannot_be_served() {
        let ended = CancellationToken::new();
        let drained = drain(async { bail!("no thread") }, async { ended.cancel() }).await;
        assert_eq!((drained.unwrap_err().to_string().as_str(), ended.is_cancelled()), ("no thread", true));
    }
}
