//! Whom to ask first what they have.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use berth_domain::host::State;
use berth_domain::host::overcommit::{offered_mb, withheld_mb};
use berth_domain::host::placement::{Overcommit, Promised};
use berth_domain::ids::HostId;
use tokio::sync::Mutex;

use crate::db::{Db, DbError, machine};
use crate::services::host::{self, HostRow};

/// How many hosts are asked at once what they have, where there are more: first a few, then more, then all others.
const AT_ONCE: [usize; 2] = [8, 64];
/// For how long what was read of all hosts is good enough to choose whom to ask.
const AGE: Duration = Duration::from_secs(1);

/// What is asked of hosts, as far as rows tell whether they have it.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    /// The region.
    pub region: &'a str,
    /// MiB.
    pub memory_mb: i64,
    /// The model of GPUs, if some are wished.
    pub gpu_model: Option<&'a str>,
}

/// What rows say of all hosts, as of a moment ago, for whoever chooses whom to ask. What it is wrong about is found out by
/// asking: it decides nothing, and hides nobody, since all are asked in the end.
#[derive(Default)]
pub struct Estimates(Mutex<Option<Estimate>>);

/// One look at all rows.
struct Estimate {
    at: Instant,
    hosts: HashMap<HostId, (Promised, HostRow)>,
}

impl Estimates {
    /// These hosts in the turns in which they are asked what they have for a VM: where there are many, first a few of which,
    /// by what is written of them, the largest share is left. Who asks them goes on to the next turn only if none of those
    /// takes it.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn turns(
        &self,
        on: &Db,
        hosts: Vec<HostId>,
        sought: Sought<'_>,
        here: Overcommit,
    ) -> Result<Vec<Vec<HostId>>, DbError> {
        if hosts.len() <= AT_ONCE[0] {
            return Ok(vec![hosts]);
        }
        // One reads, and those who come meanwhile wait for what is read.
        let mut known = self.0.lock().await;
        let estimate = match known.take().filter(|known| known.at.elapsed() < AGE) {
            Some(known) => known,
            None => Estimate::read(on).await?,
        };
        Ok(in_turns(hosts, known.insert(estimate), sought, here))
    }

    /// Notes that a VM was put onto a host, so that those who come before the next look spread as if they saw it. Nobody waits for
    /// who reads: that sees it, or one more is asked.
    pub fn note(&self, host: HostId, memory_mb: i64) {
        let Ok(mut known) = self.0.try_lock() else { return };
        if let Some((promised, _)) = known.as_mut().and_then(|known| known.hosts.get_mut(&host)) {
            promised.vms.memory_mb += memory_mb;
        }
    }
}

impl Estimate {
    async fn read(on: &Db) -> Result<Self, DbError> {
        let (rows, mut promised) = (host::all(on).await?, machine::promised(on).await?);
        // However long that took: those who waited for it are not to read again.
        let at = Instant::now();
        let mut sums_of = |id| promised.remove(&id).unwrap_or_default();
        let hosts = rows.into_iter().map(|row| (row.id, (sums_of(row.id), row)));
        Ok(Self { at, hosts: hosts.collect() })
    }
}

/// Hosts in turns, those first that seem able.
fn in_turns(hosts: Vec<HostId>, known: &Estimate, sought: Sought<'_>, here: Overcommit) -> Vec<Vec<HostId>> {
    let share_of = |id: &HostId| known.hosts.get(id).and_then(|(promised, row)| share(row, *promised, sought, here));
    let mut able: Vec<_> = hosts.iter().filter_map(|id| Some((Reverse(share_of(id)?), *id))).collect();
    able.sort_unstable();
    let able: Vec<_> = able.into_iter().map(|(_, id)| id).collect();
    after_the_able(hosts, &able)
}

/// All hosts in turns, the able ones first.
fn after_the_able(hosts: Vec<HostId>, able: &[HostId]) -> Vec<Vec<HostId>> {
    let mut turns = Vec::new();
    let mut able = able;
    for many in AT_ONCE {
        let (turn, others) = able.split_at(many.min(able.len()));
        turns.push(turn.to_vec());
        able = others;
    }
    let asked: HashSet<_> = turns.iter().flatten().copied().collect();
    turns.push(hosts.into_iter().filter(|host| !asked.contains(host)).collect());
    turns.retain(|turn| !turn.is_empty());
    turns
}

/// About which share of a host's memory is left for VMs, in millionths; none where its row says that it does not take one.
fn share(row: &HostRow, promised: Promised, sought: Sought<'_>, here: Overcommit) -> Option<i64> {
    let is_able = row.state() == State::Ready && row.trouble.is_none();
    let has_gpus = sought.gpu_model.is_none_or(|model| row.gpus.iter().any(|gpu| gpu.is_of(model)));
    if !is_able || !has_gpus || !row.regions.iter().any(|id| id == sought.region) {
        return None;
    }
    let overcommit = row.overcommit(here);
    let offered = offered_mb(row.capacity.memory_mb, overcommit.vm);
    let others = promised.sandboxes.memory_mb + promised.templates.memory_mb;
    let left = offered - promised.vms.memory_mb - withheld_mb(others, overcommit.sandbox, overcommit.vm);
    (left >= sought.memory_mb).then(|| left.saturating_mul(1_000_000) / offered.max(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_domain::Timestamp;
    use berth_domain::host::Capacity;
    use berth_domain::host::placement::Sum;
    use berth_domain::ids::VmId;
    use berth_domain::machine::Owner;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::columns;
    use crate::db::machine::Machine;
    use crate::db::record;

    const HERE: Overcommit = Overcommit { vm: 1.0, sandbox: 1.0 };
    const SOUGHT: Sought<'_> = Sought { region: "local", memory_mb: 512, gpu_model: None };

    fn id(number: usize) -> HostId {
        HostId(Uuid::from_u128(u128::try_from(number).expect("a number")))
    }

    fn row(id: HostId, state: State, region: &str) -> HostRow {
        HostRow {
            id,
            name: "alpha".into(),
            given_name: None,
            addresses: Vec::new(),
            regions: vec![region.into()],
            capacity: Capacity { cpus: 1, memory_mb: 4096 },
            gpus: Vec::new(),
            overcommit: BTreeMap::new(),
            boot: None,
            labels: BTreeMap::new(),
            state,
            cordoned: false,
            drain: None,
            last_seen: Timestamp(0),
            created_at: Timestamp(0),
            joined: true,
            service: None,
            enrolment: 1,
            token_hash: None,
            token_until: None,
            certificate_until: None,
            version: None,
            trouble: None,
            stores: BTreeMap::new(),
            store_addresses: BTreeMap::new(),
            fences: BTreeMap::new(),
        }
    }

    fn held(memory_mb: i64) -> Promised {
        Promised { vms: Sum { machines: 1, vcpu: 1, memory_mb }, ..Promised::default() }
    }

    prop_compose! {
        /// What is known of a host, and whether it seems able.
        fn known()(is_ready in any::<bool>(), is_near in any::<bool>(), memory_mb in 0_i64..5000)
            -> (bool, State, &'static str, i64)
        {
            let state = if is_ready { State::Ready } else { State::Lost };
            let region = if is_near { "local" } else { "elsewhere" };
            (is_ready && is_near && memory_mb <= 4096 - SOUGHT.memory_mb, state, region, memory_mb)
        }
    }

    proptest! {
        #[test]
        fn everybody_is_asked_once_and_first_who_has_most_left(
            fleet in prop::collection::vec(known(), 9..120),
            unknown in 0_usize..20,
        ) {
            let known = fleet.iter().enumerate().map(|(at, (_, state, region, memory_mb))| {
                (id(at), (held(*memory_mb), row(id(at), *state, region)))
            });
            let estimate = Estimate { at: Instant::now(), hosts: known.collect() };
            // Some came since.
            let hosts: Vec<_> = (0..fleet.len() + unknown).map(id).collect();
            let turns = in_turns(hosts.clone(), &estimate, SOUGHT, HERE);
            let mut asked = turns.concat();
            asked.sort_unstable();
            prop_assert_eq!(asked, hosts);
            let mut able: Vec<_> = fleet.iter().enumerate().filter(|(_, it)| it.0).map(|(at, it)| (it.3, id(at))).collect();
            able.sort_unstable();
            let first: Vec<_> = able.into_iter().map(|(_, id)| id).take(AT_ONCE.iter().sum()).collect();
            prop_assert_eq!(&turns.concat()[..first.len()], first.as_slice());
            prop_assert!(turns.len() == 1 || turns[0].len() <= AT_ONCE[0]);
        }
    }

    #[test]
    fn those_that_seem_able_are_asked_first_and_everybody_in_the_end() {
        let hosts: Vec<_> = (1..=100).map(id).collect();
        let able: Vec<_> = hosts.iter().rev().take(80).copied().collect();
        let turns = after_the_able(hosts.clone(), &able);
        assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [8, 64, 28]);
        assert_eq!(turns[0], able[..8]);
        let asked: HashSet<_> = turns.into_iter().flatten().collect();
        assert_eq!(asked, hosts.iter().copied().collect());
        assert_eq!(after_the_able(hosts.clone(), &[]), [hosts]);
    }

    async fn insert(db: &Db, number: usize) {
        let row = columns! {
            "id": id(number), "name": "alpha", "addresses": "[]", "regions": "[\"local\"]", "cpus": 1_i64, "memory_mb": 4096_i64,
            "overcommit": "{}", "labels": "{}", "state": "ready", "last_seen": 0_i64, "created_at": 0_i64,
        };
        let mut tx = db.begin().await.expect("a transaction");
        record::insert("hosts", row).execute(&mut tx).await.expect("a row");
        tx.commit().await.expect("committed");
    }

    #[tokio::test]
    async fn rows_are_read_again_once_what_was_read_is_old() {
        let dir = tempfile::tempdir().expect("a folder");
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.expect("a database");
        let (hosts, estimates): (Vec<_>, _) = ((0..9).map(id).collect(), Estimates::default());
        for number in 0..8 {
            insert(&db, number).await;
        }
        let first = async || estimates.turns(&db, hosts.clone(), SOUGHT, HERE).await.expect("turns").concat()[0];
        let read_at = async |at: Instant| estimates.0.lock().await.as_mut().expect("an estimate").at = at;
        assert_eq!(first().await, id(0));
        // As if it had been read just now for the next hour, however slow this is.
        read_at(Instant::now() + Duration::from_hours(1)).await;
        let machine = Machine::new(machine::new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 512);
        let mut tx = db.begin().await.expect("a transaction");
        machine::insert(&mut tx, &Machine { host: Some(id(0)), reserved: true, ..machine }).await.expect("a row");
        tx.commit().await.expect("committed");
        insert(&db, 8).await;
        assert_eq!(first().await, id(0), "it is not read again");
        estimates.note(id(0), 512);
        estimates.note(id(1), 512);
        assert_eq!(first().await, id(2), "what was put there since counts");
        let past = Instant::now().checked_sub(AGE).expect("a moment ago");
        read_at(past).await;
        assert_eq!(first().await, id(1), "rows say so, and nothing of what was noted");
        let turns = estimates.turns(&db, hosts.clone(), SOUGHT, HERE).await.expect("turns");
        assert!(turns[0].contains(&id(8)) && turns[1] == [id(0)], "{turns:?}");
    }
}
