//! How hosts join, as routes and workers see it.

use std::path::PathBuf;
use std::sync::Arc;

use berth_domain::Result;
use berth_host::link::{Authority, Patience};
use tokio::sync::Notify;

use super::{Hosts, authority};
use crate::http::client_address::ClientNetwork;
use crate::seal::Sealer;
use crate::services::fleet::Fleet;

/// Counts a try of somebody who is not signed in, for where they come from.
pub type Counted = Arc<dyn Fn(ClientNetwork) -> Result<()> + Send + Sync>;

/// How hosts join and are asked from then on.
#[derive(Clone)]
pub struct Enrolment {
    pub(super) hosts: Hosts,
    pub(super) fleet: Fleet,
    pub(super) authority: Arc<Authority>,
    /// What hosts get later lies below this.
    pub(super) spool: PathBuf,
    pub(super) patience: Patience,
    pub(super) counted: Counted,
    /// Told when hosts joined or were removed.
    pub(super) changed: Arc<Notify>,
}

impl Enrolment {
    /// The platform's authority.
    pub fn authority(&self) -> Arc<Authority> {
        self.authority.clone()
    }

    /// Opens the platform's authority; with `anew` one that does not open is made anew.
    ///
    /// # Errors
    /// It does not open.
    pub async fn open(
        hosts: Hosts,
        fleet: Fleet,
        (sealer, anew): (&Sealer, bool),
        spool: PathBuf,
        counted: Counted,
    ) -> Result<Self> {
        let authority = authority::open(&hosts.db, &hosts.clock, sealer, anew).await?.into();
        Ok(Self { hosts, fleet, authority, spool, patience: Patience::default(), counted, changed: Arc::default() })
    }
}
