//! A replica that stands by: its host answers the active replica, until it is this one's turn.
//!
//! It looks at the database every second, and writes there once, which host it has. What the active service has to do for
//! its turn to end says [`berth_domain::replica`].

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use berth_domain::replica::Watch;
use berth_host::clock::Clock;
use berth_host::link::{self, Authority, HostName, Papers, Pem};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engines::reached;
use super::process::{ENDING, Signals, ended};
use super::{folder, joined, listener, own};
use crate::config::Config;
use crate::db::keeper::{self, Keeper, KeeperRow};
use crate::db::{Db, DbError};
use crate::seal::Sealer;
use crate::services::fleet::Engines;
use crate::services::host::{self, Hosts};

/// Between two looks at who is active.
const LOOK: Duration = Duration::from_secs(1);
/// Connections to the database: one looks, and one writes once.
const CONNECTIONS: u32 = 2;

/// Waits until it is this replica's turn, and takes it; `false` where the process is told to end before.
pub(super) async fn stand_by(config: &Config, signals: &mut Signals) -> Result<bool> {
    let config = &reached(config)?;
    let wait = Duration::from_secs(config.database_wait_seconds);
    let db = Db::connect(&config.database_url, wait, CONNECTIONS).await.context("the database cannot be opened")?;
    let mut standby = Standby { config, db, keeper: folder::keeper(config)?, watch: Watch::default(), told: None };
    let (stop, mut host) = (CancellationToken::new(), JoinSet::new());
    let outcome = tokio::select! {
        outcome = standby.until_active(&mut host, &stop) => outcome.map(|()| true),
        () = signals.next() => {
            tracing::info!("draining; machines keep running");
            Ok(false)
        }
    };
    stop.cancel();
    // Nobody else acts on this host from here on: what was asked of it before has ended.
    ended(&mut host, ENDING).await;
    standby.db.close().await;
    outcome
}

struct Standby<'a> {
    config: &'a Config,
    db: Db,
    keeper: Keeper,
    watch: Watch,
    /// What was said last in the log.
    told: Option<String>,
}

impl Standby<'_> {
    async fn until_active(&mut self, host: &mut JoinSet<()>, stop: &CancellationToken) -> Result<()> {
        loop {
            match self.look().await {
                Ok(None) => return Ok(()),
                Ok(Some(active)) => {
                    self.tell(&active);
                    // One of another version may know other rows of hosts.
                    if host.is_empty() && self.db.is_current().await.unwrap_or(false) {
                        self.answer(host, stop).await?;
                    }
                }
                Err(error) => {
                    let told = format!("the database does not say which replica is active; trying again: {error}");
                    if self.told.as_ref() != Some(&told) {
                        tracing::warn!("{told}");
                        self.told = Some(told);
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                Some(ended) = host.join_next() => {
                    return Err(match ended {
                        Err(error) => anyhow!("a worker of the host failed: {error}"),
                        Ok(()) => anyhow!("a worker of the host ended by itself"),
                    });
                }
            }
        }
    }

    /// Who is active; none where it is this one.
    async fn look(&mut self) -> Result<Option<KeeperRow>, DbError> {
        let known = match keeper::find(&self.db).await {
            // New, or of a version that had none.
            Err(DbError::NoTable(_)) => return Ok(None),
            found => found?,
        };
        let Some(known) = known else { return Ok(None) };
        let silent = self.watch.is_silent(known.sign, folder::uptime()).then_some(known.sign);
        if known.is_free_for(&self.keeper, silent)
            && (!self.db.is_current().await? || keeper::claim(&self.db, &self.keeper, silent, now()).await?)
        {
            return Ok(None);
        }
        Ok(Some(known))
    }

    fn tell(&mut self, active: &KeeperRow) {
        let Keeper { path, host, address, .. } = &active.keeper;
        let told = match address {
            Some(address) => format!("standing by: the replica at {address} is active"),
            None => format!(
                "standing by, and nobody may take over: the service that has the database, on the data folder {path} of \
                 host {host}, is no replica; set BERTH_REPLICA_ADDRESS there, too, and restart it"
            ),
        };
        if self.told.as_ref() != Some(&told) {
            tracing::info!("{told}");
            println!("{told}");
            self.told = Some(told);
        }
    }

    /// Has this host answer whoever is active.
    async fn answer(&self, host: &mut JoinSet<()>, stop: &CancellationToken) -> Result<()> {
        let config = self.config;
        let sealer = Sealer::open(&config.secrets, &self.db).await?;
        // The first service of a database makes it before it answers.
        let Some(authority) = host::authority(&self.db, &sealer).await? else { return Ok(()) };
        let engines = Engines::of_this_host(config).await?;
        let probe = own::probe(config, engines.vm.clone());
        let name = Hosts::stand_by(&self.db, &Clock::default(), own::own(config, &self.keeper), probe).await?;
        let papers = papers(&authority, name)?;
        let listener = listener::bound(config.replica.listens_at()).await?;
        joined::answer((config, engines), papers, listener, (host, stop))
    }
}

/// The papers of the host of a replica, made by itself: it has the platform's authority. They last for as long as it stands
/// by, and the active one renews them.
fn papers(authority: &Authority, name: HostName) -> Result<Papers> {
    let (key, csr) = link::request()?;
    let (certificate, _) = authority.host(name, &csr, now())?;
    let pem = Pem { key, certificate, authority: authority.pem().into() };
    Papers::new(pem, |_| Ok(())).context("the papers of this host do not fit together")
}

fn now() -> berth_domain::Timestamp {
    Clock::default().now()
}
