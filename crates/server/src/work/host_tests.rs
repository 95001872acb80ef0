use std::sync::{Arc, Mutex};

use berth_domain::ids::{MemoryId, VmId};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::*;
use crate::db::machine::Machine;

/// A host with some machines, and owners that want one by their rows.
struct Few {
    db: Db,
    events: broadcast::Sender<MachineId>,
    wanting: Vec<VmId>,
    there: Vec<MachineId>,
    /// The machine that cannot be removed.
    stuck: Option<MachineId>,
    removed: Arc<Mutex<Vec<MachineId>>>,
    /// Those that are off, what the host says of each that is to end, and those that were to.
    off: Vec<(Aim, berth_host::Result<()>)>,
    ended: Arc<Mutex<Vec<Aim>>>,
    others: mpsc::UnboundedSender<Owner>,
}

impl MachineOwners for Few {
    type Id = VmId;
    const SENTENCES: Sentences = Sentences { adopting: "", unlisted: "", unsearched: "", removing: "" };

    fn db(&self) -> &Db {
        &self.db
    }

    fn host(&self) -> HostId {
        HostId(Uuid::nil())
    }

    fn events(&self) -> broadcast::Receiver<MachineId> {
        self.events.subscribe()
    }

    fn of_kind(owner: Owner) -> Option<VmId> {
        if let Owner::Vm(vm) = owner { Some(vm) } else { None }
    }

    fn happened_to_another(&self, owner: Owner) {
        self.others.send(owner).unwrap();
    }

    async fn wanting(&self) -> Result<Vec<VmId>, DbError> {
        Ok(self.wanting.clone())
    }

    async fn machines(&self) -> berth_host::Result<Vec<MachineId>> {
        Ok(self.there.clone())
    }

    async fn off(&self) -> Result<Vec<Aim>, DbError> {
        Ok(self.off.iter().map(|(aim, _)| *aim).collect())
    }

    async fn end(&self, aim: Aim) -> berth_host::Result<()> {
        self.ended.lock().unwrap().push(aim);
        self.off.iter().find(|(off, _)| *off == aim).unwrap().1.clone()
    }

    async fn remove(&self, id: MachineId) -> berth_host::Result<()> {
        self.removed.lock().unwrap().push(id);
        if self.stuck == Some(id) { Err(berth_host::EngineError::Transient("not now".into())) } else { Ok(()) }
    }

    async fn search(&self) -> Result<(), StepError> {
        Ok(end_unowned(self, self.there.clone()).await?)
    }
}

/// A host whose database has a machine for each owner, and who hears of other owners.
async fn few(dir: &tempfile::TempDir, owners: &[Owner]) -> (Few, Vec<MachineId>, mpsc::UnboundedReceiver<Owner>) {
    let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let mut machines = Vec::new();
    for owner in owners {
        let row = Machine::new(machine::new_id(), *owner, 1, 256);
        machine::insert(&mut tx, &row).await.unwrap();
        machines.push(row.id);
    }
    tx.commit().await.unwrap();
    let (others, told) = mpsc::unbounded_channel();
    let few = Few {
        db,
        events: broadcast::Sender::new(2),
        wanting: Vec::new(),
        there: Vec::new(),
        stuck: None,
        removed: Arc::default(),
        off: Vec::new(),
        ended: Arc::default(),
        others,
    };
    (few, machines, told)
}

fn vm() -> VmId {
    VmId(Uuid::now_v7())
}

/// The next owners that are poked: so many.
async fn next(poked: &mut mpsc::UnboundedReceiver<VmId>, count: usize) -> HashSet<VmId> {
    let mut ids = Vec::new();
    while ids.len() < count {
        ids.push(poked.recv().await.unwrap());
    }
    assert!(poked.is_empty(), "one more is poked");
    ids.into_iter().collect()
}

#[tokio::test]
async fn owners_are_looked_at_when_the_watch_begins_and_when_something_happens() {
    let dir = tempfile::tempdir().unwrap();
    let (wants, wants_none, warm) = (vm(), vm(), Owner::Warm(MemoryId(Uuid::now_v7())));
    let (mut few, machines, mut told) = few(&dir, &[Owner::Vm(wants), Owner::Vm(wants_none), warm]).await;
    few.wanting = vec![wants, vm()];
    few.there = vec![machine::new_id(), machines[1], machines[2]];
    let all: HashSet<_> = few.wanting.iter().copied().chain([wants_none]).collect();
    let (sender, mut poked) = mpsc::unbounded_channel();
    let (events, stop) = (few.events.clone(), CancellationToken::new());
    let watching = tokio::spawn(watch(few, Poker(sender), stop.clone()));
    assert_eq!(next(&mut poked, 3).await, all);
    events.send(machines[0]).unwrap();
    assert_eq!(next(&mut poked, 1).await, [wants].into());
    events.send(machines[2]).unwrap();
    assert_eq!(told.recv().await, Some(warm));
    // More at once than are kept: what happened to whom is not known, so that all are looked at. One task at a time runs
    // here, so that the watch reads none of them before they are all there.
    for _ in 0..3 {
        events.send(machine::new_id()).unwrap();
    }
    assert_eq!(next(&mut poked, 3).await, all);
    stop.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn what_is_off_is_ended_once_by_a_host_that_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let (mut few, ..) = few(&dir, &[]).await;
    few.there = vec![machine::new_id()];
    let aims = [1, 2, 3].map(|generation| Aim::of(machine::new_id(), generation));
    let said = [Err(EngineError::Transient("not now".into())), Err(EngineError::Outdated(3)), Ok(())];
    few.off = aims.into_iter().zip(said).collect();
    let mut is_new = true;
    assert!(search(&few, &mut is_new).await.is_err() && is_new, "it is tried again");
    assert_eq!(*few.removed.lock().unwrap(), few.there, "what no row owns goes meanwhile");
    few.off[0].1 = Ok(());
    search(&few, &mut is_new).await.unwrap();
    assert!(!is_new);
    search(&few, &mut is_new).await.unwrap();
    assert_eq!(*few.ended.lock().unwrap(), [aims, aims].concat());
}

#[tokio::test]
async fn only_what_no_row_owns_is_removed_whatever_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let (mut few, machines, _told) = few(&dir, &[Owner::Vm(vm())]).await;
    let nobodys = [(); 2].map(|()| machine::new_id());
    few.there = vec![nobodys[0], machines[0], nobodys[1]];
    few.stuck = Some(nobodys[0]);
    few.search().await.unwrap();
    assert_eq!(*few.removed.lock().unwrap(), nobodys);
}
