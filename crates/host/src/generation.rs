//! The generation of each machine that the host acts on.
//!
//! What was acted on last is noted in the machine's folder before the act, so that an older step is refused whoever is in
//! between ([`Aim::admit`]). The note survives the service and goes with the folder: a machine without a folder has nothing
//! that an older step could harm. A step that is under way when a later one comes, or one that ends the machine, is dropped
//! first, as if whoever asked for it had left: so no step that was admitted goes on after it is too late.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_domain::host::Aim;
use berth_domain::host::aim::{Act, Noted};
use berth_process::folder;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{EngineError, Result};

/// The note, in a machine's folder.
const NOTE: &str = "generation";
/// Most bytes of the note: a number and a word.
const LONGEST: u64 = 64;

/// Steps under way for the machines of one engine.
#[derive(Default)]
pub struct Generations {
    under_way: Mutex<UnderWay>,
    /// A step is over.
    over: Notify,
}

#[derive(Default)]
struct UnderWay {
    steps: Vec<Step>,
    /// What the next one is called.
    next: u64,
}

struct Step {
    name: u64,
    aim: Aim,
    called_off: CancellationToken,
}

/// A step under way, until it is dropped.
struct Held<'a> {
    by: &'a Generations,
    name: u64,
    called_off: CancellationToken,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.by.lock().steps.retain(|step| step.name != self.name);
        self.by.over.notify_waiters();
    }
}

impl Generations {
    /// Acts on a machine that has its folder there, if that was not decided too early.
    ///
    /// # Errors
    /// `Outdated` where something later was acted on, or is while this is under way.
    pub async fn act<T>(&self, dir: &Path, aim: Aim, act: Act, work: impl Future<Output = Result<T>>) -> Result<T> {
        let held = self.begin(dir, aim, act).await?;
        tokio::select! {
            done = work => done,
            () = held.called_off.cancelled() => Err(EngineError::Outdated(aim.generation.unwrap_or_default())),
        }
    }

    /// Begins a step once those are over that it calls off.
    async fn begin(&self, dir: &Path, aim: Aim, act: Act) -> Result<Held<'_>> {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if let Some(held) = self.try_begin(dir, aim, act)? {
                return Ok(held);
            }
            over.await;
        }
    }

    /// None while something is under way that was called off for it.
    fn try_begin(&self, dir: &Path, aim: Aim, act: Act) -> Result<Option<Held<'_>>> {
        let mut under_way = self.lock();
        if let Some(next) = aim.admit(act, read(dir)).map_err(EngineError::Outdated)? {
            write(dir, next)?;
        }
        let mut waits = false;
        for step in under_way.steps.iter().filter(|step| step.aim.id == aim.id && aim.calls_off(act, step.aim)) {
            step.called_off.cancel();
            waits = true;
        }
        if waits {
            return Ok(None);
        }
        let (name, called_off) = (under_way.next, CancellationToken::new());
        under_way.next += 1;
        under_way.steps.push(Step { name, aim, called_off: called_off.clone() });
        drop(under_way);
        Ok(Some(Held { by: self, name, called_off }))
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was acted on last, if the folder says so.
fn read(dir: &Path) -> Option<Noted> {
    serde_json::from_slice(&folder::read(&dir.join(NOTE), LONGEST).ok()?).ok()
}

/// Notes what is acted on next, if the machine has a folder.
fn write(dir: &Path, noted: Noted) -> Result<()> {
    if !dir.is_dir() {
        return Ok(());
    }
    let failed = |error: std::io::Error| EngineError::Transient(format!("a generation cannot be noted: {error}"));
    let bytes = serde_json::to_vec(&noted).map_err(|error| failed(error.into()))?;
    folder::write(&dir.join(NOTE), &bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use berth_domain::ids::MachineId;

    use super::*;

    const ID: MachineId = MachineId(uuid::Uuid::nil());

    /// A step that is over at once.
    async fn step(all: &Generations, dir: &Path, generation: i64, act: Act) -> Result<()> {
        all.act(dir, Aim::of(ID, generation), act, ready(Ok(()))).await
    }

    #[tokio::test]
    async fn what_is_older_than_what_was_acted_on_is_refused_as_long_as_there_is_a_folder() {
        let (data, all) = (tempfile::tempdir().unwrap(), Generations::default());
        let dir = data.path().join("machine");
        let step = |generation, act| step(&all, &dir, generation, act);
        assert!(step(3, Act::Start).await.is_ok() && step(2, Act::Start).await.is_ok(), "nothing could be harmed");
        std::fs::create_dir(&dir).unwrap();
        assert!(step(3, Act::Start).await.is_ok() && step(3, Act::Change).await.is_ok());
        assert_eq!(step(2, Act::Change).await, Err(EngineError::Outdated(3)));
        assert!(all.act(&dir, Aim::uncounted(ID), Act::End, ready(Ok(()))).await.is_ok());
        assert!(step(3, Act::Start).await.is_ok(), "what is not counted notes nothing");
        assert!(step(3, Act::End).await.is_ok() && step(3, Act::End).await.is_ok());
        assert_eq!(step(3, Act::Start).await, Err(EngineError::Outdated(4)));
        let (again, dir) = (Generations::default(), &dir);
        assert_eq!(
            self::step(&again, dir, 3, Act::Start).await,
            Err(EngineError::Outdated(4)),
            "it outlives the service"
        );
        assert!(step(4, Act::Start).await.is_ok());
        std::fs::remove_dir_all(dir).unwrap();
        assert!(step(1, Act::Start).await.is_ok());
    }

    #[tokio::test]
    async fn what_is_under_way_is_dropped_before_what_calls_it_off_begins() {
        let (data, all) = (tempfile::tempdir().unwrap(), Generations::default());
        for (generation, act) in [(3, Act::End), (4, Act::Start)] {
            let alive = std::sync::Arc::new(());
            let theirs = std::sync::Arc::downgrade(&alive);
            let older = all.act(data.path(), Aim::of(ID, 3), Act::Change, async move {
                let done = pending::<Result<()>>().await;
                drop(alive);
                done
            });
            let later = async {
                // The older one is under way by now: futures are polled in their order.
                let all_over = async { Ok(theirs.upgrade().is_none()) };
                all.act(data.path(), Aim::of(ID, generation), act, all_over).await
            };
            let (older, later) = tokio::join!(older, later);
            assert!(matches!(older, Err(EngineError::Outdated(_))), "{older:?}");
            assert_eq!(later, Ok(true), "the older one had gone");
        }
        assert!(all.lock().steps.is_empty());
    }

    #[tokio::test]
    async fn steps_of_one_generation_and_those_of_other_machines_go_on_beside_each_other() {
        let (data, all) = (tempfile::tempdir().unwrap(), Generations::default());
        let other = MachineId(uuid::Uuid::from_u128(1));
        let (go, gone) = tokio::sync::oneshot::channel();
        let first = all.act(data.path(), Aim::of(ID, 3), Act::Change, async { Ok(gone.await.is_ok()) });
        let beside = async {
            step(&all, data.path(), 3, Act::Change).await?;
            let elsewhere = data.path().join("other");
            all.act(&elsewhere, Aim::of(other, 9), Act::End, ready(Ok(()))).await?;
            go.send(()).map_err(|()| EngineError::Transient("the first one is gone".into()))
        };
        assert_eq!(tokio::join!(first, beside), (Ok(true), Ok(())));
    }
}
