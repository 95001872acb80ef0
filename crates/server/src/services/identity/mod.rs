//! Identity: people, organizations, projects, keys; who calls, and what of it they may see.
//!
//! Invariants of this house:
//!
//! - A warm request is authenticated and scoped without the database: tokens that were verified, sessions
//!   that live, keys, and scopes that were resolved are kept in memory. Our own writes change that memory in
//!   the same breath; where another service may have taken over the database, nothing in it is older than a second.
//! - No secret is at rest in clear: passwords, tokens, codes and keys are hashes, successors and the keys that
//!   sign are sealed. A mail's link is made when the mail is sent, so the outbox holds none either.
//! - What a caller cannot see answers exactly as what does not exist. Whether an address has an account is
//!   told by no answer and by no time.

mod api;
mod gate;
mod limiter;
mod limits;
mod mail;
mod memory;
mod notice;
mod ops;
mod password;
mod recent;
mod reconcile;
mod standing;
mod store;
mod throttle;
mod token;
mod wire;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Context;
use async_trait::async_trait;
use berth_domain::ids::OrgId;
use berth_domain::{Code, Error, Result};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::{Holder, Suspensions};
use crate::clock::Clock;
use crate::config::{Config, SignUpMode};
use crate::db::{Db, Tx};
use crate::seal::Sealer;
use crate::work::lifecycle::Lifecycle;
use memory::Memory;

/// Messages that are sent at the same time.
const CARRIERS: usize = 4;

/// The identity service.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    clock: Clock,
    config: crate::config::Identity,
    audit: crate::config::Audit,
    notices: notice::Notices,
    sealer: Sealer,
    quota: crate::config::Quota,
    sign_up: SignUpMode,
    base_url: String,
    issuer: String,
    hasher: password::Hasher,
    throttle: throttle::Throttle,
    limiter: limiter::Limiter,
    limits: limits::Limits,
    signer: RwLock<Arc<token::Signer>>,
    memory: Memory,
    carrier: mail::Carrier,
    holders: Vec<Arc<dyn Holder>>,
}

/// The first administrator, whose password was made up.
#[derive(Clone, Debug)]
pub struct FirstLogin {
    /// The address to sign in with.
    pub email: String,
    /// The file with the address and the password, each in a line.
    pub file: PathBuf,
}

impl Identity {
    /// Has what is remembered follow a change, once that is committed, though who asked for it may have left by then.
    fn once_committed(&self, tx: &mut Tx, follow: impl FnOnce(&Inner) + Send + 'static) {
        let inner = self.inner.clone();
        tx.once_committed(move || follow(&inner));
    }

    /// The same of what is remembered of an organization.
    fn forgets_org(&self, tx: &mut Tx, org: OrgId) {
        self.once_committed(tx, move |inner| inner.memory.forget_org(org));
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
        let issuer = if settings.issuer.is_empty() { config.base_url.clone() } else { settings.issuer.clone() };
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
            memory: Memory::new(db.is_shared()),
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

    fn signer(&self) -> Arc<token::Signer> {
        self.inner.signer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Suspensions for Identity {
    async fn suspended(&self) -> Result<Vec<OrgId>> {
        Ok(store::org::suspended(&self.inner.db).await?)
    }
}

/// The 404 of an organization.
fn org_not_found() -> Error {
    Error::new(Code::OrganizationNotFound, "There is no such organization, or you do not belong to it.")
}

/// The 404 of a project, and of everything in an organization that the caller cannot see.
fn project_not_found() -> Error {
    Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it.")
}

/// The 404 of something that belongs to an organization, a project or a person.
fn not_found(what: &str) -> Error {
    Error::new(Code::NotFound, format!("There is no such {what} here."))
}
