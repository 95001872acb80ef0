//! What is on offer at this moment: the models of the configuration and of administrators, under all their names.
//!
//! A table never changes; another one replaces it. Requests under way keep the table they began with, so that none is
//! cut off when an administrator removes an upstream. An upstream that stays the same keeps its counters and its
//! breaker.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use berth_domain::Timestamp;
use berth_domain::gateway::budget::Budget;
use berth_domain::gateway::{Model, ModelId, Place, Source, Voice};
use berth_domain::ids::ProjectId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::address::Address;
use super::queue::Queue;
use super::slot::Upstream;
use crate::config::model::key_of;
use crate::services::gateway::serve;

/// A model at work.
pub struct Entry {
    /// What it is.
    pub model: Model,
    /// Its name, shared by everything that reports it.
    pub name: Arc<str>,
    /// When it was added.
    pub created_at: Timestamp,
    /// The servers that answer.
    pub upstreams: Vec<Arc<Upstream>>,
    /// The requests that wait, where not all may begin at once.
    pub queue: Arc<Queue>,
    /// Whether any upstream has a limit; without one no request waits.
    pub is_bounded: bool,
    /// Held while one of the upstreams is chosen.
    pub choosing: Mutex<()>,
    /// Its retry budget.
    pub budget: Arc<Mutex<Budget>>,
}

impl Entry {
    /// Whether a project may use it.
    pub fn admits(&self, project: ProjectId) -> bool {
        self.model.projects.is_empty() || self.model.projects.contains(&project.to_string())
    }
}

/// A voice at work.
pub struct Speaks {
    /// What it is.
    pub voice: Voice,
    /// Its server, where it has one.
    pub address: Option<Arc<Address>>,
}

/// What is on offer.
#[derive(Default)]
pub struct Table {
    /// Every model, by name.
    pub models: Vec<Arc<Entry>>,
    by_name: HashMap<String, Arc<Entry>>,
}

/// A model to be put into a table.
pub struct Offer {
    /// What it is.
    pub model: Model,
    /// When it was added.
    pub created_at: Timestamp,
}

impl Table {
    /// A table of these models. A model that the old table has, too, keeps its state. Of two models with one name the
    /// first counts.
    pub fn new(offers: Vec<Offer>, old: &Self, data_dir: &Path) -> Self {
        let mut table = Self::default();
        for offer in offers {
            if table.by_name.contains_key(offer.model.id.as_str()) {
                tracing::warn!(model = %offer.model.id, "a model of this name stands in the configuration; that one counts");
                continue;
            }
            let before = old.by_name.get(offer.model.id.as_str());
            if let Some(entry) = entry(offer, before, data_dir) {
                table.add(Arc::new(entry));
            }
        }
        table.models.sort_by(|a, b| a.name.cmp(&b.name));
        table
    }

    fn add(&mut self, entry: Arc<Entry>) {
        for name in entry.model.names() {
            self.by_name.entry(name.as_str().to_owned()).or_insert_with(|| entry.clone());
        }
        self.models.push(entry);
    }

    /// The model of a name or alias.
    pub fn find(&self, name: &str) -> Option<&Arc<Entry>> {
        self.by_name.get(name)
    }

    /// The model with this name, aliases left out.
    pub fn named(&self, id: &ModelId) -> Option<&Arc<Entry>> {
        self.find(id.as_str()).filter(|entry| entry.model.id == *id)
    }
}

fn entry(offer: Offer, before: Option<&Arc<Entry>>, data_dir: &Path) -> Option<Entry> {
    let Offer { model, created_at } = offer;
    let mut known: Vec<_> = before.iter().flat_map(|entry| entry.upstreams.iter().cloned()).collect();
    let mut upstreams = Vec::with_capacity(model.upstreams.len());
    for spec in &model.upstreams {
        if let Some(index) = known.iter().position(|upstream| upstream.spec == *spec) {
            upstreams.push(known.swap_remove(index));
            continue;
        }
        match start(spec.clone(), data_dir) {
            Ok(upstream) => upstreams.push(upstream),
            Err(error) => {
                tracing::error!(model = %model.id, %error, "an upstream cannot be used; the model goes without it");
            }
        }
    }
    if upstreams.is_empty() {
        return None;
    }
    let name = model.id.as_str().into();
    // A request that holds a place at an upstream that stays holds it in the new table, too.
    let queue = before.map(|entry| entry.queue.clone()).unwrap_or_default();
    let is_bounded = upstreams.iter().any(|upstream| upstream.spec.max_concurrency.is_some());
    let budget = before.map(|entry| entry.budget.clone()).unwrap_or_default();
    let choosing = Mutex::default();
    Some(Entry { model, name, created_at, upstreams, queue, is_bounded, choosing, budget })
}

/// Makes an upstream, and starts the server of its model file.
fn start(spec: berth_domain::gateway::Upstream, data_dir: &Path) -> anyhow::Result<Arc<Upstream>> {
    let Place::Gguf(file) = &spec.place else { return Ok(Arc::new(Upstream::new(spec, None)?)) };
    let (file, data_dir, stop) = (file.into(), data_dir.to_owned(), CancellationToken::new());
    let upstream = Arc::new(Upstream::new(spec, Some(stop.clone()))?);
    let (tell, mut told) = watch::channel(None);
    tokio::spawn(serve::keep(file, data_dir, tell, stop));
    // A strong reference here would keep the upstream, and so its server, alive.
    let watched = Arc::downgrade(&upstream);
    tokio::spawn(async move {
        while told.changed().await.is_ok() {
            let Some(upstream) = watched.upgrade() else { return };
            upstream.moved(told.borrow_and_update().as_deref());
        }
    });
    Ok(upstream)
}

/// Voices by name.
pub type Voices = HashMap<String, Arc<Speaks>>;

/// A voice, ready for use.
pub fn speaks(voice: &Voice) -> anyhow::Result<Arc<Speaks>> {
    let address = match &voice.source {
        Source::Espeak(_) => None,
        Source::Url { url, access, .. } => {
            let key = access.as_ref().map(key_of).transpose()?;
            Some(Arc::new(Address::new(url, key.as_ref().map(|key| key.0.as_str()))?))
        }
    };
    Ok(Arc::new(Speaks { voice: voice.clone(), address }))
}

/// What is on offer at this moment. It is replaced as a whole; a request keeps what it began with.
#[derive(Default)]
pub struct Moment<T>(RwLock<Arc<T>>);

impl<T> Moment<T> {
    /// What it is now.
    pub fn now(&self) -> Arc<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces it.
    pub fn replace(&self, next: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}
