//! What hosts have that are shut out of stores of disks: VMs that are to go on elsewhere, and machines that such a host still has
//! to end.

use berth_domain::host::Aim;
use berth_domain::ids::{HostId, MachineId, VmId};

use crate::db::record;
use crate::db::{DbError, FromRow, On, Row, Tx, sql};
use crate::{columns, with_machine};

/// The table of machines that a host still has to end.
const TABLE: &str = "released_machines";

/// Hosts that are lost, or were removed as that, with VMs whose disks lie in a store, and which store.
pub async fn lost_holders(on: impl On) -> Result<Vec<(HostId, String)>, DbError> {
    let held = sql(concat!(
        "SELECT DISTINCT m.host_id, d.store FROM ",
        with_machine!("vms", "vm"),
        " JOIN disks d ON d.id = vms.root_disk_id JOIN hosts h ON h.id = m.host_id \
         WHERE vms.deleted_at IS NULL AND d.store IS NOT NULL AND d.deleted_at IS NULL AND h.state = 'lost'"
    ));
    Ok(held.fetch_all::<Holder>(on).await?.into_iter().map(|Holder(host, store)| (host, store)).collect())
}

/// VMs of a host whose disks lie in a store, those first that are to run.
pub async fn held(on: impl On, host: HostId, store: &str) -> Result<Vec<VmId>, DbError> {
    let held = sql(concat!(
        "SELECT vms.id FROM ",
        with_machine!("vms", "vm"),
        " JOIN disks d ON d.id = vms.root_disk_id \
         WHERE m.host_id = $1 AND vms.deleted_at IS NULL AND d.store = $2 AND d.deleted_at IS NULL \
         ORDER BY CASE vms.want WHEN 'run' THEN 0 ELSE 1 END, vms.id"
    ));
    Ok(held.bind(host).bind(store).fetch_all::<Held>(on).await?.into_iter().map(|Held(id)| id).collect())
}

/// A host has to end a machine, by what its row counts from now on.
pub async fn release(tx: &mut Tx, host: HostId, store: &str, aim: Aim) -> Result<(), DbError> {
    settled(&mut *tx, host, aim.id).await?;
    let columns = columns! {
        "host_id": host, "machine_id": aim.id, "store": store.to_owned(), "generation": aim.generation.unwrap_or_default()
    };
    record::insert(TABLE, columns).execute(tx).await.map(drop)
}

/// The machines that a host still has to end, which had their disks in a store.
pub async fn released(on: impl On, host: HostId, store: &str) -> Result<Vec<Aim>, DbError> {
    let released = sql("SELECT * FROM released_machines WHERE host_id = $1 AND store = $2 ORDER BY machine_id");
    let rows = released.bind(host).bind(store).fetch_all::<Released>(on).await?;
    Ok(rows.into_iter().map(|Released(aim)| aim).collect())
}

/// A host has ended a machine.
pub async fn settled(tx: &mut Tx, host: HostId, machine: MachineId) -> Result<(), DbError> {
    let ended = sql("DELETE FROM released_machines WHERE host_id = $1 AND machine_id = $2");
    ended.bind(host).bind(machine).execute(tx).await.map(drop)
}

struct Holder(HostId, String);

impl FromRow for Holder {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.parsed("host_id")?, row.text("store")?))
    }
}

struct Held(VmId);

impl FromRow for Held {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(row.parsed("id")?))
    }
}

struct Released(Aim);

impl FromRow for Released {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self(Aim::of(row.parsed("machine_id")?, row.int("generation")?)))
    }
}
