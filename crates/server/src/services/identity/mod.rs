//! Identity: people, organizations, projects, keys; who calls, and what of it they may see.
//!
//! Invariants of this house:
//!
//! - A warm request is authenticated and scoped without the database: tokens that were verified, sessions
//!   that live, keys, and scopes that were resolved are kept in a cache. Our own writes change that cache in
//!   the same breath; where another service may have taken over the database, nothing in it is older than a second.
//! - No secret is at rest in clear: passwords, tokens, codes and keys are hashes, successors and the keys that
//!   sign are sealed. A mail's link is made when the mail is sent, so the outbox holds none either.
//! - What a caller cannot see answers exactly as what does not exist. Whether an address has an account is
//!   told by no answer and by no time.

mod absence;
mod api;
mod barred;
mod cache;
mod gate;
mod limiter;
mod limits;
mod mail;
mod notice;
mod ops;
mod password;
mod recent;
mod reconcile;
mod service;
mod standing;
mod store;
mod throttle;
mod token;
mod wire;

use std::sync::{Arc, RwLock};

use anyhow::Context;
use async_trait::async_trait;
use berth_domain::Result;
use berth_domain::ids::OrgId;
use berth_host::clock::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::{Holder, Suspensions};
use crate::config::Config;
use crate::db::Db;
use crate::http::client_address::ClientNetwork;
use crate::seal::Sealer;
use crate::work::lifecycle::Lifecycle;
use cache::AuthCache;
use service::Inner;

pub use ops::user::FirstLogin;
pub use service::Identity;

/// Messages that are sent at the same time.
const CARRIERS: usize = 4;

impl Identity {
    /// Counts a try of somebody who is not signed in and presents what they were given, for where they come from.
    ///
    /// # Errors
    /// There were enough of them.
    pub fn count_try(&self, from: ClientNetwork) -> Result<()> {
        self.inner.limits.network(limits::Door::Proof, from, self.inner.clock.now())
    }

    /// Starts it: makes a signing key and the first administrator where there is none. The holders are the
    /// services that keep things in projects. With it comes the first administrator's login, if it was made up.
    pub async fn start(
        db: Db,
        clock: Clock,
        config: &Config,
        sealer: Sealer,
        holders: Vec<Arc<dyn Holder>>,
    ) -> anyhow::Result<(Self, Option<FirstLogin>)> {
        let settings = config.identity.clone();
        let name = if settings.issuer.is_empty() { config.base_url.clone() } else { settings.issuer.clone() };
        let issuer = token::Issuer { name, is_one_of_several: config.replica.is_one() };
        let keys = ops::signing_key::at_start(&db, &clock, &sealer, config.secrets.replaces_lost_key).await.context(
            "the keys that sign access tokens cannot be read; if the key of secrets is lost, type: berth serve \
             --new-secrets-key",
        )?;
        let inner = Inner {
            hasher: password::Hasher::new(&settings)?,
            throttle: throttle::Throttle::new(&settings),
            limits: limits::Limits::new(&settings),
            limiter: limiter::Limiter::new(settings.requests_per_minute_per_credential),
            signer: RwLock::new(Arc::new(ops::signing_key::signer(&sealer, &keys, &issuer, &settings.audience)?)),
            cache: AuthCache::new(db.is_shared()),
            carrier: mail::Carrier::new(config)?,
            audit: config.audit.clone(),
            notices: notice::Notices::default(),
            sealer,
            base_url: config.base_url.clone(),
            sign_up: config.sign_up(),
            config: settings,
            quota: config.quota,
            issuer,
            holders,
            db,
            clock,
        };
        let identity = Self { inner: Arc::new(inner) };
        let login = ops::user::first_administrator(&identity, config).await?;
        Ok((identity, login))
    }

    /// Its routes.
    pub fn routes(&self) -> OpenApiRouter {
        api::routes().with_state(self.clone())
    }

    /// Its workers, until told to stop.
    pub fn spawn_workers(&self, tasks: &mut JoinSet<()>, stop: &CancellationToken) {
        let inner = &self.inner;
        let life = reconcile::outbox::MessageLife::new(self.clone());
        Lifecycle::new(life, inner.clock.clone(), stop.clone()).spawn(tasks, &inner.db, CARRIERS);
        tasks.spawn(reconcile::housekeeping::run(self.clone(), stop.clone()));
    }
}

#[async_trait]
impl Suspensions for Identity {
    async fn suspended(&self) -> Result<Vec<OrgId>> {
        Ok(store::org::suspended(&self.inner.db).await?)
    }
}
