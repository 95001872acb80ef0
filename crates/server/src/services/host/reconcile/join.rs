//! Asks the hosts that joined: one task for each keeps the line to it, follows what happens there, and writes into its row
//! how it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::gpu::Gpu;
use berth_domain::host::join::{LOST_SECONDS, Presence, is_lost, is_renewed};
use berth_domain::host::{Capacity, State, ask};
use berth_domain::ids::HostId;
use berth_domain::replica::AHEAD;
use berth_host::link::{HostName, Line};
use berth_host::wire::{Gone, Remote};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::stores::{Known, Reaching};
use crate::db::{DbError, keeper};
use crate::services::fleet::Engines;
use crate::services::host::store::host::HostRow;
use crate::services::host::{Enrolment, store};

/// Between two looks at which hosts there are, if nobody says that one came or went.
const LOOK: Duration = Duration::from_secs(5);
/// Between two looks at a host that answers.
const FRESH: Duration = Duration::from_secs(10);
/// Between two looks at one whose line breaks at once each time.
const AT_LEAST: Duration = Duration::from_millis(500);
/// Most GPUs of a host, and characters of each word that it says of itself.
const GPUS: usize = 64;
const WORD: usize = 200;
/// Between two tries to reach one that does not.
const RETRY: Duration = Duration::from_secs(2);

/// What a line is to: whoever joins again, or somewhere else, gets another one.
#[derive(Clone, PartialEq, Eq)]
struct Target {
    name: HostName,
    address: String,
}

/// A host that is asked.
struct Asking {
    target: Target,
    ends: CancellationToken,
    task: JoinHandle<()>,
}

/// Runs until told to stop.
pub async fn ask_all(enrolment: Enrolment, stop: CancellationToken) {
    let mut asked: HashMap<HostId, Asking> = HashMap::new();
    let mut gone = HashSet::new();
    while !stop.is_cancelled() {
        let looked = async {
            let rows = store::host::joined(&enrolment.hosts.db).await?;
            let own = enrolment.hosts.own();
            let others = rows.iter().filter(|row| row.id != own);
            follow(&enrolment, &mut asked, others.filter_map(target).collect(), &stop).await;
            give_up(&enrolment, &mut gone).await
        };
        match looked.await {
            Ok(()) => {}
            Err(error) => tracing::warn!(%error, "which hosts joined is not known; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = enrolment.changed.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    for (_, asking) in asked {
        let _ = asking.task.await;
    }
}

/// Has hosts that were removed with what they had stand in the fleet as hosts that will not come back, until nothing of that
/// has a row.
async fn give_up(enrolment: &Enrolment, gone: &mut HashSet<HostId>) -> Result<(), DbError> {
    for row in store::host::removed(&enrolment.hosts.db).await? {
        let is_empty = store::host::things(&enrolment.hosts.db, row.id).await?.is_none();
        if is_empty && gone.remove(&row.id) {
            enrolment.fleet.leave(row.id);
        } else if !is_empty && !gone.contains(&row.id) {
            match Remote::reach(Arc::new(Gone), &enrolment.spool.join(row.id.to_string())).await {
                Ok(remote) => enrolment.fleet.join(row.id, engines(remote)),
                Err(error) => return Err(DbError::Other(error.to_string())),
            }
            gone.insert(row.id);
        }
    }
    Ok(())
}

fn engines(remote: Remote) -> Engines {
    let remote = Arc::new(remote);
    Engines { vm: remote.clone(), sandbox: remote.clone(), network: remote }
}

/// Has those be asked that are wanted, and nobody else. Returns once the others are asked no more.
async fn follow(
    enrolment: &Enrolment,
    asked: &mut HashMap<HostId, Asking>,
    wanted: Vec<Target>,
    stop: &CancellationToken,
) {
    let is_wanted = |id: &HostId| wanted.iter().any(|target| target.name.id == *id);
    let gone: Vec<_> = asked.extract_if(|id, _| !is_wanted(id)).map(|(_, asking)| asking).collect();
    for asking in gone {
        asking.ends.cancel();
        let _ = asking.task.await;
    }
    for target in wanted {
        let id = target.name.id;
        let before = match asked.remove(&id) {
            Some(asking) if asking.target == target => {
                asked.insert(id, asking);
                continue;
            }
            before => before,
        };
        let (ends, of_next) = (stop.child_token(), target.clone());
        let (enrolment, until) = (enrolment.clone(), ends.clone());
        let task = tokio::spawn(async move {
            // The fleet has one of them at a time.
            if let Some(before) = before {
                before.ends.cancel();
                let _ = before.task.await;
            }
            ask(enrolment, of_next, until).await;
        });
        asked.insert(id, Asking { target, ends, task });
    }
}

fn target(row: &HostRow) -> Option<Target> {
    let name = HostName { id: row.id, enrolment: row.enrolment };
    Some(Target { name, address: row.addresses.first()?.clone() })
}

/// Asks one host until told to stop, or until it is another one's turn.
async fn ask(enrolment: Enrolment, target: Target, stop: CancellationToken) {
    let Target { name, address } = target;
    let (authority, clock) = (enrolment.authority.clone(), enrolment.hosts.clock.clone());
    let term = enrolment.hosts.db.in_term();
    let at = (address.clone(), name);
    let line = Arc::new(Line::new(at, authority, clock, enrolment.patience, Box::new(move || term.now())));
    let seen = enrolment.hosts.clock.now();
    let reaching = Reaching::new(enrolment.hosts.clone(), name.id);
    let mut asked = Asked { enrolment, name, line: line.clone(), remote: None, reaching, seen, is_outdone: false };
    while !stop.is_cancelled() {
        let Some(found) = stop.run_until_cancelled(Box::pin(asked.look(&stop))).await else { break };
        asked.outdo().await;
        let pause = if found.is_ok() { FRESH } else { RETRY };
        if let Err(error) = asked.record(found, &address).await {
            tracing::warn!(host = %name.id, %error, "the row of a host cannot be kept fresh; trying again");
        }
        tokio::select! {
            () = stop.cancelled() => {}
            // One that breaks is tried again at once, so that what is wrong stands in the row soon.
            () = async {
                line.ended().await;
                tokio::time::sleep(AT_LEAST).await;
            } => asked.reaching.again(),
            () = tokio::time::sleep(pause) => {}
        }
    }
    line.close();
    asked.enrolment.fleet.leave(name.id);
}

struct Asked {
    enrolment: Enrolment,
    name: HostName,
    line: Arc<Line>,
    remote: Option<Remote>,
    reaching: Reaching,
    /// When it was there last, or since when this service asks it: what a row says of that may be another one's clock.
    seen: Timestamp,
    /// Whether a term was begun because of what it said.
    is_outdone: bool,
}

/// A host as it says that it is.
struct Found {
    presence: Presence,
    gpus: Option<Vec<Gpu>>,
    /// Which stores it reaches, if that is known anew.
    stores: Option<Known>,
    /// When its new certificate ends, if it was given one.
    renewed: Option<Timestamp>,
}

impl Asked {
    /// Has a host say how it is; the first time it becomes one of the fleet.
    async fn look(&mut self, stop: &CancellationToken) -> Result<Found, String> {
        let presence = self.line.presence().await.map_err(|error| error.to_string())?;
        let remote = match &self.remote {
            Some(remote) => remote.clone(),
            None => self.enlist(stop).await.map_err(|error| error.to_string())?,
        };
        // One that answers no questions, as of another version, is not there for anybody.
        remote.describe().await.map_err(|error| error.to_string())?;
        let gpus = remote.ask(ask::host::Gpus {}).await;
        let gpus = gpus.inspect_err(|error| tracing::debug!(%error, "a host does not say which GPUs it has")).ok();
        let now = self.enrolment.hosts.clock.now();
        let stores = self.reaching.look(|| Arc::new(remote.clone()), now).await;
        Ok(Found { presence, gpus, stores, renewed: self.renew().await })
    }

    /// Where the host was asked in a later term than this service's: has its term be a later one, if it still has the
    /// database, which then is an older copy. Otherwise that later service has it, and this one ends.
    ///
    /// Once for each host and line: each term has all hosts drop what is under way, and one that lies may not do that again and
    /// again.
    async fn outdo(&mut self) {
        let db = &self.enrolment.hosts.db;
        let Some(later) = self.line.refused_for().filter(|later| *later > db.term()) else { return };
        let host = self.name.id;
        if later - db.term() > AHEAD || self.is_outdone {
            tracing::error!(%host, later, "a host says that it was asked in a term that cannot be; it is not asked");
            return;
        }
        match keeper::outdo(db, later).await {
            Ok(true) => {
                self.is_outdone = true;
                tracing::warn!(%host, later, "a host was asked in a later term; this service begins one after it");
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%host, %error, "a host was asked in a later term; trying again"),
        }
    }

    async fn enlist(&mut self, stop: &CancellationToken) -> berth_host::Result<Remote> {
        let spool = self.enrolment.spool.join(self.name.id.to_string());
        let remote = Remote::reach(self.line.clone(), &spool).await?;
        tokio::spawn({
            let (remote, stop) = (remote.clone(), stop.clone());
            async move { remote.follow(stop).await }
        });
        self.enrolment.fleet.join(self.name.id, engines(remote.clone()));
        self.remote = Some(remote.clone());
        Ok(remote)
    }

    /// Renews the certificate if that is due. What fails is tried again with the next look, for days.
    async fn renew(&self) -> Option<Timestamp> {
        let hosts = &self.enrolment.hosts;
        let row = store::host::find(&hosts.db, self.name.id).await.ok()??;
        if !row.certificate_until.is_none_or(|until| is_renewed(until, hosts.clock.now())) {
            return None;
        }
        match self.line.renew().await {
            Ok(until) => {
                tracing::info!(host = %row.id, name = row.name(), until = %until, "the certificate of a host is renewed");
                Some(until)
            }
            Err(error) => {
                tracing::warn!(host = %row.id, name = row.name(), %error, "the certificate of a host is not renewed");
                None
            }
        }
    }

    /// Writes how it is, and says in the log what became otherwise.
    async fn record(&mut self, found: Result<Found, String>, address: &str) -> Result<(), DbError> {
        let hosts = &self.enrolment.hosts;
        let now = hosts.clock.now();
        let mut tx = hosts.db.begin().await?;
        let known = store::host::find(&mut tx, self.name.id).await?;
        // Meanwhile it was removed, or it joined again: another task asks it.
        let Some(known) = known.filter(|known| known.enrolment == self.name.enrolment) else { return Ok(()) };
        self.reaching.fenced(!known.fences.is_empty());
        let row = match found {
            Ok(found) => {
                self.seen = now;
                fresh(known.clone(), found, now)
            }
            Err(why) => {
                self.reaching.again();
                let state = if is_lost(self.seen, now) { State::Lost } else { known.state };
                HostRow { state, trouble: Some(format!("{address}: {why}")), ..known.clone() }
            }
        };
        store::host::put(&mut tx, Some(&known), &row).await?;
        tx.commit().await?;
        tell(&known, &row);
        Ok(())
    }
}

fn fresh(known: HostRow, found: Found, now: Timestamp) -> HostRow {
    let Presence { name, version, boot, cpus, memory_mb, mut overcommit, missing } = found.presence;
    let word = |text: String| -> String { text.chars().filter(|c| !c.is_control()).take(WORD).collect() };
    let (name, version, boot, missing) = (word(name), word(version), word(boot), missing.map(word));
    overcommit.retain(|kind, _| ["vm", "sandbox"].contains(&kind.as_str()));
    let state = if known.state == State::Lost { State::Ready } else { known.state };
    let mut row = HostRow {
        name,
        capacity: Capacity { cpus, memory_mb },
        gpus: found.gpus.map_or(known.gpus, |mut gpus| {
            gpus.truncate(GPUS);
            gpus
        }),
        overcommit,
        boot: Some(boot),
        version: Some(version),
        certificate_until: found.renewed.or(known.certificate_until),
        state,
        trouble: missing,
        last_seen: now,
        ..known
    };
    if let Some(stores) = found.stores {
        stores.note(&mut row);
    }
    row
}

fn tell(before: &HostRow, now: &HostRow) {
    let (host, name) = (before.id, now.name());
    let why = now.trouble.as_deref().unwrap_or_default();
    match (before.state, now.state) {
        (State::Lost, State::Ready) => tracing::info!(%host, name, "a host is there"),
        (State::Ready, State::Lost) => {
            tracing::error!(%host, name, why, "a host is lost: it has not answered for {LOST_SECONDS} seconds");
        }
        _ if before.trouble != now.trouble && now.trouble.is_some() => {
            tracing::warn!(%host, name, why, "something is wrong with a host");
        }
        _ => {}
    }
}
