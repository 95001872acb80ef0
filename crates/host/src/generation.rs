//! The generation of each machine that the host acts on.
//!
//! What was acted on last is noted before the act, so that an older step is refused whoever is in between
//! ([`Aim::admit`]). Notes lie apart from the machines' folders, in which a taken-over machine may write. They survive
//! the service, and for some days the machine: the start of one that was discarded comes too late, too. A step that is
//! under way when a later one comes, or one that ends the machine, is dropped first, as if whoever asked for it had
//! left. What such a step has threads of the system do is not dropped with it, so a folder is renamed before it is
//! removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_domain::host::Aim;
use berth_domain::host::aim::{Act, Noted};
use berth_domain::ids::MachineId;
use berth_process::folder;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{EngineError, Result};

/// The folder of notes, beside that of the machines.
const FOLDER: &str = "generations";
/// Most bytes of a note: a number and a word.
const LONGEST: u64 = 64;
/// What the name of a folder begins with that is being removed.
const REMOVED: &str = ".removed-";
/// How long a note outlives its machine: longer than any step is under way.
const KEPT: Duration = Duration::from_hours(48);

/// Steps under way for the machines of one engine, and what was acted on last.
pub struct Generations {
    /// A note for each machine, called by its id.
    notes: PathBuf,
    /// The folder in which each machine of the engine has one.
    machines: PathBuf,
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
    /// Of the machines that have a folder each in this one.
    pub fn new(machines: PathBuf) -> Self {
        let notes = machines.with_file_name(FOLDER);
        Self { notes, machines, under_way: Mutex::default(), over: Notify::new() }
    }

    /// Acts on a machine, if that was not decided too early.
    ///
    /// # Errors
    /// `Outdated` where something later was acted on; a passing one where the step is called off while it is under way.
    pub async fn act<T>(&self, aim: Aim, act: Act, work: impl Future<Output = Result<T>>) -> Result<T> {
        let held = self.begin(aim, act).await?;
        tokio::select! {
            done = work => done,
            () = held.called_off.cancelled() => {
                Err(EngineError::Transient("what was decided later for the machine called it off".into()))
            }
        }
    }

    /// Removes notes of machines that have been gone for long, and folders whose removal was interrupted then.
    pub fn forget(&self) {
        let is_old = |entry: &std::fs::DirEntry| {
            let changed = entry.metadata().and_then(|about| about.modified());
            changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT))
        };
        for entry in std::fs::read_dir(&self.notes).into_iter().flatten().flatten().filter(is_old) {
            let is_ours = entry.file_name().to_str().is_some_and(|name| name.parse::<MachineId>().is_ok());
            // One that stays is looked at again.
            if is_ours && !self.machines.join(entry.file_name()).exists() {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        for entry in std::fs::read_dir(&self.machines).into_iter().flatten().flatten().filter(is_old) {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(REMOVED)) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Begins a step once those are over that it calls off.
    async fn begin(&self, aim: Aim, act: Act) -> Result<Held<'_>> {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if let Some(held) = self.try_begin(aim, act)? {
                return Ok(held);
            }
            over.await;
        }
    }

    /// None while something is under way that was called off for it.
    fn try_begin(&self, aim: Aim, act: Act) -> Result<Option<Held<'_>>> {
        let mut under_way = self.lock();
        self.note(aim, act)?;
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

    /// Compares a step with what is noted, and notes it.
    fn note(&self, aim: Aim, act: Act) -> Result<()> {
        if aim.generation.is_none() {
            return Ok(());
        }
        let Some(next) = aim.admit(act, self.read(aim.id)?).map_err(EngineError::Outdated)? else { return Ok(()) };
        match self.write(aim.id, next) {
            // On a full disk it has to be possible to end what fills it.
            Err(error) if act == Act::End => {
                tracing::warn!(machine = %aim.id, %error, "a machine is ended without a note of that");
                Ok(())
            }
            noted => noted.map_err(|error| EngineError::Transient(format!("a generation cannot be noted: {error}"))),
        }
    }

    /// What was acted on last, if anything was.
    fn read(&self, id: MachineId) -> Result<Option<Noted>> {
        let note = self.notes.join(id.to_string());
        let noted = match folder::read(&note, LONGEST) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        let wrong = |error| format!("{} cannot be read ({error}); if it is damaged, remove it", note.display());
        noted.map_err(|error| EngineError::Transient(wrong(error)))
    }

    /// Notes what is acted on next.
    fn write(&self, id: MachineId, noted: Noted) -> io::Result<()> {
        std::fs::create_dir_all(&self.notes)?;
        folder::write(&self.notes.join(id.to_string()), &serde_json::to_vec(&noted)?)
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the folder of a machine; fine where there is none. It has another name first: whoever is told later to start
/// the machine finds no folder, and not one that is just being emptied.
///
/// # Errors
/// It cannot be renamed or removed.
pub async fn remove_folder(dir: &Path) -> io::Result<()> {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    let aside = dir.with_file_name(format!("{REMOVED}{name}"));
    // What an interrupted removal left is in the way.
    fine_without(tokio::fs::remove_dir_all(&aside).await)?;
    fine_without(tokio::fs::rename(dir, &aside).await)?;
    fine_without(tokio::fs::remove_dir_all(&aside).await)
}

fn fine_without(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use berth_domain::ids::MachineId;

    use super::*;

    const ID: MachineId = MachineId(uuid::Uuid::nil());

    fn generations(data: &Path) -> Generations {
        Generations::new(data.join("machines"))
    }

    /// A step that is over at once.
    async fn step(all: &Generations, generation: i64, act: Act) -> Result<()> {
        all.act(Aim::of(ID, generation), act, ready(Ok(()))).await
    }

    #[tokio::test]
    async fn what_is_older_than_what_was_acted_on_is_refused() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        let step = |generation, act| step(&all, generation, act);
        assert!(step(3, Act::Start).await.is_ok() && step(3, Act::Change).await.is_ok());
        assert_eq!(step(2, Act::Change).await, Err(EngineError::Outdated(3)));
        assert!(all.act(Aim::uncounted(ID), Act::End, ready(Ok(()))).await.is_ok());
        assert!(step(3, Act::Start).await.is_ok(), "what is not counted notes nothing");
        assert!(step(3, Act::End).await.is_ok() && step(3, Act::End).await.is_ok());
        assert_eq!(step(3, Act::Start).await, Err(EngineError::Outdated(3)));
        let next = generations(data.path());
        assert_eq!(self::step(&next, 3, Act::Start).await, Err(EngineError::Outdated(3)), "it outlives the service");
        assert!(step(4, Act::Start).await.is_ok());
    }

    #[tokio::test]
    async fn a_note_that_cannot_be_read_is_not_taken_for_none() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        step(&all, 3, Act::Start).await.unwrap();
        std::fs::write(data.path().join(FOLDER).join(ID.to_string()), "x").unwrap();
        let refused = step(&all, 2, Act::Change).await;
        assert!(matches!(&refused, Err(EngineError::Transient(why)) if why.contains("remove it")), "{refused:?}");
        // What no row counts is ended all the same.
        assert_eq!(all.act(Aim::uncounted(ID), Act::End, ready(Ok(()))).await, Ok(()));
    }

    #[tokio::test]
    async fn on_a_full_disk_a_machine_can_be_ended() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        // As if there were no room: nothing is there, and nobody can make it.
        std::os::unix::fs::symlink("/nonexistent/folder", data.path().join(FOLDER)).unwrap();
        assert!(matches!(step(&all, 3, Act::Start).await, Err(EngineError::Transient(_))));
        assert_eq!(step(&all, 3, Act::End).await, Ok(()));
    }

    #[tokio::test]
    async fn notes_of_machines_that_are_long_gone_are_removed() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        let [there, gone, fresh] = [1, 2, 3].map(|number| MachineId(uuid::Uuid::from_u128(number)));
        for id in [there, gone, fresh] {
            all.act(Aim::of(id, 1), Act::End, ready(Ok(()))).await.unwrap();
        }
        std::fs::create_dir_all(data.path().join("machines").join(there.to_string())).unwrap();
        for id in [there, gone] {
            let note = std::fs::File::open(data.path().join(FOLDER).join(id.to_string())).unwrap();
            let now = note.metadata().unwrap().modified().unwrap();
            note.set_modified(now - KEPT - Duration::from_mins(1)).unwrap();
        }
        // Another engine has machines of its own, and notes.
        let elsewhere = Generations::new(data.path().join("others").join("machines"));
        elsewhere.forget();
        assert!(all.read(gone).unwrap().is_some());
        all.forget();
        assert_eq!(all.read(gone), Ok(None));
        assert!(all.read(there).unwrap().is_some() && all.read(fresh).unwrap().is_some());
    }

    #[tokio::test]
    async fn a_folder_is_removed_however_far_an_earlier_removal_came() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("machine");
        remove_folder(&dir).await.unwrap();
        for folder in [dir.clone(), data.path().join(".removed-machine")] {
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("file"), "").unwrap();
        }
        remove_folder(&dir).await.unwrap();
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn what_is_under_way_is_dropped_before_what_calls_it_off_begins() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        for (generation, act) in [(3, Act::End), (4, Act::Start)] {
            let alive = std::sync::Arc::new(());
            let theirs = std::sync::Arc::downgrade(&alive);
            let older = all.act(Aim::of(ID, 3), Act::Change, async move {
                let done = pending::<Result<()>>().await;
                drop(alive);
                done
            });
            let later = async {
                // The older one is under way by now: futures are polled in their order.
                let all_over = async { Ok(theirs.upgrade().is_none()) };
                all.act(Aim::of(ID, generation), act, all_over).await
            };
            let (older, later) = tokio::join!(older, later);
            assert!(matches!(older, Err(EngineError::Transient(_))), "{older:?}");
            assert_eq!(later, Ok(true), "the older one had gone");
        }
        assert!(all.lock().steps.is_empty());
    }

    #[tokio::test]
    async fn steps_of_one_generation_and_those_of_other_machines_go_on_beside_each_other() {
        let data = tempfile::tempdir().unwrap();
        let all = generations(data.path());
        let other = MachineId(uuid::Uuid::from_u128(1));
        let (go, gone) = tokio::sync::oneshot::channel();
        let first = all.act(Aim::of(ID, 3), Act::Change, async { Ok(gone.await.is_ok()) });
        let beside = async {
            step(&all, 3, Act::Change).await?;
            all.act(Aim::of(other, 9), Act::End, ready(Ok(()))).await?;
            go.send(()).map_err(|()| EngineError::Transient("the first one is gone".into()))
        };
        assert_eq!(tokio::join!(first, beside), (Ok(true), Ok(())));
    }
}
