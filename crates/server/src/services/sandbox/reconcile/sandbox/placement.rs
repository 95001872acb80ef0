//! Puts a sandbox onto a host, and its disk onto another one's: what it begins with ties it to the host that has that.

use std::collections::BTreeSet;
use std::slice;

use berth_domain::host::placement::{Placed, WishedGpus};
use berth_domain::ids::HostId;
use berth_domain::sandbox::{Phase, Wish};
use berth_domain::{Error, Timestamp};

use super::machine::{put_on, snapshot_ground};
use super::record::{enter, still};
use super::{SandboxLife, Seen};
use crate::db::{DbError, On, Tx, event, machine, machine_gpu, network};
use crate::services::placement::{Refusal, placed_event};
use crate::services::sandbox::reconcile::capacity::{Asked, Offers, offer, place};
use crate::services::sandbox::reconcile::{StepError, fault};
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;

/// What its owner is told of a sandbox that no host can have with all that belongs to it.
const APART: &str = "what it begins with, and the other machines of its networks, are on different hosts";

impl SandboxLife {
    pub(super) async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let host = self.host_for(self.sandboxes.db(), &seen.row).await?;
        let offers = offer(&self.sandboxes, host, seen.row.gpu_config_count > 0).await?;
        fault("sandbox", "reserve", "done").await?;
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        if self.host_for(&mut tx, &before).await? != host {
            // What it begins with is somewhere else by now: it is decided anew.
            return Ok(());
        }
        let placed = if before.machine.host.is_some() || is_joined_to(&mut tx, &before, host).await? {
            self.place(&mut tx, &before, host, &offers).await?
        } else {
            Err(Refusal::everywhere(APART.to_owned()))
        };
        match placed {
            Ok(placed) => self.take_place(tx, before, &placed, seen.now).await,
            Err(refusal) if before.phase == Phase::Resuming => self.stay_paused(tx, before, &refusal, seen.now).await,
            Err(refusal) => {
                drop(tx);
                self.fail_unplaced(seen, &refusal).await
            }
        }
    }

    /// Writes that a sandbox has its place on a host.
    async fn take_place(
        &self,
        mut tx: Tx,
        before: SandboxRow,
        placed: &Placed,
        now: Timestamp,
    ) -> Result<(), StepError> {
        let mut row = before.clone();
        machine::reserve(&mut tx, placed.host, placed.room, slice::from_mut(&mut row.machine)).await?;
        machine_gpu::reserve(&mut tx, placed.host, row.machine.id, &placed.devices).await?;
        if before.machine.host.is_none() {
            tell(&mut tx, &row, "sandbox.placed", &placed_event(placed.host, &placed.reason), now).await?;
        }
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    /// Nothing is lost of a sandbox for which there is no room now: it stays paused.
    async fn stay_paused(
        &self,
        mut tx: Tx,
        before: SandboxRow,
        refusal: &Refusal,
        now: Timestamp,
    ) -> Result<(), StepError> {
        let (mut row, reason) = (before.clone(), format!("insufficient_capacity: {}", refusal.owner));
        tracing::warn!(sandbox = %row.id, reason, hosts = ?refusal.hosts, "a sandbox stays paused");
        enter(&mut row, Phase::Paused, Some(reason), now);
        row.wish = Wish::Paused;
        tell(&mut tx, &row, "sandbox.unplaced", &refusal.event(), now).await?;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    /// The one host that a sandbox can be on: where it is, or else where that is what it begins with.
    async fn host_for(&self, on: impl On, row: &SandboxRow) -> Result<HostId, DbError> {
        let begins = match (row.machine.host, row.restore.or(row.source_snapshot), row.source_template) {
            (Some(host), ..) => Some(host),
            (None, Some(snapshot), _) => store::snapshot::host(on, snapshot).await?,
            (None, None, Some(template)) => store::template::host(on, template).await?,
            (None, None, None) => None,
        };
        Ok(begins.unwrap_or_else(|| self.sandboxes.host()))
    }

    /// The place for a sandbox on the one host that it can be on, or why that does not take it.
    async fn place(
        &self,
        tx: &mut Tx,
        row: &SandboxRow,
        host: HostId,
        offers: &Offers,
    ) -> Result<Result<Placed, Refusal>, StepError> {
        let gpus = match usize::try_from(row.gpu_config_count).ok().filter(|count| *count > 0) {
            Some(count) => {
                let model = row.gpu_model.as_deref().ok_or_else(|| Error::internal("GPUs of no model"))?;
                Some(WishedGpus { model, count })
            }
            None => None,
        };
        let asked = Asked {
            // One that has its disk only goes on.
            makes_disk: row.layer.is_none(),
            is_sandbox: true,
            tied: Some(host),
            on: row.machine.host,
            gpus,
            ..Asked::machines((row.vcpu, row.memory_mb), 1)
        };
        Ok(place(tx, &self.sandboxes, offers, asked).await?)
    }

    /// Puts the disk onto the snapshot's that is restored, and the sandbox onto the host that has it. The machine has ended.
    pub(super) async fn swap(&self, seen: &Seen) -> Result<(), StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(()) };
        let ground = match before.restore {
            Some(id) => snapshot_ground(&mut tx, id).await?,
            None => None,
        };
        let Some(ground) = ground else {
            drop(tx);
            return self.fail(seen, "the snapshot was deleted before it was restored").await;
        };
        let mut row = before.clone();
        let host = store::layer::host(&mut tx, ground.layer).await?.unwrap_or_else(|| self.sandboxes.host());
        if row.machine.host != Some(host) {
            if !is_joined_to(&mut tx, &row, host).await? {
                drop(tx);
                return self.fail(seen, &format!("insufficient_capacity: {APART}")).await;
            }
            // What it left on its host goes before nothing names that any more.
            drop(tx);
            self.engine(seen)?.discard(seen.row.machine.aim()).await?;
            tx = self.sandboxes.db().begin().await?;
            if still(&mut tx, seen).await?.as_ref() != Some(&before) {
                return Ok(());
            }
            row.machine.leave_for(host);
        }
        put_on(&mut tx, &mut row, &ground, seen.now).await?;
        row.restore = None;
        row.fresh = true;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }
}

/// Whether the other machines of a sandbox's networks, which are on one host, are on this one.
async fn is_joined_to(tx: &mut Tx, row: &SandboxRow, host: HostId) -> Result<bool, StepError> {
    let mut hosts = BTreeSet::new();
    for joined in &row.networks {
        let others = network::hosts(&mut *tx, joined.id, row.machine.id, None).await?;
        hosts.extend(others.into_iter().map(|other| other.0));
    }
    Ok(hosts.into_iter().all(|other| other == host.0))
}

/// Tells administrators of the platform where a sandbox was put, or why nowhere.
async fn tell(
    tx: &mut Tx,
    row: &SandboxRow,
    kind: &str,
    data: &serde_json::Value,
    now: Timestamp,
) -> Result<(), StepError> {
    Ok(event::emit_to_administrators(tx, row.project, kind, &row.id.to_string(), data, now).await?)
}
