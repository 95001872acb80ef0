//! Shuts hosts that are lost out of stores of disks, and has their VMs go on elsewhere.
//!
//! [`domain::host::fence`](berth_domain::host::fence) decides, by rows alone, so that whoever begins finds what another one began.
//! Each step ends in a row. The store is asked by the service's own host, which alone learns the key of the user who may do that.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::fence::{Fence, Seen, Step, is_alone, next, to_refuse};
use berth_domain::host::{Aim, State};
use berth_domain::ids::{HostId, VmId};
use berth_host::EngineError;
use futures::future::join_all;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::vm::{Released, VmLife};
use super::{StepError, fault};
use crate::config::Fencing;
use crate::db::{DbError, event};
use crate::services::placement::fences::{self, Fenceable};
use crate::services::placement::state_of;
use crate::services::vm::{Vms, store};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// How long the store, or a host that answers again, is waited for.
const PATIENCE: Duration = Duration::from_mins(1);
/// Seconds until a VM is asked for again that no other host took.
const AGAIN: i64 = 30;
/// Steps of a host at a look, at most: one that begins takes all that are due at once.
const STEPS: usize = 8;

/// A host, and a store that its VMs have disks in, or that it is shut out of.
struct Pair<'a> {
    host: &'a Fenceable,
    store: &'a str,
}

/// Shuts out whom it has to, and takes back who answers again, until told to stop.
pub async fn watch(vms: Vms, stop: CancellationToken) {
    let life = VmLife::new(vms.clone(), stop.clone());
    let watch = Watch { vms, life, refused: Mutex::default(), said: Mutex::default() };
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Err(error) = watch.look().await {
            tracing::warn!(%error, "hosts that are lost could not be looked at; trying again");
        }
    }
}

struct Watch {
    vms: Vms,
    life: VmLife,
    /// VMs that no other host took: when that was asked last.
    refused: Mutex<HashMap<VmId, Timestamp>>,
    /// What was said last of a host and a store.
    said: Mutex<HashMap<(HostId, String), String>>,
}

impl Watch {
    async fn look(&self) -> Result<(), DbError> {
        // Nearly always nobody is lost, and nobody is shut out.
        let held = store::fence::lost_holders(self.vms.db()).await?;
        let pairs: BTreeSet<_> = held.into_iter().chain(fences::fenced(self.vms.db()).await?).collect();
        join_all(pairs.iter().map(async |(host, store)| {
            let reason = self.bring_about(*host, store).await.unwrap_or_else(|error| Some(words(&error)));
            if let Some(reason) = self.is_new(*host, store, reason) {
                tracing::warn!(%host, store, reason, "a host is not shut out of a store, or taken back, yet; trying again");
            }
        }))
        .await;
        Ok(())
    }

    /// What is to be said of a host and a store, unless that was said already.
    fn is_new(&self, host: HostId, store: &str, text: Option<String>) -> Option<String> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (host, store.to_owned());
        let Some(text) = text else {
            said.remove(&key);
            return None;
        };
        (said.insert(key, text.clone()).as_ref() != Some(&text)).then_some(text)
    }

    /// Takes steps for a host and a store until none is left, or one has to wait; why a host is not shut out that is due.
    async fn bring_about(&self, host: HostId, store: &str) -> Result<Option<String>, StepError> {
        for _ in 0..STEPS {
            let hosts = fences::all(self.vms.db()).await?;
            let Some(found) = hosts.iter().find(|found| found.id() == host) else { return Ok(None) };
            let pair = Pair { host: found, store };
            let held = store::fence::held(self.vms.db(), host, store).await?;
            let released = store::fence::released(self.vms.db(), host, store).await?;
            let mut seen = self.seen(&pair, &hosts, (!held.is_empty(), !released.is_empty()));
            let mut addresses = Vec::new();
            if next(&seen) == Step::Want {
                // The store is asked where something depends on it alone.
                addresses = self.addresses(&pair, &held, &hosts).await;
                seen.has_address = !addresses.is_empty();
            }
            match next(&seen) {
                Step::Rest => return Ok(waits(&pair, &seen)),
                Step::Want => self.want(&pair, addresses).await?,
                Step::Make => self.make(&pair).await?,
                Step::Release => {
                    if !self.release(&pair, held).await? {
                        return Ok(None);
                    }
                }
                Step::Settle => self.settle(&pair, released).await?,
                Step::Lift => self.lift(&pair, held).await?,
                Step::Forget => self.set(&pair, None).await?,
            }
        }
        Ok(None)
    }

    /// The addresses by which a host is shut out, of those by which it reached the store, and from where its VMs' disks are open.
    async fn addresses(&self, Pair { host, store }: &Pair<'_>, held: &[VmId], hosts: &[Fenceable]) -> Vec<IpAddr> {
        let mut all: BTreeSet<_> = host.reached_from(store).collect();
        let open = join_all(held.iter().map(|vm| self.openers(*vm, store)));
        all.extend(timeout(PATIENCE, open).await.unwrap_or_default().into_iter().flatten());
        let others = hosts.iter().filter(|other| other.id() != host.id() && !other.is_away());
        let monitors = self.vms.store(store).and_then(|store| store.addresses().map_err(EngineError::Permanent));
        let monitors = monitors.into_iter().flatten().map(|at| at.ip());
        to_refuse(all, &others.flat_map(Fenceable::addresses).chain(monitors).collect())
    }

    /// From where a VM's disks are open, as far as the store says.
    async fn openers(&self, vm: VmId, store: &str) -> Vec<IpAddr> {
        let (Ok(disks), Ok(store)) = (store::disk::peek_of_vm(self.vms.db(), vm).await, self.vms.store(store)) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for disk in disks {
            match self.vms.engine().openers(store, disk.id).await {
                Ok(openers) => all.extend(openers),
                Err(error) => tracing::debug!(disk = %disk.id, %error, "a store does not say who has a disk open"),
            }
        }
        all
    }

    fn seen<'a>(
        &self,
        Pair { host, store }: &Pair<'a>,
        hosts: &[Fenceable],
        (has_vms, has_released): (bool, bool),
    ) -> Seen<'a> {
        // What a row says of when its host was there may be another service's clock, or of before anybody asked.
        let since = host.last_seen().max(self.vms.began_at());
        let fence = host.fence(store);
        let is_taken = |other: &Fenceable| {
            let addresses = fence.map(|fence| &fence.addresses[..]).unwrap_or_default();
            other.id() != host.id() && !other.is_away() && other.addresses().any(|at| addresses.contains(&at))
        };
        Seen {
            state: host.state(),
            enrolment: host.enrolment(),
            silent: (self.vms.clock().now().0 - since.0) / Timestamp::SECOND,
            patience: self.vms.fencing(store).map(|fencing| fencing.after),
            has_address: true,
            is_alone: is_alone(&fences::users(hosts, store, self.vms.clock().now())),
            fence,
            is_taken: hosts.iter().any(is_taken),
            has_vms,
            has_released,
        }
    }

    async fn want(&self, pair: &Pair<'_>, addresses: Vec<IpAddr>) -> Result<(), StepError> {
        let Pair { host, store } = pair;
        tracing::error!(host = %host.id(), name = host.name(), store, ?addresses, "a lost host is to be shut out of a store of disks");
        let since = self.vms.clock().now();
        let fence = Fence { addresses, enrolment: host.enrolment(), since, is_tried: false, is_made: false };
        let mut tx = self.vms.db().begin().await?;
        // It may be back by now.
        if matches!(state_of(&mut tx, host.id()).await?, None | Some(State::Lost)) {
            fences::set(&mut tx, host.id(), store, Some(fence)).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn make(&self, pair: &Pair<'_>) -> Result<(), StepError> {
        let Pair { host, store } = pair;
        let Some(fence) = host.fence(store) else { return Ok(()) };
        let by = &self.fencing(store)?.by;
        if let Err(error) = in_time(self.vms.engine().shut_out(by, &fence.addresses)).await {
            if host.state().is_none() && !fence.is_tried {
                self.set(pair, Some(Fence { is_tried: true, ..fence.clone() })).await?;
            }
            return Err(error.into());
        }
        fault("fence", "make", "done").await?;
        self.set(pair, Some(Fence { is_made: true, ..fence.clone() })).await?;
        tracing::error!(host = %host.id(), name = host.name(), store, "a lost host is shut out of a store of disks; its VMs start elsewhere");
        Ok(())
    }

    /// Has VMs let go of a host; whether all did.
    async fn release(&self, pair: &Pair<'_>, held: Vec<VmId>) -> Result<bool, StepError> {
        let now = self.vms.clock().now();
        let mut has_all = true;
        for vm in held {
            let asked = self.refused().get(&vm).copied();
            if asked.is_some_and(|at| now < at.plus_seconds(AGAIN)) {
                has_all = false;
                continue;
            }
            match self.life.release(vm, (pair.host.id(), pair.store)).await? {
                Released::Done | Released::Over => drop(self.refused().remove(&vm)),
                Released::Again => has_all = false,
                Released::Stays(project, refusal) => {
                    has_all = false;
                    if self.refused().insert(vm, now).is_none() {
                        tracing::warn!(%vm, reason = refusal.owner, hosts = ?refusal.hosts, "a VM of a lost host starts nowhere else for now");
                        let mut tx = self.vms.db().begin().await?;
                        let (subject, data) = (vm.to_string(), refusal.event());
                        event::emit_to_administrators(&mut tx, project, "vm.unplaced", &subject, &data, now).await?;
                        tx.commit().await?;
                    }
                }
            }
        }
        Ok(has_all)
    }

    fn refused(&self) -> std::sync::MutexGuard<'_, HashMap<VmId, Timestamp>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a host that answers again end the machines that let go of it.
    async fn settle(&self, pair: &Pair<'_>, released: Vec<Aim>) -> Result<(), StepError> {
        let engine = self.vms.engine_of(Some(pair.host.id()))?;
        for aim in released {
            let ended = async {
                engine.power_off(aim).await?;
                engine.discard(aim).await
            };
            match in_time(ended).await {
                // What it has by now was decided later.
                Ok(()) | Err(EngineError::Outdated(_)) => {}
                Err(error) => return Err(error.into()),
            }
            fault("fence", "settle", "done").await?;
            let mut tx = self.vms.db().begin().await?;
            store::fence::settled(&mut tx, pair.host.id(), aim.id).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    /// Has the store take a host again. What it still has lost its disks where the store refused it, and begins anew.
    async fn lift(&self, pair: &Pair<'_>, held: Vec<VmId>) -> Result<(), StepError> {
        let Pair { host, store } = pair;
        let Some(fence) = host.fence(store) else { return Ok(()) };
        let by = &self.fencing(store)?.by;
        let engine = self.vms.engine();
        if !fence.is_made && in_time(engine.refuses(by, &fence.addresses)).await? {
            // Whoever finds it lifted next is to know that its machines lost their disks.
            return self.set(pair, Some(Fence { is_made: true, ..fence.clone() })).await;
        }
        in_time(engine.let_in(by, &fence.addresses)).await?;
        fault("fence", "lift", "done").await?;
        let mut tx = self.vms.db().begin().await?;
        if fence.is_made {
            for vm in held {
                self.life.begin_anew(&mut tx, vm, host.id()).await?;
            }
        }
        fences::set(&mut tx, host.id(), store, None).await?;
        tx.commit().await?;
        tracing::info!(host = %host.id(), name = host.name(), store, "a host is shut out of a store no more");
        Ok(())
    }

    async fn set(&self, pair: &Pair<'_>, fence: Option<Fence>) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        fences::set(&mut tx, pair.host.id(), pair.store, fence).await?;
        Ok(tx.commit().await?)
    }

    fn fencing(&self, store: &str) -> Result<&Fencing, EngineError> {
        let gone = || {
            EngineError::Transient(format!(
                "the configuration has no fence_user of the disk store {store} any more; an operator adds it again"
            ))
        };
        self.vms.fencing(store).ok_or_else(gone)
    }
}

/// Why a host is not shut out that is due.
fn waits(Pair { host, store }: &Pair<'_>, seen: &Seen<'_>) -> Option<String> {
    let is_due = seen.patience.is_some_and(|patience| seen.silent >= patience) && seen.has_vms;
    let reason = match seen.fence {
        None if is_due && !seen.has_address => "no address is known that is its alone",
        None if is_due && seen.is_alone => "so many hosts are silent that it is rather this service that is cut off",
        _ => return None,
    };
    Some(format!(
        "the host {} is lost, and is not shut out of the store {store}: {reason}. Once it is off for sure, type: berth admin \
         host remove {} --lost",
        host.name(),
        host.name()
    ))
}

fn words(error: &StepError) -> String {
    match error {
        StepError::Engine(error) => error.to_string(),
        StepError::Own(error) => error.to_string(),
    }
}

/// What a store or a host does, if it does that in time.
async fn in_time<T>(work: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    timeout(PATIENCE, work).await.map_err(|_| EngineError::Transient("it does not answer in time".into()))?
}
