//! Functions of hosts' devices that machines have for themselves.
//!
//! A row for each function, whose key is the host and the address: no function is ever two machines'. Who reserves for a
//! machine writes them in that transaction, and whoever has a machine hold nothing any more removes them in that one, once
//! the host has the devices back.

use std::collections::BTreeSet;

use berth_domain::host::gpu::PciAddress;
use berth_domain::ids::{HostId, MachineId};

use super::record;
use super::{DbError, FromRow, On, Row, Tx, sql};
use crate::columns;

/// The table.
const TABLE: &str = "machine_gpus";

/// A function that a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The host.
    pub host: HostId,
    /// Where it is there.
    pub address: PciAddress,
    /// Who has it.
    pub machine: MachineId,
}

impl FromRow for Held {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { host: row.parsed("host_id")?, address: row.parsed("address")?, machine: row.parsed("machine_id")? })
    }
}

/// All functions of all hosts that machines have.
pub async fn all(on: impl On) -> Result<Vec<Held>, DbError> {
    sql("SELECT host_id, address, machine_id FROM machine_gpus ORDER BY host_id, address").fetch_all(on).await
}

/// Functions of a host that machines have.
pub async fn held(on: impl On, host: HostId) -> Result<BTreeSet<PciAddress>, DbError> {
    let rows = sql("SELECT host_id, address, machine_id FROM machine_gpus WHERE host_id = $1");
    let rows: Vec<Held> = rows.bind(host).fetch_all(on).await?;
    Ok(rows.into_iter().map(|held| held.address).collect())
}

/// Functions that a machine has, in the order of the buses.
pub async fn of_machine(on: impl On, machine: MachineId) -> Result<Vec<PciAddress>, DbError> {
    let rows = sql("SELECT host_id, address, machine_id FROM machine_gpus WHERE machine_id = $1");
    let rows: Vec<Held> = rows.bind(machine).fetch_all(on).await?;
    let ordered: BTreeSet<_> = rows.into_iter().map(|held| held.address).collect();
    Ok(ordered.into_iter().collect())
}

/// Has a machine have functions that nobody has.
pub async fn reserve(tx: &mut Tx, host: HostId, machine: MachineId, functions: &[PciAddress]) -> Result<(), DbError> {
    for address in functions {
        let row = columns! { "host_id": host, "address": address.to_string(), "machine_id": machine };
        record::insert(TABLE, row).execute(&mut *tx).await?;
    }
    Ok(())
}

/// Has a machine have none any more.
pub async fn release(tx: &mut Tx, machine: MachineId) -> Result<(), DbError> {
    sql("DELETE FROM machine_gpus WHERE machine_id = $1").bind(machine).execute(tx).await.map(drop)
}

/// Has machines have nothing of other hosts than this one: they reserve anew.
pub async fn leave_others(tx: &mut Tx, host: HostId) -> Result<(), DbError> {
    sql("UPDATE machines SET reserved = 0 WHERE id IN (SELECT machine_id FROM machine_gpus WHERE host_id <> $1)")
        .bind(host)
        .execute(&mut *tx)
        .await?;
    sql("DELETE FROM machine_gpus WHERE host_id <> $1").bind(host).execute(tx).await.map(drop)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::VmId;
    use berth_domain::machine::Owner;
    use uuid::Uuid;

    use super::*;
    use crate::db::Db;
    use crate::db::machine::{self, Machine};

    async fn host(tx: &mut Tx) -> HostId {
        let id = HostId(Uuid::now_v7());
        let row = columns! {
            "id": id, "name": "alpha", "addresses": "[]", "regions": "[]", "cpus": 1_i64, "memory_mb": 1_i64,
            "overcommit": "{}", "labels": "{}", "state": "ready", "last_seen": 0_i64, "created_at": 0_i64,
        };
        record::insert("hosts", row).execute(tx).await.unwrap();
        id
    }

    async fn machine(tx: &mut Tx) -> MachineId {
        let machine = Machine::new(machine::new_id(), Owner::Vm(VmId(Uuid::now_v7())), 1, 256);
        machine::insert(tx, &Machine { reserved: true, ..machine.clone() }).await.unwrap();
        machine.id
    }

    fn at(bus: u8) -> PciAddress {
        format!("0000:{bus:02x}:00.0").parse().unwrap()
    }

    #[tokio::test]
    async fn a_function_is_one_machine_s_or_nobody_s() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let (here, there) = (host(&mut tx).await, host(&mut tx).await);
        let (one, two) = (machine(&mut tx).await, machine(&mut tx).await);
        reserve(&mut tx, here, one, &[at(2), at(1)]).await.unwrap();
        reserve(&mut tx, there, two, &[at(1)]).await.unwrap();
        assert!(reserve(&mut tx, here, two, &[at(2)]).await.is_err());
        assert!(reserve(&mut tx, here, one, &[at(2)]).await.is_err());
        assert_eq!(of_machine(&mut tx, one).await.unwrap(), [at(1), at(2)]);
        assert_eq!(held(&mut tx, here).await.unwrap(), BTreeSet::from([at(1), at(2)]));
        assert_eq!(all(&mut tx).await.unwrap().len(), 3);
        leave_others(&mut tx, here).await.unwrap();
        let reserved = async |tx: &mut Tx, id| machine::find(tx, id).await.unwrap().unwrap().reserved;
        assert_eq!((reserved(&mut tx, one).await, reserved(&mut tx, two).await), (true, false));
        release(&mut tx, one).await.unwrap();
        assert_eq!(all(&mut tx).await.unwrap(), []);
        reserve(&mut tx, here, two, &[at(2)]).await.unwrap();
    }
}
