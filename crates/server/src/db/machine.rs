//! Machines: one row for each, whoever owns it, and what machines hold of a host's memory and processors.
//!
//! A VM owns a machine for as long as it is there, a sandbox does, and a template owns those that build or boot it. The
//! store of each owner writes the machine's row in the transaction that writes the owner's, so that a sum over the rows of
//! a host is what is promised of it at that moment, to all kinds together. A machine's id is what its folder and its
//! process are called: the row is there before them, and goes, or is marked, after them.
//!
//! A machine that began with a template's memory before anybody asked is nobody's yet: its owner is that memory. Whoever
//! creates a sandbox with it changes its owner in the transaction that writes the sandbox. It holds what it may use like
//! every other one, and gives way to whoever needs that ([`reserve`]).
//!
//! Intended and observed stand apart. What is to be: the owner, the host, the size, whether it is reserved, slot, addresses,
//! port and generation, all of them written before the host is asked for anything. What was seen: `host_boot`, the boot of
//! the host that the machine was started in, and `ready`, that one which nobody owns did what it was started for; whether
//! it runs is no column, since only the host knows. What an owner wants of its machine, and how far that is, stands on the
//! owner's row, which a person reads. Of the columns that migration 0027 copied here, `vcpu` and `memory_mb` of the owners'
//! rows stay in use: they are the size that was asked for, and the row of the machine says the same.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use berth_domain::Timestamp;
use berth_domain::host::Aim;
use berth_domain::host::placement::{Promised, Room, Sum};
use berth_domain::ids::{HostId, LayerId, MachineId, MemoryId};
use berth_domain::machine::{Owner, OwnerKind};
use uuid::Uuid;

use super::machine_gpu;
use super::record::{self, Columns};
use super::{DbError, FromRow, On, Query, Row, Signal, Tx, home, marks, sql};
use crate::columns;

/// The table.
pub const TABLE: &str = "machines";

/// The columns of a machine, `m`, by names that no owner's columns have.
#[macro_export]
macro_rules! machine_columns {
    () => {
        "m.id AS machine_id, m.owner_kind AS machine_owner_kind, m.owner_id AS machine_owner_id, \
         m.host_id AS machine_host_id, m.vcpu AS machine_vcpu, m.memory_mb AS machine_memory_mb, \
         m.reserved AS machine_reserved, m.slot AS machine_slot, m.address AS machine_address, \
         m.ssh_port AS machine_ssh_port, m.shared_address AS machine_shared_address, \
         m.pool_address AS machine_pool_address, m.generation AS machine_generation, \
         m.host_boot AS machine_host_boot, m.deleted_at AS machine_deleted_at, m.layer_id AS machine_layer_id, m.ready AS machine_ready, \
         CAST(CASE WHEN EXISTS (SELECT 1 FROM hosts h WHERE h.id = m.host_id AND h.state = 'lost' AND h.removed_at IS NULL) THEN 1 ELSE 0 END AS BIGINT) \
         AS machine_host_is_lost, \
         CAST(CASE WHEN EXISTS (SELECT 1 FROM vm_migrations g WHERE g.vm_id = m.owner_id) THEN 1 ELSE 0 END AS BIGINT) \
         AS machine_migrating"
    };
}

/// The machines of a table's owners of one machine each, of this kind, as they are joined to it.
#[macro_export]
macro_rules! machine_join {
    ($table:literal, $kind:literal) => {
        concat!("JOIN machines m ON m.owner_id = ", $table, ".id AND m.owner_kind = '", $kind, "'")
    };
}

/// A table of owners of one machine each, of this kind, with their machines beside them.
#[macro_export]
macro_rules! with_machine {
    ($table:literal, $kind:literal) => {
        concat!($table, " ", $crate::machine_join!($table, $kind))
    };
}

/// Every machine that is not gone, and those that come to a host while they run.
const LIVING: &str = "SELECT id, owner_kind, owner_id FROM machines \
     WHERE deleted_at IS NULL AND (host_id IS NULL OR host_id = $1) \
     UNION SELECT m.id, m.owner_kind, m.owner_id FROM vm_migrations g \
     JOIN machines m ON m.owner_id = g.vm_id AND m.owner_kind = 'vm' WHERE g.host_id = $1";
/// Every warm machine of a host.
const ALL_WARM: &str = concat!(
    "SELECT ",
    machine_columns!(),
    " FROM machines m WHERE m.owner_kind = 'warm' AND m.host_id = $1 ORDER BY m.id"
);
/// Has all warm machines of a host hold nothing.
const GIVE_WAY: &str = "UPDATE machines SET reserved = 0, ready = 0 WHERE owner_kind = 'warm' AND host_id = $1";

/// A machine as its row has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Its id: what it is called on its host.
    pub id: MachineId,
    /// What it is for.
    pub owner: Owner,
    /// Where it is; none while it was not put anywhere yet.
    pub host: Option<HostId>,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Whether it holds its processors and memory of the host.
    pub reserved: bool,
    /// A small number that no other machine of the host has: its user there, and the place of its network.
    pub slot: Option<i64>,
    /// Its address, if it has one of its own.
    pub address: Option<Ipv4Addr>,
    /// The port at which SSH answers, of its own address or of the shared one.
    pub ssh_port: Option<u16>,
    /// The address of its host at which it is reached, if it shares one.
    pub shared_address: Option<IpAddr>,
    /// The address of its own that others reach it at, if it has one.
    pub pool_address: Option<IpAddr>,
    /// Starts by its owner so far: none yet of a warm machine, though it runs.
    pub generation: i64,
    /// The host's boot that it was started in last.
    pub host_boot: Option<String>,
    /// Whether its host does not answer. Read with the machine, and never written.
    pub host_is_lost: bool,
    /// Whether another host waits for it, where it goes while it runs. Read with the machine, and never written.
    pub migrating: bool,
    /// When its owner went.
    pub deleted_at: Option<Timestamp>,
    /// Of one that nobody owns yet: the top layer of its disk.
    pub layer: Option<LayerId>,
    /// Of one that nobody owns yet: whether somebody may have it.
    pub ready: bool,
}

impl Machine {
    /// Is on another host from now on, where it holds nothing yet.
    pub fn leave_for(&mut self, host: HostId) {
        self.leave();
        self.host = Some(host);
    }

    /// Is on no host from now on, and holds nothing.
    pub fn leave(&mut self) {
        (self.host, self.reserved, self.slot, self.host_boot) = (None, false, None, None);
        (self.address, self.ssh_port, self.shared_address, self.pool_address) = (None, None, None, None);
    }
}

impl FromRow for Machine {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let kind = row.word("machine_owner_kind", OwnerKind::parse)?;
        Ok(Self {
            id: row.parsed("machine_id")?,
            owner: Owner::new(kind, row.parsed("machine_owner_id")?),
            host: row.opt_parsed("machine_host_id")?,
            vcpu: row.int("machine_vcpu")?,
            memory_mb: row.int("machine_memory_mb")?,
            reserved: row.flag("machine_reserved")?,
            slot: row.opt_int("machine_slot")?,
            address: row.opt_parsed("machine_address")?,
            ssh_port: row.opt_int("machine_ssh_port")?.and_then(|port| u16::try_from(port).ok()),
            shared_address: row.opt_parsed("machine_shared_address")?,
            pool_address: row.opt_parsed("machine_pool_address")?,
            generation: row.int("machine_generation")?,
            host_boot: row.opt_text("machine_host_boot")?,
            host_is_lost: row.flag("machine_host_is_lost")?,
            migrating: row.flag("machine_migrating")?,
            deleted_at: row.opt_time("machine_deleted_at")?,
            layer: row.opt_parsed("machine_layer_id")?,
            ready: row.flag("machine_ready")?,
        })
    }
}

fn columns(m: &Machine) -> Columns {
    columns! {
        "id": m.id, "owner_kind": m.owner.kind().as_str(), "owner_id": m.owner.id().to_string(), "host_id": m.host,
        "vcpu": m.vcpu, "memory_mb": m.memory_mb, "reserved": m.reserved, "slot": m.slot,
        "address": m.address.map(|address| address.to_string()), "ssh_port": m.ssh_port.map(i64::from),
        "shared_address": m.shared_address.map(|address| address.to_string()),
        "pool_address": m.pool_address.map(|address| address.to_string()),
        "generation": m.generation, "host_boot": m.host_boot.clone(), "deleted_at": m.deleted_at,
        "layer_id": m.layer, "ready": m.ready,
    }
}

impl Machine {
    /// A machine that holds nothing yet.
    pub const fn new(id: MachineId, owner: Owner, vcpu: i64, memory_mb: i64) -> Self {
        Self {
            id,
            owner,
            host: None,
            vcpu,
            memory_mb,
            reserved: false,
            slot: None,
            address: None,
            ssh_port: None,
            shared_address: None,
            pool_address: None,
            generation: 0,
            host_boot: None,
            host_is_lost: false,
            migrating: false,
            deleted_at: None,
            layer: None,
            ready: false,
        }
    }

    /// The machine as what is decided about it for the generation that the row has.
    pub const fn aim(&self) -> Aim {
        Aim::of(self.id, self.generation)
    }

    /// It is gone with its owner.
    pub fn end(&mut self, now: Timestamp) {
        (self.reserved, self.slot, self.address) = (false, None, None);
        (self.ssh_port, self.shared_address, self.pool_address) = (None, None, None);
        self.deleted_at = Some(now);
    }
}

/// Machines by their ids and generations, as what is decided about them is told.
pub async fn aims(of: Query, on: impl On) -> Result<Vec<Aim>, DbError> {
    struct Found(Aim);
    impl FromRow for Found {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            Ok(Self(Aim::of(row.parsed("id")?, row.int("generation")?)))
        }
    }
    let found: Vec<Found> = of.fetch_all(on).await?;
    Ok(found.into_iter().map(|found| found.0).collect())
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, machine: &Machine) -> Result<(), DbError> {
    record::insert(TABLE, columns(machine)).execute(tx).await.map(drop)
}

/// Writes what a change made different.
pub async fn update(tx: &mut Tx, before: &Machine, after: &Machine) -> Result<(), DbError> {
    if before == after {
        return Ok(());
    }
    record::update(tx, TABLE, &columns(before), columns(after)).await
}

/// Removes the row of a machine that is gone though its owner stays.
pub async fn remove(tx: &mut Tx, id: MachineId) -> Result<(), DbError> {
    sql("DELETE FROM machines WHERE id = $1").bind(id).execute(tx).await.map(drop)
}

/// An owner's machines, the oldest first.
pub async fn of_owner(on: impl On, owner: Owner) -> Result<Vec<Machine>, DbError> {
    sql(concat!(
        "SELECT ",
        machine_columns!(),
        " FROM machines m WHERE m.owner_id = $1 AND m.owner_kind = $2 AND m.deleted_at IS NULL ORDER BY m.id"
    ))
    .bind(owner.id().to_string())
    .bind(owner.kind().as_str())
    .fetch_all(on)
    .await
}

/// A machine and what owns it.
pub struct Owned(pub MachineId, pub Owner);

impl FromRow for Owned {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let owner = Owner::new(row.word("owner_kind", OwnerKind::parse)?, row.parsed("owner_id")?);
        Ok(Self(row.parsed("id")?, owner))
    }
}

/// What owns a machine that is not gone.
pub async fn owner(on: impl On, id: MachineId) -> Result<Option<Owner>, DbError> {
    let row = sql("SELECT id, owner_kind, owner_id FROM machines WHERE id = $1 AND deleted_at IS NULL");
    let found: Option<Owned> = row.bind(id).fetch_optional(on).await?;
    Ok(found.map(|Owned(_, owner)| owner))
}

/// Every machine that is not gone and may be on a host, with what owns it.
pub async fn living(on: impl On, host: HostId) -> Result<Vec<Owned>, DbError> {
    sql(LIVING).bind(host).fetch_all(on).await
}

/// The smallest slots of a host that are free: so many.
pub async fn free_slots(on: impl On, host: HostId, count: usize) -> Result<Vec<i64>, DbError> {
    let taken = sql("SELECT slot FROM machines WHERE host_id = $1 AND slot IS NOT NULL ORDER BY slot");
    let taken: Vec<i64> = taken.bind(host).fetch_all(on).await?;
    let mut taken = taken.into_iter().peekable();
    Ok((1..).filter(|slot| taken.next_if_eq(slot).is_none()).take(count).collect())
}

/// Has machines hold their processors and memory of a host from now on, each in a slot of its own. Where warm machines are
/// in the way, they hold nothing any more: nobody gets one of them, and the worker ends them.
pub async fn reserve(tx: &mut Tx, host: HostId, room: Room, machines: &mut [Machine]) -> Result<(), DbError> {
    if room == Room::Instead {
        give_way(tx, host).await?;
    }
    let without = machines.iter().filter(|machine| machine.slot.is_none()).count();
    // One that has a slot keeps it, and none is looked for.
    let slots = if without == 0 { Vec::new() } else { free_slots(tx, host, without).await? };
    let mut slots = slots.into_iter();
    for machine in machines {
        (machine.host, machine.reserved) = (Some(host), true);
        machine.slot = machine.slot.or_else(|| slots.next());
    }
    Ok(())
}

/// Whether another machine of a host has a slot.
pub async fn slot_is_held(on: impl On, host: HostId, slot: i64, but: MachineId) -> Result<bool, DbError> {
    let held = sql("SELECT COUNT(*) FROM machines WHERE host_id = $1 AND slot = $2 AND id <> $3");
    let held: i64 = held.bind(host).bind(slot).bind(but).fetch_one(on).await?;
    Ok(held > 0)
}

/// Gives a slot to each VM's machine that holds processors and memory and has none: those of an earlier version.
pub async fn give_slots(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    let without: Vec<Machine> = sql(concat!(
        "SELECT ",
        machine_columns!(),
        " FROM machines m WHERE m.host_id = $1 AND m.owner_kind = 'vm' AND m.reserved = 1 AND m.slot IS NULL \
         ORDER BY m.id"
    ))
    .bind(host)
    .fetch_all(&mut *tx)
    .await?;
    let slots = if without.is_empty() { Vec::new() } else { free_slots(&mut *tx, host, without.len()).await? };
    for (machine, slot) in without.iter().zip(slots) {
        update(tx, machine, &Machine { slot: Some(slot), ..machine.clone() }).await?;
    }
    Ok(())
}

/// Whether a machine of a host holds an address.
pub async fn address_is_held(on: impl On, host: HostId, address: Ipv4Addr) -> Result<bool, DbError> {
    let held = sql("SELECT COUNT(*) FROM machines WHERE host_id = $1 AND address = $2");
    let held: i64 = held.bind(host).bind(address.to_string()).fetch_one(on).await?;
    Ok(held > 0)
}

/// Whether a machine other than this one holds an address of those that others reach.
pub async fn pool_address_is_held(on: impl On, host: HostId, address: IpAddr, but: MachineId) -> Result<bool, DbError> {
    let held = sql("SELECT COUNT(*) FROM machines WHERE host_id = $1 AND pool_address = $2 AND id <> $3");
    let held: i64 = held.bind(host).bind(address.to_string()).bind(but).fetch_one(on).await?;
    Ok(held > 0)
}

/// The addresses that machines of a host hold of those that others reach.
pub async fn pool_addresses(on: impl On, host: HostId) -> Result<HashSet<IpAddr>, DbError> {
    struct Held(IpAddr);
    impl FromRow for Held {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            row.parsed("pool_address").map(Self)
        }
    }
    let held = sql("SELECT pool_address FROM machines WHERE host_id = $1 AND pool_address IS NOT NULL");
    let held: Vec<Held> = held.bind(host).fetch_all(on).await?;
    Ok(held.into_iter().map(|Held(address)| address).collect())
}

/// Has machines be on a service's own host that lie in its folder ([`home::bring`]); what they had of GPUs elsewhere they
/// reserve anew.
pub async fn bring_home(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    machine_gpu::leave_others(&mut *tx, host).await?;
    home::bring(tx, TABLE, "reserved = 1 OR slot IS NOT NULL OR address IS NOT NULL", host).await
}

/// A machine that somebody may have who begins with this memory: the one that is ready for the longest time.
pub async fn warm(on: impl On, memory: MemoryId) -> Result<Option<Machine>, DbError> {
    sql(concat!(
        "SELECT ",
        machine_columns!(),
        " FROM machines m WHERE m.owner_id = $1 AND m.owner_kind = 'warm' AND m.ready = 1 ORDER BY m.id LIMIT 1"
    ))
    .bind(memory)
    .fetch_optional(on)
    .await
}

/// Every warm machine of a host, the oldest first.
pub async fn all_warm(on: impl On, host: HostId) -> Result<Vec<Machine>, DbError> {
    sql(ALL_WARM).bind(host).fetch_all(on).await
}

/// Nobody gets a warm machine of another host any more.
pub async fn forgo_elsewhere(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    sql("UPDATE machines SET ready = 0 WHERE owner_kind = 'warm' AND host_id <> $1")
        .bind(host)
        .execute(tx)
        .await
        .map(drop)
}

/// A machine.
pub async fn find(on: impl On, id: MachineId) -> Result<Option<Machine>, DbError> {
    let one = concat!("SELECT ", machine_columns!(), " FROM machines m WHERE m.id = $1");
    sql(one).bind(id).fetch_optional(on).await
}

/// Has all warm machines of a host hold nothing any more: nobody gets one of them, and the worker ends them.
pub async fn give_way(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    tx.signal(Signal::Warm(host));
    sql(GIVE_WAY).bind(host).execute(tx).await.map(drop)
}

/// What machines of a kind hold of a host.
struct Share {
    host: HostId,
    kind: OwnerKind,
    sum: Sum,
}

impl FromRow for Share {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let sum = Sum { machines: row.int("machines")?, vcpu: row.int("vcpu")?, memory_mb: row.int("memory_mb")? };
        Ok(Self { host: row.parsed("host_id")?, kind: row.word("owner_kind", OwnerKind::parse)?, sum })
    }
}

/// What machines hold of each host of which they hold something.
pub async fn promised(on: impl On) -> Result<HashMap<HostId, Promised>, DbError> {
    summed(sql(sums("host_id IS NOT NULL")), on).await
}

/// What machines hold of each of these hosts, at least one, of which they hold something.
pub async fn promised_among(on: impl On, hosts: &[HostId]) -> Result<HashMap<HostId, Promised>, DbError> {
    summed(sql(sums_among(hosts.len())).bind_all(hosts.iter().copied()), on).await
}

/// Sums what machines hold of so many hosts.
fn sums_among(hosts: usize) -> String {
    sums(&format!("host_id IN ({})", marks(hosts)))
}

/// Sums what machines hold of each host for which this is so.
fn sums(of: &str) -> String {
    format!(
        "SELECT host_id, owner_kind, COUNT(*) AS machines, CAST(SUM(vcpu) AS BIGINT) AS vcpu, \
         CAST(SUM(memory_mb) AS BIGINT) AS memory_mb FROM machines WHERE reserved = 1 AND {of} \
         GROUP BY host_id, owner_kind"
    )
}

async fn summed(sums: Query, on: impl On) -> Result<HashMap<HostId, Promised>, DbError> {
    let shares: Vec<Share> = sums.fetch_all(on).await?;
    let mut promised = HashMap::<_, Promised>::new();
    for Share { host, kind, sum } in shares {
        let held = promised.entry(host).or_default();
        match kind {
            OwnerKind::Vm => held.vms = sum,
            OwnerKind::Sandbox => held.sandboxes = sum,
            OwnerKind::Template => held.templates = sum,
            OwnerKind::Warm => held.warm = sum,
        }
    }
    Ok(promised)
}

/// A new id for a machine.
pub fn new_id() -> MachineId {
    MachineId(Uuid::now_v7())
}

#[cfg(test)]
mod tests {
    use berth_domain::host::gpu::Device;
    use berth_domain::ids::{SandboxId, TemplateId, VmId};

    use super::*;
    use crate::db::Db;

    async fn held(tx: &mut Tx, host: HostId) -> Result<Promised, DbError> {
        Ok(promised(tx).await?.remove(&host).unwrap_or_default())
    }

    async fn database() -> (Db, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        (Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap(), dir)
    }

    /// What SQLite does for a statement.
    struct Step(String);

    impl FromRow for Step {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            row.text("detail").map(Self)
        }
    }

    async fn host(tx: &mut Tx) -> HostId {
        host_that(tx, false).await
    }

    async fn host_that(tx: &mut Tx, joined: bool) -> HostId {
        let id = HostId(Uuid::now_v7());
        let row = columns! {
            "id": id, "name": "alpha", "addresses": "[]", "regions": "[]", "cpus": 1_i64, "memory_mb": 1_i64, "joined": joined,
            "overcommit": "{}", "labels": "{}", "state": "ready", "last_seen": 0_i64, "created_at": 0_i64,
        };
        record::insert("hosts", row).execute(tx).await.unwrap();
        id
    }

    #[tokio::test]
    async fn what_machines_hold_of_a_host_is_a_sum_over_rows() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.unwrap();
        let (here, there) = (host(&mut tx).await, host(&mut tx).await);
        let id = Uuid::now_v7();
        // Owners of several kinds may have one id, and one owner several machines.
        let owners = [
            (Owner::Vm(VmId(id)), here),
            (Owner::Sandbox(SandboxId(id)), here),
            (Owner::Template(TemplateId(id)), here),
            (Owner::Template(TemplateId(id)), here),
            (Owner::Vm(VmId(Uuid::now_v7())), there),
        ];
        let mut machines = Vec::new();
        for (owner, host) in owners {
            let mut machine = Machine::new(new_id(), owner, 2, 512);
            insert(&mut tx, &machine).await.unwrap();
            let before = machine.clone();
            reserve(&mut tx, host, Room::Beside, std::slice::from_mut(&mut machine)).await.unwrap();
            update(&mut tx, &before, &machine).await.unwrap();
            machines.push(machine);
        }
        let slots: Vec<_> = machines.iter().map(|machine| machine.slot).collect();
        assert_eq!(slots, [Some(1), Some(2), Some(3), Some(4), Some(1)], "each host has slots of its own");
        let one = Sum { machines: 1, vcpu: 2, memory_mb: 512 };
        let two = Sum { machines: 2, vcpu: 4, memory_mb: 1024 };
        let all = Promised { vms: one, sandboxes: one, templates: two, warm: Sum::default() };
        assert_eq!(held(&mut tx, here).await.unwrap(), all);
        assert_eq!(held(&mut tx, there).await.unwrap(), Promised { vms: one, ..Promised::default() });
        let among = promised_among(&mut tx, &[here, HostId(Uuid::now_v7())]).await.unwrap();
        assert_eq!(among, [(here, all)].into(), "of no other one");
        let mut gone = machines[1].clone();
        gone.end(Timestamp(1));
        update(&mut tx, &machines[1], &gone).await.unwrap();
        remove(&mut tx, machines[2].id).await.unwrap();
        assert_eq!(held(&mut tx, here).await.unwrap(), Promised { sandboxes: Sum::default(), templates: one, ..all });
        assert_eq!(free_slots(&mut tx, here, 3).await.unwrap(), [2, 3, 5]);
        assert_eq!(owner(&mut tx, machines[3].id).await.unwrap(), Some(machines[3].owner));
        assert_eq!(owner(&mut tx, gone.id).await.unwrap(), None);
        assert_eq!(of_owner(&mut tx, machines[3].owner).await.unwrap(), machines[3..4]);
        assert_eq!(living(&mut tx, here).await.unwrap().len(), 2);
        assert_eq!(living(&mut tx, there).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn warm_machines_give_way_only_where_they_are_in_the_way() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.unwrap();
        let (here, there) = (host(&mut tx).await, host(&mut tx).await);
        for host in [here, there] {
            let mut warm = Machine::new(new_id(), Owner::Warm(MemoryId(Uuid::now_v7())), 1, 256);
            reserve(&mut tx, host, Room::Beside, std::slice::from_mut(&mut warm)).await.unwrap();
            insert(&mut tx, &Machine { ready: true, ..warm }).await.unwrap();
        }
        let mut machines = [(); 2].map(|()| Machine::new(new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 256));
        machines[1].slot = Some(7);
        reserve(&mut tx, here, Room::Beside, &mut machines).await.unwrap();
        assert_eq!(machines.each_ref().map(|machine| machine.slot), [Some(2), Some(7)], "one keeps what it has");
        assert_eq!(held(&mut tx, here).await.unwrap().warm.machines, 1);
        reserve(&mut tx, here, Room::Instead, &mut machines).await.unwrap();
        assert_eq!(held(&mut tx, here).await.unwrap().warm.machines, 0);
        let warm = all_warm(&mut tx, here).await.unwrap();
        assert_eq!(warm.iter().map(|machine| machine.ready).collect::<Vec<_>>(), [false], "it is to be ended");
        assert!(all_warm(&mut tx, there).await.unwrap()[0].ready, "those of another host stay");
        assert_eq!(tx.signals, [Signal::Warm(here)], "whoever keeps those of that host is told");
    }

    #[tokio::test]
    async fn rows_of_what_is_gone_are_not_read() {
        let (db, _dir) = database().await;
        let sums = sums_among(8);
        for (question, step) in [
            (LIVING, "machines_living"),
            (ALL_WARM, "machines_warm"),
            (GIVE_WAY, "machines_warm"),
            (&sums, "SEARCH machines USING INDEX machines_reserved (host_id=?)"),
        ] {
            let plan: Vec<Step> = sql(format!("EXPLAIN QUERY PLAN {question}")).fetch_all(&db).await.unwrap();
            let plan: Vec<_> = plan.into_iter().map(|Step(detail)| detail).collect();
            assert!(plan.iter().any(|found| found.contains(step)), "{question}: {plan:?}");
        }
    }

    #[tokio::test]
    async fn machines_of_a_host_that_joined_stay_there_and_keep_their_gpus() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.unwrap();
        let (own, joined) = (host(&mut tx).await, host_that(&mut tx, true).await);
        let mut there = Machine::new(new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 256);
        reserve(&mut tx, joined, Room::Beside, std::slice::from_mut(&mut there)).await.unwrap();
        insert(&mut tx, &there).await.unwrap();
        let gpu = Device::Function("0000:01:00.0".parse().unwrap());
        machine_gpu::reserve(&mut tx, joined, there.id, &[gpu]).await.unwrap();
        bring_home(&mut tx, own).await.unwrap();
        let found = find(&mut tx, there.id).await.unwrap().unwrap();
        assert_eq!((found.host, found.reserved), (Some(joined), true));
        assert_eq!(machine_gpu::all(&mut tx).await.unwrap().iter().filter(|held| held.host == joined).count(), 1);
    }

    #[tokio::test]
    async fn machines_of_a_host_that_is_lost_are_the_next_ones() {
        let (db, _dir) = database().await;
        let mut tx = db.begin().await.unwrap();
        let (lost, next) = (host(&mut tx).await, host(&mut tx).await);
        let (mut before, mut held_nowhere) = (
            Machine::new(new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 256),
            Machine::new(new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 256),
        );
        reserve(&mut tx, lost, Room::Beside, std::slice::from_mut(&mut before)).await.unwrap();
        held_nowhere.reserved = true;
        for machine in [&before, &held_nowhere, &Machine::new(new_id(), before.owner, 1, 256)] {
            insert(&mut tx, machine).await.unwrap();
        }
        bring_home(&mut tx, next).await.unwrap();
        assert_eq!(held(&mut tx, next).await.unwrap().vms.machines, 2);
        let hosts: Vec<_> = of_owner(&mut tx, before.owner).await.unwrap().iter().map(|m| m.host).collect();
        assert_eq!(hosts, [Some(next), None], "one that was put nowhere stays there");
        // One of an earlier version, which knew no slots of VMs, gets one.
        give_slots(&mut tx, next).await.unwrap();
        let slot = async |tx: &mut Tx, id| find(tx, id).await.unwrap().unwrap().slot;
        assert_eq!((slot(&mut tx, before.id).await, slot(&mut tx, held_nowhere.id).await), (Some(1), Some(2)));
        assert!(slot_is_held(&mut tx, next, 2, before.id).await.unwrap());
        assert!(!slot_is_held(&mut tx, next, 2, held_nowhere.id).await.unwrap());
    }
}
