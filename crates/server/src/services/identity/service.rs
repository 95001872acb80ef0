//! The identity service as its routes and workers see it: the rows, what is remembered of them, and what signs, hashes
//! and carries.

use std::sync::{Arc, PoisonError, RwLock};

use berth_domain::ids::OrgId;
use berth_host::clock::Clock;

use super::cache::AuthCache;
use super::{limiter, limits, mail, notice, password, throttle, token};
use crate::config::SignUpMode;
use crate::db::{Db, Tx};
use crate::seal::Sealer;
use crate::services::Holder;

/// The identity service.
#[derive(Clone)]
pub struct Identity {
    pub(super) inner: Arc<Inner>,
}

/// What all copies of the service share.
pub(super) struct Inner {
    pub db: Db,
    pub clock: Clock,
    pub config: crate::config::Identity,
    pub audit: crate::config::Audit,
    pub notices: notice::Notices,
    pub sealer: Sealer,
    pub quota: crate::config::Quota,
    pub sign_up: SignUpMode,
    pub base_url: String,
    pub issuer: token::Issuer,
    pub hasher: password::Hasher,
    pub throttle: throttle::Throttle,
    pub limiter: limiter::Limiter,
    pub limits: limits::Limits,
    pub signer: RwLock<Arc<token::Signer>>,
    pub cache: AuthCache,
    pub carrier: mail::Carrier,
    pub holders: Vec<Arc<dyn Holder>>,
}

impl Identity {
    /// Has what is remembered follow a change, once that is committed, though who asked for it may have left by then.
    pub(super) fn once_committed(&self, tx: &mut Tx, follow: impl FnOnce(&Inner) + Send + 'static) {
        let inner = self.inner.clone();
        tx.once_committed(move || follow(&inner));
    }

    /// The same of what is remembered of an organization.
    pub(super) fn forgets_org(&self, tx: &mut Tx, org: OrgId) {
        self.once_committed(tx, move |inner| inner.cache.forget_org(org));
    }

    /// What signs access tokens now.
    pub(super) fn signer(&self) -> Arc<token::Signer> {
        self.inner.signer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
