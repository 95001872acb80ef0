//! Shuts hosts that are lost out of stores of disks, and has their VMs go on elsewhere.
//!
//! [`domain::host::fence`](berth_domain::host::fence) decides, by rows alone, so that whoever begins finds what another one began.
//! Each step ends in a row. The store is asked by the service's own host, which alone learns the key of the user who may do that.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::host::fence::{Fence, Seen, Step, next};
use berth_domain::host::{Aim, State};
use berth_domain::ids::{HostId, VmId};
use berth_host::EngineError;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::vm::{Released, VmLife};
use super::{StepError, fault};
use crate::config::Fencing;
use crate::db::DbError;
use crate::services::host::{self, HostRow};
use crate::services::vm::{Vms, store};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// How long the store, or a host that answers again, is waited for.
const PATIENCE: Duration = Duration::from_mins(1);
/// Seconds until a VM is asked for again that no other host took.
const AGAIN: i64 = 30;
/// Steps of a host at a look, at most: one that begins takes all that are due at once.
const STEPS: usize = 8;

/// A host, and a store that its VMs have disks in.
struct Pair {
    row: HostRow,
    is_removed: bool,
    store: String,
}

/// Shuts out whom it has to, and takes back who answers again, until told to stop.
pub async fn watch(vms: Vms, stop: CancellationToken) {
    let life = VmLife::new(vms.clone(), stop.clone());
    let mut fences = Fences { vms, life, refused: HashMap::new() };
    while stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_some() {
        if let Err(error) = fences.look().await {
            tracing::warn!(%error, "hosts that are lost could not be looked at; trying again");
        }
    }
}

struct Fences {
    vms: Vms,
    life: VmLife,
    /// VMs that no other host took, since when.
    refused: HashMap<VmId, Timestamp>,
}

impl Fences {
    async fn look(&mut self) -> Result<(), DbError> {
        let now = self.vms.clock().now();
        self.refused.retain(|_, at| now < at.plus_seconds(AGAIN));
        for pair in self.pairs().await? {
            let (host, store) = (pair.row.id, pair.store.clone());
            if let Err(error) = self.bring_about(pair).await {
                tracing::warn!(%host, store, ?error, "a host is not shut out of a store, or taken back, yet; trying again");
            }
        }
        Ok(())
    }

    /// Hosts that are lost or were removed with VMs in a store, and those that are shut out of one.
    async fn pairs(&self) -> Result<Vec<Pair>, DbError> {
        let rows = self.rows().await?;
        // Nearly always nobody is away, and nobody is shut out.
        let is_any_away = rows.iter().any(|(row, is_removed)| is_away(row, *is_removed));
        let holders = if is_any_away { store::fence::holders(self.vms.db()).await? } else { Vec::new() };
        let mut pairs = Vec::new();
        for (row, is_removed) in rows {
            let holds = |host: &HostId| *host == row.id && is_away(&row, is_removed);
            let held = holders.iter().filter(|(host, _)| holds(host)).map(|(_, store)| store);
            let stores: BTreeSet<_> = held.chain(row.fences.keys()).cloned().collect();
            pairs.extend(stores.into_iter().map(|store| Pair { row: row.clone(), is_removed, store }));
        }
        Ok(pairs)
    }

    /// All hosts, and whether each was removed.
    async fn rows(&self) -> Result<Vec<(HostRow, bool)>, DbError> {
        let there = host::all(self.vms.db()).await?.into_iter().map(|row| (row, false));
        Ok(there.chain(host::removed(self.vms.db()).await?.into_iter().map(|row| (row, true))).collect())
    }

    /// Takes steps for a host and a store until none is left, or one has to wait.
    async fn bring_about(&mut self, mut pair: Pair) -> Result<(), StepError> {
        for _ in 0..STEPS {
            let held = store::fence::held(self.vms.db(), pair.row.id, &pair.store).await?;
            let released = store::fence::released(self.vms.db(), pair.row.id, &pair.store).await?;
            match next(&self.seen(&pair, !held.is_empty(), !released.is_empty())) {
                Step::Rest => return Ok(()),
                Step::Want(address) => self.want(&pair, address).await?,
                Step::Make => self.make(&pair).await?,
                Step::Release { all } => {
                    if !self.release(&pair, held, all).await? {
                        return Ok(());
                    }
                }
                Step::Settle => self.settle(&pair, released).await?,
                Step::Lift => self.lift(&pair).await?,
            }
            let again = self.rows().await?.into_iter().find(|(row, _)| row.id == pair.row.id);
            let Some((row, is_removed)) = again else { return Ok(()) };
            pair = Pair { row, is_removed, ..pair };
        }
        Ok(())
    }

    fn seen<'a>(&self, Pair { row, is_removed, store }: &'a Pair, has_vms: bool, has_released: bool) -> Seen<'a> {
        Seen {
            state: (!is_removed).then(|| row.state()),
            silent: (self.vms.clock().now().0 - row.last_seen.0) / Timestamp::SECOND,
            patience: self.vms.fencing(store).map(|fencing| fencing.after),
            address: row.store_addresses.get(store).copied(),
            fence: row.fences.get(store),
            has_vms,
            has_released,
        }
    }

    async fn want(&self, Pair { row, store, .. }: &Pair, address: IpAddr) -> Result<(), StepError> {
        let since = self.vms.clock().now();
        tracing::error!(host = %row.id, name = row.name(), store, %address, "a lost host is to be shut out of a store of disks");
        self.set(row.id, store, Some(Fence { address, since, is_made: false })).await
    }

    async fn make(&self, Pair { row, store, .. }: &Pair) -> Result<(), StepError> {
        let Some(fence) = row.fences.get(store) else { return Ok(()) };
        let by = &self.fencing(store)?.by;
        in_time(self.vms.engine().shut_out(by, fence.address)).await?;
        fault("fence", "make", "done").await?;
        self.set(row.id, store, Some(Fence { is_made: true, ..fence.clone() })).await?;
        tracing::error!(host = %row.id, name = row.name(), store, "a lost host is shut out of a store of disks; its VMs start elsewhere");
        Ok(())
    }

    /// Has VMs let go of a host; whether all did.
    async fn release(&mut self, pair: &Pair, held: Vec<VmId>, all: bool) -> Result<bool, StepError> {
        let mut has_all = true;
        for vm in held {
            if !all && self.refused.contains_key(&vm) {
                has_all = false;
                continue;
            }
            if let Released::Stays(refusal) = self.life.release(vm, (pair.row.id, &pair.store), all).await? {
                tracing::warn!(%vm, reason = refusal.owner, hosts = ?refusal.hosts, "a VM of a lost host starts nowhere else for now");
                self.refused.insert(vm, self.vms.clock().now());
                has_all = false;
            }
        }
        Ok(has_all)
    }

    /// Has a host that answers again end the machines that let go of it.
    async fn settle(&self, pair: &Pair, released: Vec<Aim>) -> Result<(), StepError> {
        let host = pair.row.id;
        let engine = self.vms.engine_of(Some(host))?;
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
            store::fence::settled(&mut tx, host, aim.id).await?;
            tx.commit().await?;
        }
        Ok(())
    }

    async fn lift(&self, Pair { row, store, .. }: &Pair) -> Result<(), StepError> {
        let Some(fence) = row.fences.get(store) else { return Ok(()) };
        let by = &self.fencing(store)?.by;
        in_time(self.vms.engine().let_in(by, fence.address)).await?;
        fault("fence", "lift", "done").await?;
        self.set(row.id, store, None).await?;
        tracing::info!(host = %row.id, name = row.name(), store, "a host is back, has ended what it had, and reaches a store again");
        Ok(())
    }

    async fn set(&self, host: HostId, store: &str, fence: Option<Fence>) -> Result<(), StepError> {
        let mut tx = self.vms.db().begin().await?;
        host::set_fence(&mut tx, host, store, fence).await?;
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

fn is_away(row: &HostRow, is_removed: bool) -> bool {
    is_removed || row.state() == State::Lost
}

/// What a store or a host does, if it does that in time.
async fn in_time(work: impl Future<Output = Result<(), EngineError>>) -> Result<(), EngineError> {
    timeout(PATIENCE, work).await.map_err(|_| EngineError::Transient("it does not answer in time".into()))?
}
