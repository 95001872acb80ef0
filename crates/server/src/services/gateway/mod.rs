//! The gateway to models: OpenAI's protocol in front, any number of servers that speak it behind.
//!
//! ```text
//!  api ─► admission ─► allowance ─► dispatch ─► attempt ─► upstream
//!   ▲                                  │ good answer          │
//!   └──── relay ◄──────────────────────┴──────────────────────┘         bill ─► meter ─► journal ─► database
//! ```
//!
//! Its rooms: `path` takes a request from its body to its answer, `books` counts what it may take and took, `upstream`
//! reaches the servers that answer, `serve` runs servers of model files, `speech` speaks with this machine's own
//! voices.
//!
//! The gateway is a hot path and stays out of the intent machinery. Its invariants:
//!
//! - Bytes go on as they came. The gateway reads what it needs in place ([`berth_domain::gateway`]).
//! - Before the first byte of an answer goes out, another upstream may answer instead. Afterwards the answer stays with
//!   its upstream, and if it breaks off, the gateway tells the client.
//! - However a request ends, even by being dropped, it gives its place back, ends the upstream's work and closes its
//!   bill.
//! - No answer ever holds an upstream's address or key.

mod api;
mod books;
mod metrics;
mod ops;
mod path;
mod serve;
mod speech;
pub mod store;
mod upstream;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;

use berth_domain::gateway::{Model, ModelId, Voice};
use berth_domain::identity::KeyScope;
use berth_domain::ids::ProjectId;
use berth_domain::{Code, Error, Result, Timestamp};
use berth_host::clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use crate::config::Config;
use crate::db::Db;
use crate::http::auth::{AnyOf, Right};
use crate::http::edge::Hot;
use crate::http::streams;
use books::allowance::Allowances;
use books::meter::Meter;
use books::trace::Traces;
use path::admission::{Admission, Most};
use path::parking::Parking;
use speech::Speaker;
use store::spec::{MODELS, VOICES};
use upstream::fleet::Fleet;
use upstream::health;
use upstream::table::{self, Entry, Offer, Speaks, Table, Voices};

/// The model that speaks with this machine's own voices.
pub const LOCAL_SPEECH: &str = "tts-1";

/// The gateway.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    clock: Clock,
    config: crate::config::Gateway,
    configured: Vec<Model>,
    /// Ready for use. A voice that an administrator adds never replaces one of them.
    configured_voices: Vec<Arc<Speaks>>,
    data_dir: PathBuf,
    began_at: Timestamp,
    fleet: Arc<Fleet>,
    allowances: Allowances,
    meter: Meter,
    speaker: Speaker,
    admission: Arc<Admission>,
    parking: Parking,
    traces: Traces,
    reloading: tokio::sync::Mutex<()>,
}

/// A key of scope `inference` is for models.
impl Right for Gateway {
    const SCOPES: AnyOf = AnyOf::of(&[KeyScope::Inference]);
}

impl Gateway {
    /// Starts the gateway with the models of the configuration and of administrators, for a service with so many
    /// connections.
    pub async fn start(db: Db, clock: Clock, config: &Config, connections: usize) -> anyhow::Result<Self> {
        let meter = Meter::open(&config.data_dir.join("usage"), db.clone())?;
        let inner = Inner {
            config: config.gateway.clone(),
            configured: config.models.clone(),
            data_dir: config.data_dir.clone(),
            began_at: clock.now(),
            fleet: Arc::new(Fleet::new()?),
            configured_voices: config.voices.iter().map(table::speaks).collect::<Result<_, _>>()?,
            allowances: Allowances::new(meter.clone(), clock.clone()),
            meter,
            speaker: Speaker::new(),
            parking: Parking::default(),
            traces: Traces::start(&config.traces)?,
            admission: admission(&config.gateway, connections),
            reloading: tokio::sync::Mutex::default(),
            db,
            clock,
        };
        let gateway = Self { inner: Arc::new(inner) };
        gateway.clone().reload().await?;
        gateway.clone().reload_voices().await?;
        Ok(gateway)
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// Its routes with most traffic.
    pub fn hot(&self) -> Hot {
        api::hot(self)
    }

    /// Starts its workers, which run until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        tasks.spawn(self.inner.meter.clone().run(stop.clone()));
        tasks.spawn(self.inner.traces.clone().flush(stop.clone()));
        tasks.spawn(health::watch(self.inner.fleet.clone(), stop.clone()));
        let (gateway, ending) = (self.clone(), stop.clone());
        tasks.spawn(async move { gateway.inner.parking.watch(ending).await });
        let (gateway, ending) = (self.clone(), stop.clone());
        tasks.spawn(async move {
            ending.cancelled().await;
            // The server of a model file ends when its last user lets go of it.
            gateway.inner.fleet.offer(Table::default());
        });
    }

    /// Metrics in Prometheus' text format.
    pub fn prometheus(&self) -> String {
        metrics::text(&self.table(), self.meter())
    }

    /// Takes over administrators' changes to models.
    pub async fn reload(self) -> Result<()> {
        let _one_at_a_time = self.inner.reloading.lock().await;
        let created_at = self.inner.began_at;
        let mut offers: Vec<_> = self.configured().iter().cloned().map(|model| Offer { model, created_at }).collect();
        for row in MODELS.all(self.db()).await? {
            match row.read() {
                Ok(model) => offers.push(Offer { model, created_at: row.created_at }),
                Err(error) => tracing::error!(model = %row.id, %error, "a model that was added cannot be read"),
            }
        }
        let table = Table::new(offers, &self.table(), &self.inner.data_dir);
        self.inner.fleet.offer(table);
        Ok(())
    }

    /// Takes over administrators' changes to voices.
    pub async fn reload_voices(self) -> Result<()> {
        let _one_at_a_time = self.inner.reloading.lock().await;
        let mut voices = Voices::new();
        for row in VOICES.all(self.db()).await? {
            match row.read().map_err(anyhow::Error::from).and_then(|voice| table::speaks(&voice)) {
                Ok(speaks) => drop(voices.insert(row.id, speaks)),
                Err(error) => {
                    tracing::error!(voice = %row.id, error = format!("{error:#}"), "a voice that was added cannot speak");
                }
            }
        }
        voices.extend(self.inner.configured_voices.iter().map(|speaks| (speaks.voice.id.clone(), speaks.clone())));
        self.inner.fleet.offer_voices(voices);
        Ok(())
    }

    /// The voices of the configuration.
    pub(crate) fn configured_voices(&self) -> impl Iterator<Item = &Voice> {
        self.inner.configured_voices.iter().map(|speaks| &speaks.voice)
    }

    /// The models of the configuration.
    pub(crate) fn configured(&self) -> &[Model] {
        &self.inner.configured
    }

    /// The model of this name, if the project may use it; else a 404 that says what to do.
    fn model(&self, name: &str, project: ProjectId) -> Result<Arc<Entry>> {
        let table = self.table();
        let found = table.find(name).filter(|entry| entry.admits(project)).cloned();
        found.ok_or_else(|| {
            let what_to_do = if table.models.is_empty() {
                "There are no models yet. The operator types: berth model serve FILE.gguf, or berth model add"
            } else {
                "GET /v1/models lists those there are."
            };
            let message = format!("The model '{name}' does not exist, or this project may not use it. {what_to_do}");
            Error::new(Code::ModelNotFound, message)
        })
    }

    /// The state of a model's upstreams, for administrators.
    pub(crate) fn standing(&self, id: &ModelId) -> Vec<wire::model::UpstreamView> {
        let table = self.table();
        let upstreams = table.named(id).map(|entry| entry.upstreams.as_slice()).unwrap_or_default();
        upstreams.iter().map(|upstream| wire::model::UpstreamView::of(upstream)).collect()
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.inner.fleet.table()
    }

    pub(crate) fn db(&self) -> &Db {
        &self.inner.db
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.inner.meter
    }

    fn fleet(&self) -> &Fleet {
        &self.inner.fleet
    }

    fn config(&self) -> &crate::config::Gateway {
        &self.inner.config
    }

    fn admission(&self) -> &Arc<Admission> {
        &self.inner.admission
    }

    fn allowances(&self) -> &Allowances {
        &self.inner.allowances
    }

    fn speaker(&self) -> &Speaker {
        &self.inner.speaker
    }

    fn voice(&self, id: &str) -> Option<Arc<Speaks>> {
        self.inner.fleet.voice(id)
    }

    fn voice_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.inner.fleet.voices().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn began_at(&self) -> Timestamp {
        self.inner.began_at
    }

    fn parking(&self) -> &Parking {
        &self.inner.parking
    }

    fn traces(&self) -> &Traces {
        &self.inner.traces
    }
}

/// A request holds its connection until its answer ends, so all requests to models together get the share of
/// connections that may be held for long.
fn admission(config: &crate::config::Gateway, connections: usize) -> Arc<Admission> {
    let most = |requests, megabytes: u64| Most { requests, bytes: megabytes << 20 };
    Admission::new(
        most(config.max_requests.min(streams::held_long(connections)), config.body_mb),
        most(config.max_requests_per_project, config.body_mb_per_project),
    )
}
