//! Keeps what is to outlive its host on a second one, too, or in the store of backups, and has it be at home on another host once
//! its own is lost.
//!
//! Sandboxes that are paused and snapshots stand still, so that what another host has of them is never out of date: a disk is
//! frozen where it is, under a new top that is made where it starts next, its layers are copied as those of templates are, and
//! then the memory comes. Everything is decided by rows (`domain::sandbox::durable`), every few seconds anew; whatever broke off
//! is found again by whichever service looks next. Organizations take turns, and whose host is lost waits for nobody.

mod way;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::State;
use berth_domain::ids::{HostId, LayerId, MemoryId, OrgId};
use berth_domain::sandbox::durable::{
    Hosts, Keeping, Platform, Remembered, Resting, Second, is_stored, is_whole_in, keeping,
};
use berth_domain::sandbox::layer_copy::{CopyState, Lying, lacking};
use berth_domain::sandbox::{Phase, Wish};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use self::way::{Goal, Way};
use super::capacity::{Asked, Offers, offers, place};
use super::memory_travel::{self, Travelled};
use super::sandbox::SandboxLife;
use super::{StepError, archive};
use crate::db::{On, Tx};
use crate::services::depot::Depot;
use crate::services::placement::states;
use crate::services::sandbox::Sandboxes;
use crate::services::sandbox::store;
use crate::services::sandbox::store::archive::Thing;
use crate::services::sandbox::store::copied::Copied;
use crate::services::sandbox::store::durable::{AtRest, Durable};
use crate::services::sandbox::store::sandbox::SandboxRow;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Seconds until something is looked at again that is under way.
const SOON: i64 = 4;
/// The same of what is kept.
const KEPT: i64 = 60;
/// The same of what no host took, or what could not be done.
const AGAIN: i64 = 120;
/// Seconds until a host is asked again that did not take a memory, or a layer.
const REFUSED: i64 = 3600;
/// Seconds from the service's beginning in which it believes of no host that it is lost: it has asked none before.
const BEGINNING: i64 = 30;
/// While so many layers come to hosts, no others are wished: what is made or leaves its host goes first.
const COMING: i64 = 8;
/// Memories that are carried to hosts at a time, and what is carried to the store at a time.
const CARRIERS: usize = 2;
/// How long a memory may take to come to a host.
const CARRYING: Duration = Duration::from_hours(1);

/// Looks at what is to outlive its host, until told to stop.
pub async fn watch(sandboxes: Sandboxes, stop: CancellationToken) {
    let mut keeper = Keeper::new(sandboxes);
    let looks = async {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Err(error) = keeper.look().await {
                tracing::warn!(?error, "what is to outlive its host could not be looked at; trying again");
            }
        }
    };
    stop.run_until_cancelled(Box::pin(looks)).await;
}

/// Whoever looks, and what it remembers from look to look.
struct Keeper {
    sandboxes: Sandboxes,
    life: SandboxLife,
    /// The hosts of the last look.
    hosts: Hosts,
    /// Until when something need not be looked at that stands as it did.
    rest: HashMap<Durable, (AtRest, Timestamp)>,
    /// When a host was looked for.
    asked: HashMap<Durable, Timestamp>,
    /// When something of an organization was carried last.
    turns: HashMap<OrgId, Timestamp>,
    /// Hosts that did not take a memory, and when.
    refused: HashMap<(MemoryId, HostId), Timestamp>,
    /// What is carried, each by a task.
    carriers: JoinSet<Result<Travelled, StepError>>,
    /// What each of these tasks carries.
    on_their_way: HashMap<Id, Way>,
}

/// What one look found and did so far.
#[derive(Default)]
struct Round {
    /// What hosts have at this moment, once somebody asked.
    offers: Option<Offers>,
    /// Organizations for which a host was looked for: each has one turn.
    asked: HashSet<OrgId>,
}

/// The hosts as they stand.
async fn hosts(on: impl On) -> Result<Hosts, StepError> {
    let mut hosts = Hosts::default();
    for (host, state) in states(on).await? {
        match state {
            State::Lost | State::Joining => continue,
            State::Ready => hosts.takers.push(host),
            _ => {}
        }
        if state != State::Draining {
            hosts.staying.push(host);
        }
        hosts.reachable.push(host);
    }
    for some in [&mut hosts.takers, &mut hosts.staying, &mut hosts.reachable] {
        some.sort_unstable();
    }
    Ok(hosts)
}

impl Keeper {
    fn new(sandboxes: Sandboxes) -> Self {
        let life = SandboxLife::new(sandboxes.clone());
        Self {
            sandboxes,
            life,
            hosts: Hosts::default(),
            rest: HashMap::new(),
            asked: HashMap::new(),
            turns: HashMap::new(),
            refused: HashMap::new(),
            carriers: JoinSet::new(),
            on_their_way: HashMap::new(),
        }
    }

    fn home(&self, at: &AtRest) -> HostId {
        at.home.unwrap_or_else(|| self.sandboxes.host())
    }

    async fn look(&mut self) -> Result<(), StepError> {
        let (now, db) = (self.sandboxes.clock().now(), self.sandboxes.db());
        let (mut all, hosts) = (store::durable::all(db).await?, hosts(db).await?);
        self.hear_hosts(hosts);
        self.hear_carriers(now);
        self.refused.retain(|_, at| now < at.plus_seconds(REFUSED));
        let known: HashSet<_> = all.iter().map(|it| it.durable).collect();
        self.rest.retain(|durable, _| known.contains(durable));
        self.asked.retain(|durable, _| known.contains(durable));
        for way in self.on_their_way.values().filter(|way| way.to.host().is_none()) {
            if !known.contains(&way.at.durable) {
                // It was resumed, or goes.
                way.carrier.abort();
            }
        }
        // Whose host is lost waits for nobody's copies; of others, those come first who had no turn for the longest time.
        self.turns.retain(|org, _| all.iter().any(|at| at.org == *org));
        let turn = |at: &AtRest| self.turns.get(&at.org).copied();
        all.sort_by_key(|at| (self.hosts.reachable.contains(&self.home(at)), turn(at)));
        let mut round = Round::default();
        for at in all {
            let rests = self.rest.get(&at.durable).is_some_and(|(seen, until)| *seen == at && now < *until);
            if rests || self.on_their_way.values().any(|way| way.at.durable == at.durable) {
                continue;
            }
            if self.rest.get(&at.durable).is_some_and(|(seen, _)| (seen.home, seen.top) != (at.home, at.top)) {
                // It was resumed meanwhile, or went elsewhere: what was asked for it before is over.
                self.asked.remove(&at.durable);
            }
            let seconds = self.tend(&at, &mut round, now).await.unwrap_or_else(|error| {
                tracing::warn!(durable = %at.durable, ?error, "there is no second copy of it yet; trying again later");
                AGAIN
            });
            self.rest.insert(at.durable, (at, now.plus_seconds(seconds)));
        }
        Ok(())
    }

    /// Looks at everything anew where hosts stand otherwise than before, and waits for no host that is gone.
    fn hear_hosts(&mut self, hosts: Hosts) {
        if hosts == self.hosts {
            return;
        }
        self.hosts = hosts;
        self.rest.clear();
        self.asked.clear();
        for way in self.on_their_way.values() {
            let ends = way.to.host().into_iter().chain(way.from);
            if ends.into_iter().any(|host| !self.hosts.reachable.contains(&host)) {
                way.carrier.abort();
            }
        }
    }

    /// Notes what became of what was carried.
    fn hear_carriers(&mut self, now: Timestamp) {
        while let Some(ended) = self.carriers.try_join_next_with_id() {
            let id = ended.as_ref().map_or_else(tokio::task::JoinError::id, |(id, _)| *id);
            let Some(Way { at, to, .. }) = self.on_their_way.remove(&id) else { continue };
            let durable = at.durable;
            match ended {
                Ok((_, Ok(Travelled::There))) => {}
                Ok((_, Ok(Travelled::Refused(reason) | Travelled::NoRoom(reason)))) => {
                    tracing::warn!(%durable, %to, reason, "a host does not get its memory");
                    self.refused.extend(at.memory.zip(to.host()).map(|refused| (refused, now)));
                    self.asked.remove(&durable);
                }
                Ok((_, Err(error))) => {
                    tracing::warn!(%durable, %to, ?error, "what is to be there did not come");
                    self.rest.insert(durable, (at, now.plus_seconds(AGAIN)));
                }
                Err(error) => tracing::warn!(%durable, %to, %error, "it is on its way no more"),
            }
        }
    }

    /// Does what comes next for one of them: in how many seconds it is to be looked at again.
    async fn tend(&mut self, at: &AtRest, round: &mut Round, now: Timestamp) -> Result<i64, StepError> {
        let (db, home) = (self.sandboxes.db(), self.home(at));
        let Some(base) = base(db, at).await? else {
            if !self.hosts.reachable.contains(&home) {
                return Ok(AGAIN);
            }
            return Ok(if self.seal(at).await? { 0 } else { SOON });
        };
        let (chain, memory) = (store::layer_copy::chain(db, base).await?, remembered(db, &self.sandboxes, at).await?);
        let hosts = self.hosts_for(at);
        let resting = Resting { chain: &chain, memory: memory.as_ref(), home };
        let next = keeping(resting, platform(&self.sandboxes, &hosts));
        let is_lost = !hosts.reachable.contains(&home);
        if is_lost && now < self.sandboxes.began_at().plus_seconds(BEGINNING) {
            return Ok(SOON);
        }
        // What comes from the store to another host is in the store all the while.
        let is_there = match next {
            Keeping::Kept(_) | Keeping::GoesOver(_) => true,
            Keeping::Asks | Keeping::Waits | Keeping::Remembers(_) => {
                is_lost && is_stored(resting, self.sandboxes.depot().map(Depot::name))
            }
            Keeping::Stores | Keeping::Lost => false,
        };
        if !is_there && at.copy.is_some() {
            self.set_copy(at, None).await?;
        }
        Ok(match next {
            Keeping::Kept(second) => {
                let host = match second {
                    Second::Host(host) => Some(host),
                    Second::Store => None,
                };
                if at.copy.is_none_or(|copy| copy.host != host) {
                    self.set_copy(at, Some(Copied { host, since: now })).await?;
                }
                KEPT
            }
            Keeping::Stores => self.archive(at, &chain, memory.as_ref()),
            Keeping::Remembers(host) => self.carry(at, host),
            Keeping::Waits => SOON,
            Keeping::Asks => self.ask(at, base, round, now).await?,
            Keeping::GoesOver(host) => {
                if self.go_over(at, (home, host), now).await? {
                    0
                } else {
                    AGAIN
                }
            }
            Keeping::Lost => {
                tracing::warn!(durable = %at.durable, %home, "its host is lost, and neither another one nor the configured store has all of it");
                AGAIN
            }
        })
    }

    /// The hosts, those that did not take its memory lately not among those that take something.
    fn hosts_for(&self, at: &AtRest) -> Hosts {
        let mut hosts = self.hosts.clone();
        if let Some(memory) = at.memory {
            hosts.takers.retain(|host| !self.refused.contains_key(&(memory, *host)));
        }
        hosts
    }

    /// Has nobody write to the disk of a sandbox any more; whether that was so at once.
    async fn seal(&self, at: &AtRest) -> Result<bool, StepError> {
        let Durable::Sandbox(id) = at.durable else { return Ok(false) };
        let row = store::sandbox::load(self.sandboxes.db(), id).await?;
        // Whoever resumed it meanwhile writes to its top.
        let rests = |row: &SandboxRow| (row.phase, row.wish, row.layer) == (Phase::Paused, Wish::Paused, Some(at.top));
        let Some(row) = row.filter(rests) else { return Ok(false) };
        self.life.seal(&row).await?;
        Ok(true)
    }

    /// Writes down who else has all of it, if it stands as it did.
    async fn set_copy(&self, at: &AtRest, copy: Option<Copied>) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        if is_still(&mut tx, at).await? {
            store::durable::set_copy(&mut tx, at.durable, copy).await?;
            tx.commit().await?;
            match copy {
                Some(Copied { host: Some(host), .. }) => {
                    tracing::info!(durable = %at.durable, %host, "a second host has all of it");
                }
                Some(_) => tracing::info!(durable = %at.durable, "the store of backups has all of it"),
                None => {}
            }
        }
        Ok(())
    }

    /// Whether somebody is free to carry something of this one, to hosts or to the store, and carries no other one of its organization.
    fn is_its_turn(&self, at: &AtRest, is_to_host: bool) -> bool {
        let mut same = self.on_their_way.values().filter(|way| way.to.host().is_some() == is_to_host);
        same.clone().count() < CARRIERS && same.all(|way| way.at.org != at.org)
    }

    /// Has its memory brought to a host.
    fn carry(&mut self, at: &AtRest, host: HostId) -> i64 {
        let Some(memory) = at.memory.filter(|_| self.is_its_turn(at, true)) else { return SOON };
        let sandboxes = self.sandboxes.clone();
        let carry = async move { memory_travel::bring(&sandboxes, memory, host, CARRYING).await };
        self.begin(at, Goal::Host(host), carry)
    }

    /// Has something that the store lacks of it brought there: the lowest layer first, and its memory last.
    fn archive(&mut self, at: &AtRest, chain: &[Lying], memory: Option<&Remembered>) -> i64 {
        let Some(store) = self.sandboxes.depot().map(Depot::name) else { return AGAIN };
        let layer = chain.iter().rev().find(|layer| !is_whole_in(layer.archive.as_ref(), store));
        let memory = at.memory.filter(|_| memory.is_some_and(|memory| !is_whole_in(memory.archive.as_ref(), store)));
        let Some(thing) = layer.map(|layer| Thing::Layer(layer.layer)).or(memory.map(Thing::Memory)) else {
            return SOON;
        };
        let to = Goal::Store(thing);
        if !self.is_its_turn(at, false) || self.on_their_way.values().any(|way| way.to == to) {
            return SOON;
        }
        let (sandboxes, home) = (self.sandboxes.clone(), self.home(at));
        let carry = async move {
            archive::keep(&sandboxes, thing, home).await?;
            Ok(Travelled::There)
        };
        self.begin(at, to, carry)
    }

    fn begin(
        &mut self,
        at: &AtRest,
        to: Goal,
        carry: impl Future<Output = Result<Travelled, StepError>> + Send + 'static,
    ) -> i64 {
        let from = Some(self.home(at)).filter(|home| self.hosts.reachable.contains(home));
        let carrier = self.carriers.spawn(carry);
        self.turns.insert(at.org, self.sandboxes.clock().now());
        self.on_their_way.insert(carrier.id(), Way { at: *at, from, to, carrier });
        0
    }

    /// Looks for a host, and wishes copies there of the layers that it lacks.
    async fn ask(&mut self, at: &AtRest, base: LayerId, round: &mut Round, now: Timestamp) -> Result<i64, StepError> {
        if let Some(until) = self.asked.get(&at.durable).map(|at| at.plus_seconds(AGAIN))
            && now < until
        {
            return Ok((until.0 - now.0) / Timestamp::SECOND + 1);
        }
        let (db, home, takers) = (self.sandboxes.db(), self.home(at), self.hosts_for(at).takers);
        if takers.iter().all(|host| *host == home) {
            tracing::warn!(durable = %at.durable, %home, "there is no other host that takes it; looking again later");
            return Ok(AGAIN);
        }
        if store::layer_copy::coming(db).await? >= COMING || !round.asked.insert(at.org) {
            return Ok(SOON);
        }
        self.asked.insert(at.durable, now);
        let memory_mb = match at.memory {
            Some(memory) => store::memory::find(db, memory).await?.map_or(0, |memory| memory.bytes >> 20),
            None => 0,
        };
        if round.offers.is_none() {
            round.offers = Some(offers(&self.sandboxes, false).await?);
        }
        let mut tx = db.begin().await?;
        let chain = store::layer_copy::chain(&mut tx, base).await?;
        let mut offers = round.offers.clone().unwrap_or_default();
        offers.retain(|host, offer| {
            *host != home && takers.contains(host) && offer.capacity.has_room(memory_mb) && !failed(&chain, *host, now)
        });
        let asked = Asked { makes_disk: true, ground: Some(&chain), ..Asked::machines((0, 0), 1) };
        match place(&mut tx, &self.sandboxes, &offers, asked).await? {
            Ok(placed) if is_still(&mut tx, at).await? => {
                let layers = lacking(&chain, placed.host, self.sandboxes.host());
                store::layer_copy::want(&mut tx, &layers, placed.host, now).await?;
                tx.commit().await?;
            }
            Ok(_) => {}
            Err(refusal) => {
                tracing::warn!(durable = %at.durable, hosts = ?refusal.hosts, "no other host takes a copy; asking again later");
            }
        }
        Ok(SOON)
    }

    /// Has it be at home on the host that has all of it, since its own is lost; whether it is.
    async fn go_over(&self, at: &AtRest, (from, to): (HostId, HostId), now: Timestamp) -> Result<bool, StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        // Everything is asked once more in the transaction that acts: what is at home elsewhere may run there at once.
        let (hosts, is_still) = (hosts(&mut tx).await?, is_still(&mut tx, at).await?);
        let Some(base) = base(&mut tx, at).await?.filter(|_| is_still) else { return Ok(false) };
        let chain = store::layer_copy::chain(&mut tx, base).await?;
        let memory = remembered(&mut tx, &self.sandboxes, at).await?;
        let resting = Resting { chain: &chain, memory: memory.as_ref(), home: from };
        if keeping(resting, platform(&self.sandboxes, &hosts)) != Keeping::GoesOver(to) {
            return Ok(false);
        }
        let moved = free(&mut tx, chain, from, at.memory).await?;
        store::layer_copy::rehome(&mut tx, &moved, from, to, now).await?;
        let is_there = match at.durable {
            Durable::Sandbox(id) => self.life.settle_after_loss(&mut tx, id, to, now).await?,
            Durable::Snapshot(_) => match at.memory {
                Some(memory) => store::memory::go_over(&mut tx, memory, to).await?,
                None => true,
            },
        };
        if !is_there {
            drop(tx);
            tracing::warn!(durable = %at.durable, %from, %to,
                "its host is lost, and it cannot be on the one that has all of it: machines of its networks are elsewhere");
            self.set_copy(at, None).await?;
            return Ok(false);
        }
        // What the store has it still has.
        store::durable::set_copy(&mut tx, at.durable, at.copy.filter(|copy| copy.host.is_none())).await?;
        tx.commit().await?;
        tracing::info!(durable = %at.durable, %from, %to, "its host is lost; it is at home on another one");
        Ok(true)
    }
}

/// The platform with these hosts.
fn platform<'a>(sandboxes: &'a Sandboxes, hosts: &'a Hosts) -> Platform<'a> {
    let (own, place) = (sandboxes.host(), sandboxes.config().durable_in);
    Platform { hosts, own, store: sandboxes.depot().map(Depot::name), place }
}

/// Whether a layer of a disk did not come to a host lately.
fn failed(chain: &[Lying], host: HostId, now: Timestamp) -> bool {
    let copies = chain.iter().flat_map(|layer| &layer.copies).filter(|copy| copy.host == host);
    let mut failed = copies.filter(|copy| copy.state == CopyState::Failed);
    failed.any(|copy| now < copy.since.plus_seconds(REFUSED))
}

/// What lies under a disk's top that is not made yet; of a snapshot its top. None where somebody may still write to it.
async fn base(on: impl On, at: &AtRest) -> Result<Option<LayerId>, StepError> {
    if matches!(at.durable, Durable::Snapshot(_)) {
        return Ok(Some(at.top));
    }
    let top = store::layer::find(on, at.top).await?;
    Ok(top.filter(|top| !top.made).and_then(|top| top.parent))
}

/// Where its memory lies.
async fn remembered(on: impl On, sandboxes: &Sandboxes, at: &AtRest) -> Result<Option<Remembered>, StepError> {
    let Some(memory) = at.memory else { return Ok(None) };
    let found = store::memory::find(on, memory).await?;
    Ok(found.map(|memory| Remembered {
        home: memory.host.unwrap_or_else(|| sandboxes.host()),
        copy: memory.other_host.filter(|_| memory.copied),
        archive: memory.archive,
    }))
}

/// Whether it is at rest as it was seen.
async fn is_still(tx: &mut Tx, seen: &AtRest) -> Result<bool, StepError> {
    let lies = |at: &AtRest| (at.home, at.top, at.memory);
    Ok(store::durable::find(tx, seen.durable).await?.is_some_and(|at| lies(&at) == lies(seen)))
}

/// The layers of a disk that can be at home elsewhere: its first, and those with which no other memory was kept that only a host
/// has which is lost. What is made of such a snapshot waits for that host; of its layer there is a copy.
async fn free(tx: &mut Tx, chain: Vec<Lying>, from: HostId, memory: Option<MemoryId>) -> Result<Vec<Lying>, StepError> {
    let mut free = Vec::new();
    for (depth, lying) in chain.into_iter().enumerate() {
        let kept = store::memory::shared_of(&mut *tx, lying.layer, from).await?;
        if depth == 0 || kept.iter().all(|kept| Some(kept.id) == memory) {
            free.push(lying);
        }
    }
    Ok(free)
}
