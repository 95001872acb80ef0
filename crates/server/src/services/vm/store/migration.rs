//! Rows of VMs that go to another host while they run.

use berth_domain::ids::{HostId, MachineId, VmId};

use crate::columns;
use crate::db::record;
use crate::db::{DbError, FromRow, On, Row, Tx, machine, sql};

/// A VM on its way, as its row has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationRow {
    /// Which VM.
    pub vm: VmId,
    /// The row of a machine that holds what it is to have on the other host. No VM owns it, and no host knows a machine by its id.
    pub place: MachineId,
    /// The other host.
    pub host: HostId,
}

impl FromRow for MigrationRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { vm: row.parsed("vm_id")?, place: row.parsed("place_id")?, host: row.parsed("host_id")? })
    }
}

/// Writes a new row, beside that of the place.
pub async fn insert(tx: &mut Tx, migration: &MigrationRow) -> Result<(), DbError> {
    let columns = columns! {
        "vm_id": migration.vm, "place_id": migration.place, "host_id": migration.host
    };
    record::insert("vm_migrations", columns).execute(tx).await.map(drop)
}

/// A VM's, if it is on its way.
pub async fn find(on: impl On, vm: VmId) -> Result<Option<MigrationRow>, DbError> {
    sql("SELECT * FROM vm_migrations WHERE vm_id = $1").bind(vm).fetch_optional(on).await
}

/// It is on its way no more, and holds nothing on the other host.
pub async fn end(tx: &mut Tx, migration: &MigrationRow) -> Result<(), DbError> {
    sql("DELETE FROM vm_migrations WHERE vm_id = $1").bind(migration.vm).execute(&mut *tx).await?;
    machine::remove(tx, migration.place).await
}
