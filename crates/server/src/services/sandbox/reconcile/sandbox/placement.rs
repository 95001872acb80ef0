//! Puts a sandbox onto a host, and its disk onto another one's: what it begins with ties it to the host that has that,
//! unless that may be brought to others.

use std::collections::BTreeSet;
use std::slice;

use berth_domain::host::placement::{Placed, WishedGpus};
use berth_domain::ids::HostId;
use berth_domain::sandbox::{Phase, Wish};
use berth_domain::{Error, Timestamp};

use super::ground::Begins;
use super::machine::{put_on, snapshot_ground};
use super::record::{enter, still};
use super::{SandboxLife, Seen};
use crate::db::{Tx, event, machine, machine_gpu, network};
use crate::services::placement::{Refusal, placed_event};
use crate::services::sandbox::reconcile::capacity::{Asked, Offers, offer, offers, offers_of, place};
use crate::services::sandbox::reconcile::{StepError, fault};
use crate::services::sandbox::store;
use crate::services::sandbox::store::sandbox::SandboxRow;

/// What its owner is told of a sandbox that no host can have with all that belongs to it.
const APART: &str = "what it begins with, and the other machines of its networks, are on different hosts";

impl SandboxLife {
    pub(super) async fn reserve(&self, seen: &Seen) -> Result<(), StepError> {
        let with_gpus = seen.row.gpu_config_count > 0;
        let begins = {
            let mut tx = self.sandboxes.db().begin().await?;
            self.begins(&mut tx, &seen.row).await?
        };
        let mut offers = offers_of(&self.sandboxes, &begins.hosts, with_gpus).await?;
        fault("sandbox", "reserve", "done").await?;
        let Some(nearest) = self.reserve_on(seen, &begins, &offers, None).await? else { return Ok(()) };
        // Whoever has it is asked alone first: most sandboxes begin at once.
        offers.extend(self::offers(&self.sandboxes, with_gpus).await?);
        self.reserve_on(seen, &begins, &offers, Some(nearest)).await.map(drop)
    }

    /// Reserves a place on a host that said what it has. The refusal, where others may yet be asked: it came `nearest` then, and is
    /// what the owner is told.
    async fn reserve_on(
        &self,
        seen: &Seen,
        begins: &Begins,
        offers: &Offers,
        nearest: Option<Refusal>,
    ) -> Result<Option<Refusal>, StepError> {
        let mut tx = self.sandboxes.db().begin().await?;
        let Some(before) = still(&mut tx, seen).await? else { return Ok(None) };
        if self.begins(&mut tx, &before).await? != *begins {
            // What it begins with is somewhere else by now: it is decided anew.
            return Ok(None);
        }
        let refusal = match self.place(&mut tx, &before, begins, offers).await? {
            Ok(placed) => return self.take_place(tx, before, &placed, seen.now).await.map(|()| None),
            Err(refusal) if nearest.is_none() && begins.layers.is_some() && self.has_others(begins) => {
                return Ok(Some(refusal));
            }
            Err(refusal) => refusal,
        };
        let refusal = nearest.map_or_else(|| refusal.clone(), |it| Refusal { hosts: refusal.hosts.clone(), ..it });
        if before.phase == Phase::Resuming {
            return self.stay_paused(tx, before, &refusal, seen.now).await.map(|()| None);
        }
        drop(tx);
        self.fail_unplaced(seen, &refusal).await.map(|()| None)
    }

    /// Whether there are hosts to which what a sandbox begins with would have to be brought.
    fn has_others(&self, begins: &Begins) -> bool {
        self.sandboxes.fleet().ids().iter().any(|host| !begins.hosts.contains(host))
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

    /// Nothing is lost of a sandbox for which there is no room now: it stays paused, or is from now on, with what it has.
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
        (row.restore, row.applied_network, row.machine.reserved) = (None, None, false);
        tell(&mut tx, &row, "sandbox.unplaced", &refusal.event(), now).await?;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }

    /// The place for a sandbox on a host that has what it begins with, or to which that can be brought, or why none takes it.
    pub(super) async fn place(
        &self,
        tx: &mut Tx,
        row: &SandboxRow,
        begins: &Begins,
        offers: &Offers,
    ) -> Result<Result<Placed, Refusal>, StepError> {
        // One that is on a host goes on there, or leaves it for the one host that has what it is restored to.
        let on = row.machine.host.filter(|own| begins.tied().is_none_or(|tied| tied == *own));
        let joined = match on {
            Some(_) => BTreeSet::new(),
            None => network::hosts_of_others(tx, &row.networks, row.machine.id).await?,
        };
        let tied = begins.tied().or_else(|| joined.first().copied());
        if joined.iter().any(|host| Some(*host) != tied) {
            return Ok(Err(Refusal::everywhere(APART.to_owned())));
        }
        let gpus = match usize::try_from(row.gpu_config_count).ok().filter(|count| *count > 0) {
            Some(count) => {
                let model = row.gpu_model.as_deref().ok_or_else(|| Error::internal("GPUs of no model"))?;
                Some(WishedGpus { model, count })
            }
            None => None,
        };
        let asked = Asked {
            // One that has its disk there only goes on.
            makes_disk: row.layer.is_none() || on != row.machine.host,
            is_sandbox: true,
            tied,
            on,
            gpus,
            ground: begins.layers.as_deref(),
            ..Asked::machines((row.vcpu, row.memory_mb), 1)
        };
        Ok(place(tx, &self.sandboxes, offers, asked).await?)
    }

    /// Why another host does not take a sandbox that is to go there, if it does not.
    async fn refuses(&self, host: HostId, row: &SandboxRow) -> Result<Option<Refusal>, StepError> {
        let offers = offer(&self.sandboxes, host, row.gpu_config_count > 0).await?;
        let mut tx = self.sandboxes.db().begin().await?;
        Ok(self.place(&mut tx, row, &Begins::on(host), &offers).await?.err())
    }

    /// Has a sandbox that cannot get a snapshot's disk keep its own.
    async fn keep_disk(&self, seen: &Seen, before: &SandboxRow, refusal: &Refusal) -> Result<(), StepError> {
        if before.layer.is_none() {
            return self.fail_unplaced(seen, refusal).await;
        }
        let mut tx = self.sandboxes.db().begin().await?;
        if still(&mut tx, seen).await?.as_ref() != Some(before) {
            return Ok(());
        }
        self.stay_paused(tx, before.clone(), refusal, seen.now).await
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
            drop(tx);
            if let Some(refusal) = self.refuses(host, &row).await? {
                return self.keep_disk(seen, &before, &refusal).await;
            }
            // What it left on its host goes before nothing names that any more.
            self.engine(seen)?.discard(seen.row.machine.aim()).await?;
            tx = self.sandboxes.db().begin().await?;
            if still(&mut tx, seen).await?.as_ref() != Some(&before) {
                return Ok(());
            }
            row.machine.leave_for(host);
        }
        put_on(&mut tx, &mut row, &ground, seen.now).await?;
        row.disk_gb = ground.disk_gb.unwrap_or(row.disk_gb);
        row.restore = None;
        row.fresh = true;
        self.write(&mut tx, &before, row).await?;
        Ok(tx.commit().await?)
    }
}

/// Tells administrators of the platform where a sandbox was put, or why nowhere.
pub(super) async fn tell(
    tx: &mut Tx,
    row: &SandboxRow,
    kind: &str,
    data: &serde_json::Value,
    now: Timestamp,
) -> Result<(), StepError> {
    Ok(event::emit_to_administrators(tx, row.project, kind, &row.id.to_string(), data, now).await?)
}
