//! A replica that stands by: its host answers the active replica, and what comes to its addresses is passed on to that,
//! until it is this one's turn.
//!
//! It looks at the database every second, and writes there once, which host it has. What the active service has to do for
//! its turn to end says [`berth_domain::replica`].

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use berth_domain::ids::HostId;
use berth_domain::replica::{RENEW, Watch};
use berth_host::clock::Clock;
use berth_host::link::{Authority, HostName, Papers, Pem};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::doors::Bound;
use super::engines::reached;
use super::process::{ENDING, Signals, ended};
use super::{folder, joined, own, replica_door};
use crate::config::Config;
use crate::db::keeper::{self, Keeper, KeeperRow};
use crate::db::{Db, DbError};
use crate::http::client_address::TrustedProxies;
use crate::http::pass_on::{Active, PassOn};
use crate::http::tls::Certificate;
use crate::seal::Sealer;
use crate::services::fleet::Engines;
use crate::services::host::{self, Hosts};

/// Between two looks at who is active.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks at the database between two at this host's row.
const AGAIN: u32 = 30;
/// How long closing the database may take.
const LEAVING: Duration = Duration::from_secs(5);
/// Connections to the database: one looks, and one writes once.
const CONNECTIONS: u32 = 2;

/// Waits until it is this replica's turn, and takes it; `false` where the process is told to end before.
pub(super) async fn stand_by(
    config: &Config,
    (bound, certificate): (&Bound, Option<Arc<Certificate>>),
    signals: &mut Signals,
) -> Result<bool> {
    let config = &reached(config)?;
    let wait = Duration::from_secs(config.database_wait_seconds);
    let db = Db::connect(&config.database_url, wait, CONNECTIONS).await.context("the database cannot be opened")?;
    let (keeper, watch, active) = (folder::keeper(config)?, Watch::default(), watch::Sender::new(None));
    let mut standby = Standby {
        config,
        bound,
        certificate,
        db,
        keeper,
        watch,
        active,
        engines: None,
        looks: 0,
        told: None,
        warned: None,
    };
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let mut outcome = tokio::select! {
        outcome = standby.until_active(&mut tasks, &stop) => outcome.map(|()| true),
        () = signals.next() => {
            tracing::info!("draining; machines keep running");
            Ok(false)
        }
    };
    stop.cancel();
    standby.active.send_replace(None);
    // What was asked of this host before has ended when this one acts on it, and the schema is of its version. Meanwhile it lives.
    let becomes = matches!(outcome, Ok(true));
    let ready = async {
        ended(&mut tasks, ENDING).await;
        if becomes { standby.db.migrate().await } else { Ok(()) }
    };
    tokio::select! {
        done = ready => if let Err(error) = done {
            outcome = Err(error).context("the database cannot be brought up to date");
        },
        () = standby.lives() => {}
        () = signals.next() => outcome = Ok(false),
    }
    if !matches!(outcome, Ok(true)) && standby.db.term() > 0 {
        folder::give_up(config).await;
    }
    let _ = tokio::time::timeout(LEAVING, standby.db.close()).await;
    outcome
}

struct Standby<'a> {
    config: &'a Config,
    bound: &'a Bound,
    certificate: Option<Arc<Certificate>>,
    db: Db,
    keeper: Keeper,
    watch: Watch,
    /// Who is active, for what is passed on.
    active: watch::Sender<Option<Active>>,
    /// What runs on this host, once it answers.
    engines: Option<Engines>,
    /// How often it has looked.
    looks: u32,
    /// What was said last in the log of who is active.
    told: Option<String>,
    /// What was said last there that is wrong.
    warned: Option<String>,
}

/// Whose turn it is.
enum Turn {
    /// This replica's, which is active from now on.
    Own,
    /// Another one's, as the database has it.
    Other(KeeperRow),
    /// This one's, which cannot take it.
    Missed,
}

impl Standby<'_> {
    async fn until_active(&mut self, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Result<()> {
        loop {
            match self.look().await {
                Ok(Turn::Own) => return Ok(()),
                Ok(Turn::Missed) => self.follow(None),
                Ok(Turn::Other(active)) => {
                    self.follow(Some(&active.keeper));
                    self.tell(&active);
                    if tasks.is_empty()
                        && let Err(error) = self.answer(&active, tasks, stop).await
                    {
                        // What a database says that goes away, or is of another version, is no mistake of this replica's.
                        if self.db.is_current().await.unwrap_or(false) {
                            return Err(error);
                        }
                        self.warn(format!("this host does not answer yet; trying again: {error:#}"));
                    }
                    self.stays_known().await;
                }
                Err(error) => {
                    self.warn(format!("the database does not say which replica is active; trying again: {error}"));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                Some(ended) = tasks.join_next() => {
                    return Err(match ended {
                        Err(error) => anyhow!("a worker of the standby failed: {error}"),
                        Ok(()) => anyhow!("a worker of the standby ended by itself"),
                    });
                }
            }
        }
    }

    async fn look(&mut self) -> Result<Turn, DbError> {
        let known = match keeper::find(&self.db).await {
            // New, or of a version that had none.
            Err(DbError::NoTable(_)) => {
                self.db.migrate().await?;
                None
            }
            found => found?,
        };
        let Some(known) = known else {
            let is_first = keeper::claim(&self.db, &self.keeper, None, now()).await?;
            let other = if is_first { None } else { keeper::find(&self.db).await? };
            return Ok(other.map_or(Turn::Own, Turn::Other));
        };
        let silent = self.watch.is_silent(known.sign, folder::uptime()).then_some(known.sign);
        let is_single = known.keeper.address.is_none();
        if is_single && known.is_free_for(&self.keeper, silent) {
            // It was a single service, maybe of a version that knew no terms.
            self.db.migrate().await?;
        }
        let takes_over = is_single && self.config.take_over;
        let is_free = takes_over || known.is_free_for(&self.keeper, silent);
        if is_free && let Some(step) = self.db.newer_step().await? {
            self.warn(format!(
                "it is this replica's turn, which it cannot take: a newer Berth wrote the database (step {step} of its schema). \
                 Install that version here, too"
            ));
            return Ok(Turn::Missed);
        }
        let is_turn = if takes_over {
            keeper::take(&self.db, &self.keeper, true, now()).await?.is_ok()
        } else {
            known.is_free_for(&self.keeper, silent) && keeper::claim(&self.db, &self.keeper, silent, now()).await?
        };
        Ok(if is_turn { Turn::Own } else { Turn::Other(known) })
    }

    /// Has this host have its row again where an administrator removed it as lost.
    async fn stays_known(&mut self) {
        self.looks += 1;
        let Some(engines) = self.engines.clone().filter(|_| self.looks.is_multiple_of(AGAIN)) else { return };
        let enlisted = async {
            if host::find(&self.db, HostId(self.keeper.folder)).await?.is_none() {
                self.enlist(&engines).await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = enlisted.await {
            self.warn(format!("whether this host has a row is not known; trying again: {error:#}"));
        }
    }

    async fn enlist(&self, engines: &Engines) -> Result<()> {
        let probe = own::probe(self.config, engines.vm.clone());
        let own = own::own(self.config, &self.keeper);
        Ok(Hosts::stand_by(&self.db, &Clock::default(), own, probe).await?)
    }

    fn warn(&mut self, told: String) {
        if self.warned.as_ref() != Some(&told) {
            tracing::warn!("{told}");
            self.warned = Some(told);
        }
    }

    /// Says that this replica lives, which has taken the database and is not active yet.
    async fn lives(&self) {
        loop {
            tokio::time::sleep(RENEW).await;
            if let Err(error) = keeper::seen(&self.db, self.keeper.run, now()).await {
                tracing::warn!(%error, "the database cannot be told that this replica is about to be active");
            }
        }
    }

    fn follow(&self, active: Option<&Keeper>) {
        let active = active.and_then(|active| {
            let name = host::name_of_replica(HostId(active.folder));
            active.address.clone().map(|address| Active { address, name })
        });
        self.active.send_if_modified(|known| {
            let differs = *known != active;
            *known = active;
            differs
        });
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

    /// Has this host answer whoever is active, and what comes to this replica be passed on there.
    async fn answer(&mut self, active: &KeeperRow, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Result<()> {
        let config = self.config;
        let is_known = host::find(&self.db, HostId(self.keeper.folder)).await?.is_some();
        folder::admit_standby(config, &self.keeper, &self.db, active, is_known).await?;
        let sealer = Sealer::open(&config.secrets, &self.db).await?;
        // The first service of a database makes it before it answers.
        let Some(authority) = host::authority(&self.db, &sealer).await?.map(Arc::new) else { return Ok(()) };
        let engines = Engines::of_this_host(config).await?;
        let papers = papers(&authority, host::name_of_replica(HostId(self.keeper.folder)))?;
        let listener = replica_door::listener(config).await?;
        self.enlist(&engines).await?;
        self.engines = Some(engines.clone());
        joined::answer((config, engines), papers, listener, (tasks, stop))?;
        let trusted = TrustedProxies::new(config.http.trusted_proxies.clone());
        let pass_on = PassOn::new(authority, Clock::default(), self.active.subscribe(), trusted);
        let doors = self.bound.pass_on(config, self.certificate.clone(), &pass_on)?;
        let stop = stop.clone();
        tasks.spawn(async move {
            if let Err(error) = doors.serve(stop).await {
                tracing::error!(%error, "connections cannot be served");
            }
        });
        Ok(())
    }
}

/// The papers of the host of a replica, made by itself: it has the platform's authority. They last for as long as it stands
/// by, and the active one renews them.
fn papers(authority: &Authority, name: HostName) -> Result<Papers> {
    let (pem, _) = Pem::made(authority, name, now())?;
    Papers::new(pem, |_| Ok(())).context("the papers of this host do not fit together")
}

fn now() -> berth_domain::Timestamp {
    Clock::default().now()
}
