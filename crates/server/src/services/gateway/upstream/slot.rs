//! One upstream at work: its address, and how busy, how fast and how healthy it is.
//!
//! A [`Slot`] stands for a request under way. Dropping it gives the place back, however the request ended, so that
//! counters cannot leak.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use berth_domain::gateway::breaker::{Breaker, State};
use berth_domain::gateway::latency::Latency;
use berth_domain::gateway::route::Standing;
use berth_domain::gateway::{self as domain, Place};
use berth_domain::ids::Owner;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::address::Address;
use super::queue::Shares;
use super::table::Entry;
use crate::config::model::key_of;

/// Counters of an upstream, for metrics.
#[derive(Default)]
pub struct Counts {
    /// Requests sent.
    pub requests: AtomicU64,
    /// Those that failed.
    pub failures: AtomicU64,
    /// First bytes that came.
    pub first_bytes: AtomicU64,
    /// Microseconds until them, summed.
    pub first_byte_micros: AtomicU64,
    /// Tokens of answers.
    pub tokens: AtomicU64,
    /// Microseconds that those took, summed.
    pub token_micros: AtomicU64,
}

#[derive(Default)]
struct Health {
    breaker: Breaker,
    latency: Latency,
}

/// An upstream of a model.
pub struct Upstream {
    /// What was configured.
    pub spec: domain::Upstream,
    /// Counters for metrics.
    pub counts: Counts,
    began: Instant,
    address: RwLock<Option<Arc<Address>>>,
    busy: AtomicU32,
    health: Mutex<Health>,
    /// Ends the server of its model file when this upstream is dropped.
    _server: Option<DropGuard>,
}

impl Upstream {
    /// An upstream at work. Dropping it cancels `server`, which ends the server of its model file.
    pub fn new(spec: domain::Upstream, server: Option<CancellationToken>) -> anyhow::Result<Self> {
        let address = match &spec.place {
            Place::Url(base) => {
                let key = spec.access.as_ref().map(key_of).transpose()?;
                Some(Arc::new(Address::new(base, key.as_ref().map(|key| key.0.as_str()))?))
            }
            Place::Gguf(_) => None,
        };
        Ok(Self {
            spec,
            counts: Counts::default(),
            began: Instant::now(),
            address: RwLock::new(address),
            busy: AtomicU32::new(0),
            health: Mutex::default(),
            _server: server.map(CancellationToken::drop_guard),
        })
    }

    /// Its address; `None` while its server does not answer.
    pub fn address(&self) -> Option<Arc<Address>> {
        self.address.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the address where its server answers now.
    pub fn moved(&self, base: Option<&str>) {
        let address = base.and_then(|base| Address::new(base, None).ok()).map(Arc::new);
        *self.address.write().unwrap_or_else(PoisonError::into_inner) = address;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests under way.
    pub fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    /// The state of its breaker.
    pub fn breaker(&self) -> State {
        self.health().breaker.state(self.now())
    }

    /// Its standing for the choice; `heeds_breaker` is off where a doubtful upstream is better than none.
    pub fn standing(&self, heeds_breaker: bool) -> Standing {
        let now = self.now();
        let (admits, latency) = {
            let health = self.health();
            (health.breaker.admits(now), health.latency.seconds(now))
        };
        let present = self.address.read().unwrap_or_else(PoisonError::into_inner).is_some();
        Standing {
            weight: self.spec.weight,
            busy: self.busy(),
            most: self.spec.max_concurrency,
            admits: present && (admits || !heeds_breaker),
            tried: false,
            latency,
        }
    }

    /// Begins a request of a project. The caller holds the lock of the model, so that no more begin than may.
    pub fn begin(self: &Arc<Self>, entry: &Arc<Entry>, owner: Owner, shares: Shares) -> Slot {
        if entry.is_bounded {
            entry.queue.took(owner, shares);
        }
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.health().breaker.began(self.now());
        Slot { upstream: self.clone(), entry: entry.clone(), owner, began: Instant::now(), judged: false }
    }

    /// Notes the result of a health check.
    pub fn probed(&self, healthy: bool) {
        let now = self.now();
        self.health().breaker.probed(healthy, now);
    }
}

/// A request under way at an upstream.
pub struct Slot {
    /// Where.
    pub upstream: Arc<Upstream>,
    /// For which model.
    pub entry: Arc<Entry>,
    owner: Owner,
    began: Instant,
    judged: bool,
}

impl Slot {
    /// Notes the first byte of a good answer.
    pub fn answered(&mut self) {
        let took = self.began.elapsed();
        let (now, counts) = (self.upstream.now(), &self.upstream.counts);
        counts.first_bytes.fetch_add(1, Ordering::Relaxed);
        counts.first_byte_micros.fetch_add(micros(took), Ordering::Relaxed);
        let mut health = self.upstream.health();
        health.breaker.succeeded(now);
        health.latency.observe(took.as_secs_f64(), now);
        drop(health);
        self.judged = true;
    }

    /// Notes that the upstream failed, by its own fault.
    pub fn failed(&mut self) {
        self.upstream.counts.failures.fetch_add(1, Ordering::Relaxed);
        let now = self.upstream.now();
        self.upstream.health().breaker.failed(now);
        self.judged = true;
    }

    /// Notes that the upstream refused what this caller sent, by the caller's fault or its own.
    pub fn refused(&mut self, caller: u64) {
        self.upstream.counts.failures.fetch_add(1, Ordering::Relaxed);
        let now = self.upstream.now();
        self.upstream.health().breaker.refused(caller, now);
        self.judged = true;
    }

    /// Notes how many tokens came in all.
    pub fn told(&self, tokens: u64) {
        self.upstream.counts.tokens.fetch_add(tokens, Ordering::Relaxed);
        self.upstream.counts.token_micros.fetch_add(micros(self.began.elapsed()), Ordering::Relaxed);
    }
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.judged {
            let now = self.upstream.now();
            self.upstream.health().breaker.abandoned(now);
        }
        self.upstream.busy.fetch_sub(1, Ordering::Relaxed);
        if self.entry.is_bounded {
            self.entry.queue.gave(self.owner);
        }
    }
}
