//! What an agent of the guest does for a machine. A guest need not have one, and nothing waits long for what it says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::ids::MachineId;
use berth_qemu::Error;
use berth_qemu::machine::{freeze, guest};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use super::QemuEngine;
use crate::error::{qemu_failed, transient};
use crate::vm::GuestKeys;
use crate::{EngineError, Result};

/// How long an agent may take for all that it is asked at once: a worker waits for it.
const CONVERSATION: Duration = Duration::from_secs(15);
/// After so long a guest was frozen for nobody: a copy begins sooner, or not at all.
const FORGOTTEN: Duration = Duration::from_mins(1);

impl QemuEngine {
    /// Gives a user of the guest SSH keys, and takes others away; whether an agent of the guest did so.
    pub(super) async fn set_guest_keys(&self, id: MachineId, keys: &GuestKeys) -> Result<bool> {
        let dir = self.machine(id);
        let reason = match within(CONVERSATION, guest::set_keys(&dir, &keys.user, &keys.keys, &keys.former)).await {
            Ok(set) => return Ok(set),
            Err(Error::Refused(reason)) => reason,
            Err(error @ Error::Timeout(guest::AGENT)) => error.to_string(),
            // The machine's own connections do not work: the agent was not asked.
            Err(error) => return Err(again(error)),
        };
        tracing::info!(vm = %id, reason, "the guest's agent did not take SSH keys");
        Ok(false)
    }

    /// Has the file systems of a guest frozen, of which a disk is about to be copied. Where nothing does that, or not in time,
    /// the copy has what a loss of power would have left.
    async fn freeze(&self, id: MachineId) {
        self.thaw(id).await;
        match within(CONVERSATION, freeze::freeze(&self.machine(id))).await {
            Ok(frozen) => tracing::info!(vm = %id, frozen, "a copy of a disk begins"),
            Err(error) => tracing::info!(vm = %id, %error, "the guest's agent did not freeze its file systems"),
        }
    }

    /// Does something to a machine while its guest stands still. Where it was begun before, `freezes` is false: the guest may stand still
    /// yet, and only goes on after it. It goes on, too, where whoever waits for this leaves, before anybody else has it stand still.
    pub(super) async fn while_still<T>(&self, id: MachineId, freezes: bool, act: BoxFuture<'_, T>) -> T {
        let turn = self.stills.of(id).await;
        let goes_on = GoesOnWhenDropped { id, dir: self.machine(id), turn: Some(turn) };
        if freezes {
            self.freeze(id).await;
        }
        let outcome = act.await;
        self.thaw(id).await;
        goes_on.disarm();
        outcome
    }

    /// Has a guest go on whose file systems somebody had frozen. What fails is tried with the next look at the copy.
    pub(super) async fn thaw(&self, id: MachineId) {
        thaw(id, &self.machine(id)).await;
    }

    /// The same once nobody has it stand still.
    pub(super) async fn thaw_in_turn(&self, id: MachineId) {
        let _turn = self.stills.of(id).await;
        self.thaw(id).await;
    }

    /// Has a guest go on that was frozen so long ago that nobody copies for it any more: its agent was late, or the service
    /// ended.
    pub(super) async fn thaw_forgotten(&self, id: MachineId) {
        let Some(_turn) = self.stills.of(id).now_or_never() else { return };
        let since = freeze::since(&self.machine(id));
        if since.and_then(|since| since.elapsed().ok()).is_some_and(|frozen| frozen > FORGOTTEN) {
            self.thaw(id).await;
        }
    }

    /// Has the clock of a guest set that was suspended, which has stood still meanwhile. Nobody waits for that.
    pub(super) fn set_guest_clock(&self, id: MachineId) {
        let (dir, clock) = (self.machine(id), self.clock.clone());
        tokio::spawn(async move {
            if let Err(error) = guest::set_clock(&dir, || clock.now().0.saturating_mul(1000)).await {
                tracing::info!(vm = %id, %error, "the guest's agent did not set its clock");
            }
        });
    }
}

/// A guest that goes on when this is dropped, since whoever had it stand still has left.
struct GoesOnWhenDropped {
    id: MachineId,
    dir: PathBuf,
    /// None once it went on.
    turn: Option<OwnedMutexGuard<()>>,
}

impl GoesOnWhenDropped {
    fn disarm(mut self) {
        self.turn = None;
    }
}

impl Drop for GoesOnWhenDropped {
    fn drop(&mut self) {
        // Where there is no runtime any more the next service finds it.
        let (Some(turn), Ok(runtime)) = (self.turn.take(), Handle::try_current()) else { return };
        let (id, dir) = (self.id, std::mem::take(&mut self.dir));
        runtime.spawn(async move {
            thaw(id, &dir).await;
            drop(turn);
        });
    }
}

async fn thaw(id: MachineId, dir: &Path) {
    if let Err(error) = within(CONVERSATION, freeze::thaw(dir)).await {
        tracing::warn!(vm = %id, %error, "the guest's agent did not thaw its file systems");
    }
}

/// What an agent says in time.
async fn within<T>(patience: Duration, said: impl Future<Output = berth_qemu::Result<T>>) -> berth_qemu::Result<T> {
    timeout(patience, said).await.unwrap_or(Err(Error::Timeout(guest::AGENT)))
}

/// What fails here may not fail the next time.
fn again(error: Error) -> EngineError {
    transient(qemu_failed(error))
}
