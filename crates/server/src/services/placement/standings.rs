//! Hosts as a transaction sees them, and what is decided over them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use berth_domain::host::State;
use berth_domain::host::gpu::{Device, Gpu};
use berth_domain::host::placement::{
    AtHand, Disk, Host, Overcommit, Placed, Policy, Promised, Refused, Stores, Wish, place as decide,
};
use berth_domain::ids::HostId;
use serde_json::json;
use uuid::Uuid;

use crate::db::machine_gpu::{self, Held};
use crate::db::{DbError, Tx, machine};
use crate::services::host::{self, HostRow};

/// Where more hosts than these were asked all are read: to name so many takes as long.
const MANY: usize = 100;

/// What a host has at this moment for machines of the kind that is wished.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Virtual CPUs that it offers; none where they are not counted.
    pub vcpu: Option<i64>,
    /// MiB that it offers, as often as each is promised.
    pub memory_mb: i64,
    /// How many sandboxes it takes at most; none where they are not counted.
    pub most_sandboxes: Option<i64>,
    /// Its disk.
    pub disk: Disk,
    /// Its GPUs, where some are wished.
    pub gpus: &'a [Gpu],
    /// What it lacks of addresses and ports, or of what the machine is like, as a sentence.
    pub lacks: Option<&'a str>,
    /// What it has of what the machine begins with.
    pub at_hand: AtHand,
}

/// Why a machine is put nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The sentence for who asked for it, which names no host.
    pub owner: String,
    /// A sentence for each host, for administrators of the platform.
    pub hosts: Vec<String>,
    /// Whether it ends by an operator's word, so that what can wait waits.
    pub passes: bool,
    /// Whether it may end by itself in a moment, since not all was asked yet.
    pub is_early: bool,
}

impl Refusal {
    /// A refusal that is the same on every host.
    pub const fn everywhere(missing: String) -> Self {
        Self { owner: missing, hosts: Vec::new(), passes: false, is_early: false }
    }

    /// What its event says to administrators.
    pub fn event(&self) -> serde_json::Value {
        json!({ "reason": self.owner, "hosts": self.hosts })
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        let (passes, is_early) = (refused.passes(), refused.is_early);
        Self { owner: refused.for_owner(), hosts: refused.for_operator(), passes, is_early }
    }
}

/// A host's row, and what machines hold of it.
struct Standing {
    row: HostRow,
    stores: Stores,
    promised: Promised,
    held_gpus: BTreeSet<Device>,
}

/// Hosts as a transaction sees them: those that were asked what they have, or all.
///
/// A host that was not asked takes no machine, so that both put one onto the same host. Only where none takes it are all
/// wanted, to be told of.
pub struct Standings(BTreeMap<HostId, Standing>);

impl Standings {
    /// Reads these hosts, and the service's own; what machines have of their GPUs only where some are wished.
    ///
    /// # Errors
    /// As for a database that does not answer where the service's own host is lost: whoever has its machines now decides for
    /// them, and nothing may fail by this one's word.
    pub async fn of(
        tx: &mut Tx,
        own: HostId,
        hosts: impl IntoIterator<Item = HostId>,
        with_gpus: bool,
    ) -> Result<Self, DbError> {
        let ids: Vec<_> = hosts.into_iter().chain([own]).collect::<BTreeSet<_>>().into_iter().collect();
        if ids.len() > MANY {
            return Self::all(tx, own, with_gpus).await;
        }
        let rows = host::among(&mut *tx, &ids).await?;
        let promised = machine::promised_among(&mut *tx, &ids).await?;
        let held = if with_gpus { machine_gpu::among(tx, &ids).await? } else { Vec::new() };
        Self::new(own, rows, promised, held)
    }

    /// Reads all hosts, likewise.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub async fn all(tx: &mut Tx, own: HostId, with_gpus: bool) -> Result<Self, DbError> {
        let (rows, promised) = (host::all(&mut *tx).await?, machine::promised(&mut *tx).await?);
        let held = if with_gpus { machine_gpu::all(tx).await? } else { Vec::new() };
        Self::new(own, rows, promised, held)
    }

    fn new(
        own: HostId,
        rows: Vec<HostRow>,
        mut promised: HashMap<HostId, Promised>,
        held: Vec<Held>,
    ) -> Result<Self, DbError> {
        if rows.iter().any(|row| row.state == State::Lost && row.id == own) {
            return Err(DbError::Unavailable("another service has the machines of this host by now".into()));
        }
        let mut held_gpus = HashMap::<_, BTreeSet<_>>::new();
        for held in held {
            held_gpus.entry(held.host).or_default().insert(held.device);
        }
        let mut standing = |row: HostRow| Standing {
            promised: promised.remove(&row.id).unwrap_or_default(),
            held_gpus: held_gpus.remove(&row.id).unwrap_or_default(),
            stores: row.usable_stores(),
            row,
        };
        Ok(Self(rows.into_iter().map(|row| (row.id, standing(row))).collect()))
    }

    /// How often a host promises a MiB, where its row is there and says so; else as here.
    pub fn overcommit(&self, host: HostId, here: Overcommit) -> Overcommit {
        self.0.get(&host).map_or(here, |it| it.row.overcommit(here))
    }

    /// Puts a machine onto one of the hosts, of which these say what they have `now`, or says why none takes it.
    ///
    /// # Errors
    /// Why none takes it.
    pub fn place(
        &self,
        wish: &Wish<'_>,
        now: &HashMap<HostId, Now<'_>>,
        overcommit: Overcommit,
    ) -> Result<Placed, Refusal> {
        let fleet: Vec<_> = self.0.values().map(|it| it.host(now.get(&it.row.id), overcommit)).collect();
        decide(wish, &fleet, Policy::default(), Uuid::now_v7).map_err(Refusal::from)
    }
}

impl Standing {
    /// A host as it stands, with what it says that it has.
    fn host<'a>(&'a self, now: Option<&Now<'a>>, overcommit: Overcommit) -> Host<'a> {
        let row = &self.row;
        Host {
            id: row.id,
            name: row.name(),
            state: row.state(),
            says: now.is_some(),
            regions: &row.regions,
            labels: &row.labels,
            stores: &self.stores,
            vcpu: now.and_then(|now| now.vcpu),
            memory_mb: now.map_or(0, |now| now.memory_mb),
            most_sandboxes: now.and_then(|now| now.most_sandboxes),
            overcommit: row.overcommit(overcommit),
            promised: self.promised,
            disk: now.map_or_else(Disk::default, |now| now.disk),
            gpus: now.map_or(&[], |now| now.gpus),
            held_gpus: &self.held_gpus,
            lacks: now.and_then(|now| now.lacks),
            at_hand: now.map_or(AtHand::Nothing, |now| now.at_hand),
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_domain::host::placement::{Kind, WishedGpus};
    use berth_domain::ids::VmId;
    use berth_domain::machine::Owner;

    use super::*;
    use crate::columns;
    use crate::db::machine::Machine;
    use crate::db::{Db, record};

    const HERE: Overcommit = Overcommit { vm: 1.0, sandbox: 1.0 };
    const WISH: Wish<'_> = Wish {
        kind: Kind::Vm,
        vcpu: 1,
        memory_mb: 512,
        most: 1,
        disk_gb: None,
        gpus: None,
        region: Some("local"),
        labels: None,
        needs: AtHand::Nothing,
        tied: None,
        on: None,
        store: None,
    };

    async fn host(tx: &mut Tx, name: &str, state: &str) -> HostId {
        let id = HostId(Uuid::now_v7());
        let row = columns! {
            "id": id, "name": name, "addresses": "[]", "regions": "[\"local\"]", "cpus": 1_i64, "memory_mb": 1024_i64,
            "overcommit": "{\"vm\": 2.0}", "labels": "{}", "state": state, "last_seen": 0_i64, "created_at": 0_i64,
        };
        record::insert("hosts", row).execute(tx).await.expect("a row");
        id
    }

    /// Has a machine hold half of what a host has, with a GPU.
    async fn hold(tx: &mut Tx, host: HostId) -> Device {
        let machine = Machine::new(machine::new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 512);
        machine::insert(&mut *tx, &Machine { host: Some(host), reserved: true, ..machine.clone() })
            .await
            .expect("a row");
        let device = Device::Function("0000:01:00.0".parse().expect("an address"));
        machine_gpu::reserve(tx, host, machine.id, std::slice::from_ref(&device)).await.expect("a device");
        device
    }

    async fn database() -> (Db, tempfile::TempDir) {
        let dir = tempfile::tempdir().expect("a folder");
        (Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.expect("a database"), dir)
    }

    /// What one says that offers so much.
    const fn now(memory_mb: i64) -> Now<'static> {
        Now {
            vcpu: None,
            memory_mb,
            most_sandboxes: None,
            disk: Disk { is_full: false, sizes: None },
            gpus: &[],
            lacks: None,
            at_hand: AtHand::Nothing,
        }
    }

    #[tokio::test]
    async fn those_that_were_asked_decide_alone_and_all_are_told_of_where_none_takes_it() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.expect("a transaction");
        let own = host(&mut tx, "own", "ready").await;
        let (asked, other) = (host(&mut tx, "asked", "ready").await, host(&mut tx, "other", "ready").await);
        let device = hold(&mut tx, asked).await;
        hold(&mut tx, other).await;
        let few = Standings::of(&mut tx, own, [asked], true).await.expect("standings");
        let all = Standings::all(&mut tx, own, true).await.expect("standings");
        assert_eq!(few.0.keys().copied().collect::<Vec<_>>(), [own, asked]);
        assert_eq!(all.0.keys().copied().collect::<Vec<_>>(), [own, asked, other]);
        for standings in [&few, &all] {
            let standing = &standings.0[&asked];
            assert_eq!(
                (standing.promised.vms.memory_mb, &standing.held_gpus),
                (512, &BTreeSet::from([device.clone()]))
            );
            let placed = standings.place(&WISH, &[(asked, now(1024))].into(), HERE).expect("a place");
            assert_eq!(placed.host, asked);
            assert!(placed.reason.contains("512 of 1024 MiB left"), "{}", placed.reason);
        }
        let without_gpus = Standings::of(&mut tx, own, [asked], false).await.expect("standings");
        assert!(without_gpus.0[&asked].held_gpus.is_empty());
        assert_eq!((few.overcommit(asked, HERE).vm, few.overcommit(other, HERE)), (2.0, HERE));
        // What is held counts, to the last MiB.
        let full = [(asked, now(1023))].into();
        let refusal = all.place(&WISH, &full, HERE).expect_err("a refusal");
        assert_eq!(refusal.hosts.len(), 3, "{refusal:?}");
        assert_eq!(refusal.hosts[0], "host asked: 511 of 1023 MiB left, 512 wanted");
        assert_eq!(
            few.place(&WISH, &full, HERE).map(|placed| placed.host),
            Err(Refusal { hosts: refusal.hosts[..2].to_vec(), ..refusal })
        );
        let gpus = Some(WishedGpus { model: "any", count: 1 });
        assert!(few.place(&Wish { gpus, ..WISH }, &[(asked, now(1024))].into(), HERE).is_err());
    }

    #[tokio::test]
    async fn who_lost_its_own_host_decides_nothing_whoever_was_asked() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.expect("a transaction");
        let (own, other) = (host(&mut tx, "own", "lost").await, host(&mut tx, "other", "ready").await);
        let few = Standings::of(&mut tx, own, [other], false).await;
        let all = Standings::all(&mut tx, own, false).await;
        for read in [few, all] {
            assert!(matches!(read.err(), Some(DbError::Unavailable(_))));
        }
        assert!(Standings::of(&mut tx, other, [own], false).await.is_ok(), "another one's");
    }

    #[tokio::test]
    async fn of_many_all_are_read() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.expect("a transaction");
        let mut hosts = Vec::new();
        for _ in 0..=MANY {
            hosts.push(host(&mut tx, "one", "ready").await);
        }
        for (asked, read) in [(MANY, MANY), (MANY - 1, MANY - 1), (MANY + 1, MANY + 1)] {
            let standings = Standings::of(&mut tx, hosts[0], hosts[..asked].iter().copied(), false).await;
            assert_eq!(standings.expect("standings").0.len(), read);
        }
    }
}
