//! The composition root: everything is made here, once, and handed to who needs it.

mod doctor;
mod lock;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

pub use doctor::{Finding, Report, doctor};

use crate::clock::Clock;
use crate::config::Config;
use crate::db::Db;
use crate::http::auth::Gate;
use crate::http::base::Configured;
use crate::http::edge::Edge;
use crate::http::probes::Probes;
use crate::services::gateway::Gateway;
use crate::services::identity::Identity;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::engine::SandboxEngine;
use crate::services::sandbox::engine::qemu::QemuSandboxes;
use crate::services::sandbox::runtime::{self, Runtime};
use crate::services::vm::Vms;
use crate::services::vm::engine::Engine;
use crate::services::vm::engine::qemu::QemuEngine;
use crate::services::{Holder, Stops, suspension};

/// What runs machines.
#[derive(Clone)]
pub struct Engines {
    /// Virtual machines.
    pub vm: Arc<dyn Engine>,
    /// Sandboxes.
    pub sandbox: Arc<dyn SandboxEngine>,
}

/// A service that is ready to answer.
pub struct App {
    /// Its routes.
    pub edge: Edge,
    /// Its clock: tests set it forward.
    pub clock: Clock,
    /// Its database.
    pub db: Db,
    /// The first administrator's login, if it was just made up.
    pub first_login: Option<(String, crate::config::Secret)>,
    vms: Vms,
    sandboxes: Sandboxes,
    tasks: JoinSet<()>,
    stop: CancellationToken,
    _lock: lock::DataDir,
}

impl App {
    /// Makes everything and starts the workers, over the engine that the host has.
    pub async fn start(config: &Config) -> Result<Self> {
        let vm = Arc::new(QemuEngine::open(&config.data_dir, &config.vm, config.accel));
        let sandbox = Arc::new(QemuSandboxes::open(config, Clock::default()));
        Self::start_with(config, Engines { vm, sandbox }).await
    }

    /// The same over any engines.
    pub async fn start_with(config: &Config, engines: Engines) -> Result<Self> {
        let lock = lock::DataDir::take(&config.data_dir).await?;
        let db = Db::open(&config.database_url).await.context("the database cannot be opened")?;
        let clock = Clock::default();
        let vms = Vms::new(db.clone(), clock.clone(), config, engines.vm.clone());
        let sandboxes = Sandboxes::new(db.clone(), clock.clone(), config, engines.sandbox.clone());
        let holders: Vec<Arc<dyn Holder>> = vec![Arc::new(vms.clone()), Arc::new(sandboxes.clone())];
        let identity = Identity::start(db.clone(), clock.clone(), config, holders).await?;
        let gateway = Gateway::start(db.clone(), clock.clone(), config).await?;
        vms.prepare().await?;
        sandboxes.prepare().await?;
        let inside = runtime::routes(Runtime { db: db.clone(), engine: engines.sandbox.clone() });
        let metrics = metrics(vms.clone(), sandboxes.clone(), gateway.clone());
        let ready = move || engines.vm.ready().and_then(|()| engines.sandbox.ready());
        let probes = Probes { db: db.clone(), engines: Arc::new(ready), metrics };
        let managed = identity.routes().merge(vms.routes()).merge(sandboxes.routes()).merge(gateway.routes());
        let services = OpenApiRouter::new().merge(managed).merge(inside);
        let base = Configured(config.public_url().map(Arc::from));
        let gate: Arc<dyn Gate> = Arc::new(identity.clone());
        let router = crate::http::router(services, gate.clone(), db.clone(), base, probes);
        let edge = Edge::new(router, gate, gateway.hot());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        identity.spawn_workers(&mut tasks, &stop);
        vms.spawn_workers(&mut tasks, &stop);
        sandboxes.spawn_workers(&mut tasks, &stop);
        gateway.spawn_workers(&mut tasks, &stop);
        if config.identity.suspension_stops_machines {
            let services: Vec<Arc<dyn Stops>> = vec![Arc::new(vms.clone()), Arc::new(sandboxes.clone())];
            tasks.spawn(suspension::watch(db.clone(), Arc::new(identity.clone()), services, stop.clone()));
        }
        Ok(Self { edge, clock, db, first_login: identity.first_login(), vms, sandboxes, tasks, stop, _lock: lock })
    }

    /// Ends the workers, letting each finish its step. Machines keep running.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.db.close().await;
    }
}

fn metrics(vms: Vms, sandboxes: Sandboxes, gateway: Gateway) -> crate::http::probes::Metrics {
    Arc::new(move || {
        let (vms, sandboxes, gateway) = (vms.clone(), sandboxes.clone(), gateway.clone());
        Box::pin(async move { vms.prometheus().await + &sandboxes.prometheus().await + &gateway.prometheus() })
    })
}

/// `berth serve`: answers until SIGTERM or SIGINT, then drains and leaves machines running.
pub async fn serve(config: Config) -> Result<()> {
    init_log(&config.log);
    // What the service and its machines write is nobody else's to read.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let app = App::start(&config).await?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!("cannot listen on {}; is another service there? Set BERTH_LISTEN to another address", config.listen)
    })?;
    announce(&config, &app, listener.local_addr()?);
    let ending = CancellationToken::new();
    let mut serving = pin!(crate::http::server::serve(listener, app.edge.clone(), ending.clone()));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = signalled() => {
            tracing::info!("draining; machines keep running");
            ending.cancel();
            serving.await
        }
    };
    app.stop().await;
    served.context("connections cannot be served")
}

/// `berth shutdown`: stops every machine of a service that does not run, in good order, and ends.
pub async fn shut_down(config: Config) -> Result<()> {
    init_log(&config.log);
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

fn announce(config: &Config, app: &App, address: SocketAddr) {
    println!("Berth answers at http://{address} (documentation at http://{address}/docs)");
    println!("Data: {}", config.data_dir.display());
    if let Some((email, password)) = &app.first_login {
        println!("First administrator: {email}");
        println!("Password (shown only this once): {}", password.0);
    }
    tracing::info!(%address, "ready");
}

fn init_log(filter: &str) {
    let filter = tracing_subscriber::EnvFilter::try_new(filter).unwrap_or_else(|_| "info".into());
    // A second initialisation, in tests, leaves the first in place.
    let _ = tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}

async fn signalled() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
