//! What machines hold of the host, whoever owns them: the one ledger of memory and processors.
//!
//! A VM owns a machine, a sandbox owns one, and a template owns those that build or boot it. The store of each owner
//! writes here in the transaction that writes the owner's row, so that a sum over these rows is what is promised at
//! that moment, to all kinds together.

use berth_domain::ids::{SandboxId, TemplateId, VmId};

use super::{DbError, FromRow, On, Row, Tx, record, sql};
use crate::columns;

/// The table.
const TABLE: &str = "machines";

/// Whose machines they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A VM's.
    Vm(VmId),
    /// A sandbox's.
    Sandbox(SandboxId),
    /// Of the build or the first boot of a template.
    Template(TemplateId),
}

impl Owner {
    /// The owner as its columns have it: its kind and its id.
    fn named(self) -> (&'static str, String) {
        match self {
            Self::Vm(id) => ("vm", id.to_string()),
            Self::Sandbox(id) => ("sandbox", id.to_string()),
            Self::Template(id) => ("template", id.to_string()),
        }
    }
}

/// What an owner's machines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// How many there are.
    pub machines: i64,
    /// Virtual CPUs of each.
    pub vcpu: i64,
    /// Memory of each, in MiB.
    pub memory_mb: i64,
}

/// What all machines of some kinds hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many owners have machines.
    pub owners: i64,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
}

impl FromRow for Sum {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { owners: row.int("owners")?, vcpu: row.int("vcpu")?, memory_mb: row.int("memory_mb")? })
    }
}

/// Writes what an owner's machines hold from now on, where that is not what they held before.
pub async fn settle(tx: &mut Tx, owner: Owner, before: Option<Held>, after: Option<Held>) -> Result<(), DbError> {
    if before == after {
        return Ok(());
    }
    let (kind, id) = owner.named();
    let query = match after {
        None => sql(format!("DELETE FROM {TABLE} WHERE owner_id = $1 AND owner_kind = $2")).bind(id).bind(kind),
        Some(Held { machines, vcpu, memory_mb }) => {
            let keys = columns! { "owner_id": id, "owner_kind": kind };
            record::upsert(TABLE, keys, columns! { "machines": machines, "vcpu": vcpu, "memory_mb": memory_mb })
        }
    };
    query.execute(tx).await.map(drop)
}

/// What the machines of VMs hold.
pub async fn of_vms(on: impl On) -> Result<Sum, DbError> {
    sum(on, "owner_kind = 'vm'").await
}

/// What the machines of sandboxes hold.
pub async fn of_sandboxes(on: impl On) -> Result<Sum, DbError> {
    sum(on, "owner_kind = 'sandbox'").await
}

/// What the machines that work for templates hold.
pub async fn of_templates(on: impl On) -> Result<Sum, DbError> {
    sum(on, "owner_kind = 'template'").await
}

async fn sum(on: impl On, which: &str) -> Result<Sum, DbError> {
    sql(format!(
        "SELECT COUNT(*) AS owners, CAST(COALESCE(SUM(vcpu * machines), 0) AS BIGINT) AS vcpu, \
         CAST(COALESCE(SUM(memory_mb * machines), 0) AS BIGINT) AS memory_mb FROM {TABLE} WHERE {which}"
    ))
    .fetch_one(on)
    .await
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::db::Db;

    #[tokio::test]
    async fn the_ledger_is_what_was_settled_last() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let id = Uuid::now_v7();
        let one = Held { machines: 1, vcpu: 2, memory_mb: 512 };
        let three = Held { machines: 3, ..one };
        let mut tx = db.begin().await.unwrap();
        // Owners of two kinds may have one id.
        for (owner, before, after) in [
            (Owner::Vm(VmId(id)), None, Some(one)),
            (Owner::Sandbox(SandboxId(id)), None, Some(one)),
            (Owner::Template(TemplateId(id)), None, Some(one)),
            (Owner::Template(TemplateId(id)), Some(one), Some(three)),
        ] {
            settle(&mut tx, owner, before, after).await.unwrap();
        }
        assert_eq!(of_vms(&mut tx).await.unwrap(), Sum { owners: 1, vcpu: 2, memory_mb: 512 });
        assert_eq!(of_sandboxes(&mut tx).await.unwrap(), Sum { owners: 1, vcpu: 2, memory_mb: 512 });
        assert_eq!(of_templates(&mut tx).await.unwrap(), Sum { owners: 1, vcpu: 6, memory_mb: 1536 });
        settle(&mut tx, Owner::Vm(VmId(id)), Some(one), None).await.unwrap();
        assert_eq!(of_vms(&mut tx).await.unwrap(), Sum::default());
        assert_eq!(of_sandboxes(&mut tx).await.unwrap().owners, 1);
    }
}
