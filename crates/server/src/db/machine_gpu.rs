//! What machines have for themselves of hosts' GPUs.
//!
//! A row for each function or part, whose key is the host and what no two machines have at a time: the address of the function, or the
//! UUID that a part is made by. It is older than the part. Who reserves for a
//! machine writes them in that transaction, and whoever has a machine hold nothing any more removes them in that one, once
//! the host has the devices back.

use std::collections::BTreeSet;

use berth_domain::host::gpu::Device;
use berth_domain::ids::{HostId, MachineId};
use berth_domain::machine::{Owner, OwnerKind};

use super::record;
use super::{DbError, FromRow, On, Row, Tx, marks, sql};
use crate::columns;

/// The table.
const TABLE: &str = "machine_gpus";

/// What of them is read.
const SELECT: &str = "SELECT g.host_id, g.address, g.device, g.machine_id, m.owner_kind, m.owner_id \
                      FROM machine_gpus g JOIN machines m ON m.id = g.machine_id";

/// A device that a machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The host.
    pub host: HostId,
    /// Which it is there.
    pub device: Device,
    /// Who has it.
    pub machine: MachineId,
    /// Whose machine that is.
    pub owner: Owner,
}

impl FromRow for Held {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        // A row of an older version has a function alone.
        let device = row.opt_parsed("device")?;
        let device = device.map_or_else(|| row.parsed("address"), Ok)?;
        let owner = Owner::new(row.word("owner_kind", OwnerKind::parse)?, row.parsed("owner_id")?);
        Ok(Self { host: row.parsed("host_id")?, device, machine: row.parsed("machine_id")?, owner })
    }
}

/// All devices of all hosts that machines have.
pub async fn all(on: impl On) -> Result<Vec<Held>, DbError> {
    sql(format!("{SELECT} ORDER BY g.host_id, g.address")).fetch_all(on).await
}

/// Devices of these hosts, at least one, that machines have.
pub async fn among(on: impl On, hosts: &[HostId]) -> Result<Vec<Held>, DbError> {
    let text = format!("{SELECT} WHERE g.host_id IN ({}) ORDER BY g.host_id, g.address", marks(hosts.len()));
    sql(text).bind_all(hosts.iter().copied()).fetch_all(on).await
}

/// Devices that a machine has, functions in the order of the buses.
pub async fn of_machine(on: impl On, machine: MachineId) -> Result<Vec<Device>, DbError> {
    let rows: Vec<Held> = sql(format!("{SELECT} WHERE g.machine_id = $1")).bind(machine).fetch_all(on).await?;
    let ordered: BTreeSet<_> = rows.into_iter().map(|held| held.device).collect();
    Ok(ordered.into_iter().collect())
}

/// Has a machine have devices that nobody has.
pub async fn reserve(tx: &mut Tx, host: HostId, machine: MachineId, devices: &[Device]) -> Result<(), DbError> {
    for device in devices {
        let (key, device) = (device.key(), device.to_string());
        let row = columns! { "host_id": host, "address": key, "device": device, "machine_id": machine };
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
    let others = "host_id <> $1 AND host_id NOT IN (SELECT id FROM hosts WHERE joined = 1)";
    sql(format!("UPDATE machines SET reserved = 0 WHERE id IN (SELECT machine_id FROM machine_gpus WHERE {others})"))
        .bind(host)
        .execute(&mut *tx)
        .await?;
    sql(format!("DELETE FROM machine_gpus WHERE {others}")).bind(host).execute(tx).await.map(drop)
}

#[cfg(test)]
mod tests {
    use berth_domain::ids::VmId;
    use uuid::Uuid;

    use super::*;
    use crate::db::Db;
    use crate::db::machine::{self, Machine};

    async fn held(tx: &mut Tx, host: HostId) -> Result<BTreeSet<Device>, DbError> {
        Ok(all(tx).await?.into_iter().filter(|held| held.host == host).map(|held| held.device).collect())
    }

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

    fn at(bus: u8) -> Device {
        format!("0000:{bus:02x}:00.0").parse().unwrap()
    }

    #[tokio::test]
    async fn a_part_is_one_machine_s_by_what_it_is_made_by() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let here = host(&mut tx).await;
        let (one, two) = (machine(&mut tx).await, machine(&mut tx).await);
        let device = |text: &str| text.parse::<Device>().unwrap();
        let mediated = |number: u128| device(&format!("0000:41:00.0/nvidia-474/{}", Uuid::from_u128(number)));
        reserve(&mut tx, here, one, &[mediated(1), mediated(2), device("0000:61:00.4/1414")]).await.unwrap();
        assert!(reserve(&mut tx, here, two, &[mediated(1)]).await.is_err());
        // A function is one part, whatever its kind.
        assert!(reserve(&mut tx, here, two, &[device("0000:61:00.4/1428")]).await.is_err());
        assert!(reserve(&mut tx, here, two, &[device("0000:61:00.4")]).await.is_err());
        reserve(&mut tx, here, two, &[mediated(3)]).await.unwrap();
        let of_one = of_machine(&mut tx, one).await.unwrap();
        assert_eq!(of_one, [mediated(1), mediated(2), device("0000:61:00.4/1414")]);
        // One that was written before there were parts.
        sql("UPDATE machine_gpus SET device = NULL, address = '0000:01:00.0' WHERE machine_id = $1")
            .bind(two)
            .execute(&mut tx)
            .await
            .unwrap();
        assert_eq!(of_machine(&mut tx, two).await.unwrap(), [at(1)]);
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
        let there: Vec<_> = among(&mut tx, &[there]).await.expect("devices").iter().map(|held| held.machine).collect();
        assert_eq!(there, [two]);
        leave_others(&mut tx, here).await.unwrap();
        let reserved = async |tx: &mut Tx, id| machine::find(tx, id).await.unwrap().unwrap().reserved;
        assert_eq!((reserved(&mut tx, one).await, reserved(&mut tx, two).await), (true, false));
        release(&mut tx, one).await.unwrap();
        assert_eq!(all(&mut tx).await.unwrap(), []);
        reserve(&mut tx, here, two, &[at(2)]).await.unwrap();
    }
}
