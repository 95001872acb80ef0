//! Rows of networks, and who belongs to them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use berth_domain::Timestamp;
use berth_domain::firewall::Rules;
use berth_domain::ids::{HostId, MachineId, NetworkId, OrgId, Owner, ProjectId};
use berth_domain::machine::OwnerKind;
use ipnet::{Ipv4Net, Ipv6Net};
use uuid::Uuid;

use super::Tenant;
use crate::columns;
use crate::db::listing::{Listed, Listing};
use crate::db::network::{LabelledRow, TABLE};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Signal, Tx, due, json, page_of, sql};

/// A network as its row has it.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkRow {
    /// Its id.
    pub id: NetworkId,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some.
    pub cidr6: Option<Ipv6Net>,
    /// The firewall rules between its members.
    pub rules: Rules,
    /// Grows with every change that the host is to know of.
    pub revision: i64,
    /// The revision that the host was told last.
    pub told: i64,
    /// When the worker is to look at it.
    pub work_at: Option<Timestamp>,
    /// Creation.
    pub created_at: Timestamp,
    /// Last change by a request.
    pub updated_at: Timestamp,
    /// Deletion by its owner; the row goes when the host has nothing of it any more.
    pub deleted_at: Option<Timestamp>,
}

impl FromRow for NetworkRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            org: row.parsed("org_id")?,
            project: row.parsed("project_id")?,
            name: row.text("name")?,
            cidr: row.parsed("cidr")?,
            cidr6: row.opt_parsed("cidr6")?,
            rules: row.json("rules")?,
            revision: row.int("revision")?,
            told: row.int("told")?,
            work_at: row.opt_time("work_at")?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
            deleted_at: row.opt_time("deleted_at")?,
        })
    }
}

fn columns(network: &NetworkRow) -> Columns {
    columns! {
        "id": network.id, "org_id": network.org, "project_id": network.project, "name": &network.name,
        "cidr": network.cidr.to_string(), "cidr6": network.cidr6.map(|cidr6| cidr6.to_string()),
        "rules": json::text(&network.rules), "revision": network.revision, "told": network.told, "work_at": network.work_at, "created_at": network.created_at, "updated_at": network.updated_at,
        "deleted_at": network.deleted_at,
    }
}

/// Writes a new row.
pub async fn insert(tx: &mut Tx, network: &NetworkRow) -> Result<(), DbError> {
    record::insert(TABLE, columns(network)).execute(tx).await.map(drop)
}

/// Writes a change of a row.
pub async fn update(tx: &mut Tx, before: &NetworkRow, after: &NetworkRow) -> Result<(), DbError> {
    record::update(tx, TABLE, &columns(before), columns(after)).await
}

/// Removes the row of a network that the host has not any more.
pub async fn remove(tx: &mut Tx, id: NetworkId) -> Result<(), DbError> {
    sql("DELETE FROM networks WHERE id = $1").bind(id).execute(tx).await.map(drop)
}

/// A tenant's network.
pub async fn find(on: impl On, tenant: Tenant, id: NetworkId) -> Result<Option<NetworkRow>, DbError> {
    sql("SELECT * FROM networks WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(on)
        .await
}

/// Any network: for the worker.
pub async fn load(on: impl On, id: NetworkId) -> Result<Option<NetworkRow>, DbError> {
    sql("SELECT * FROM networks WHERE id = $1").bind(id).fetch_optional(on).await
}

/// All networks of a tenant.
pub async fn of_project(tx: &mut Tx, tenant: Tenant) -> Result<Vec<NetworkRow>, DbError> {
    sql("SELECT * FROM networks WHERE project_id = $1 AND deleted_at IS NULL").bind(tenant.project).fetch_all(tx).await
}

/// By what a list of networks can be narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "networks.id",
    created: "networks.created_at",
    name: Some("networks.name"),
    status: None,
    labels: None,
};

/// A page of a tenant's networks, each with how many belong to it, and how many there are.
pub async fn list(db: &Db, tenant: Tenant, listing: &Listing) -> Result<(Vec<(NetworkRow, i64)>, i64), DbError> {
    struct Counted(NetworkRow, i64);
    impl FromRow for Counted {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            Ok(Self(NetworkRow::from_row(row)?, row.int("members")?))
        }
    }
    const COLUMNS: &str =
        "networks.*, (SELECT COUNT(*) FROM network_members WHERE network_id = networks.id) AS members";
    let page = page_of(COLUMNS, "networks WHERE networks.project_id = $1 AND networks.deleted_at IS NULL");
    let (rows, total): (Vec<Counted>, _) = page.bind(tenant.project).list(db, &LISTED, listing).await?;
    Ok((rows.into_iter().map(|Counted(row, members)| (row, members)).collect(), total))
}

/// Who belongs to a network.
#[derive(Clone, Debug)]
pub struct MemberRow {
    /// What it is.
    pub kind: OwnerKind,
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Its machine.
    pub machine: MachineId,
    /// The host that this is on, if it is on one.
    pub host: Option<HostId>,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its labels, if it is a VM.
    pub labels: Option<BTreeMap<String, String>>,
}

impl FromRow for MemberRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            kind: row.word("owner_kind", OwnerKind::parse)?,
            id: row.parsed("owner_id")?,
            name: row.text("name")?,
            machine: row.parsed("machine_id")?,
            host: row.opt_parsed("host_id")?,
            address: row.parsed("address")?,
            labels: row.opt_text("labels")?.map(|_| row.json("labels")).transpose()?,
        })
    }
}

/// Who belongs to a network, by their addresses.
pub async fn members(on: impl On, network: NetworkId) -> Result<Vec<MemberRow>, DbError> {
    let members = sql("SELECT nm.owner_kind, nm.owner_id, nm.address, m.id AS machine_id, m.host_id, \
         COALESCE(vms.name, sandboxes.name) AS name, vms.labels FROM network_members nm \
         JOIN machines m ON m.owner_id = nm.owner_id AND m.owner_kind = nm.owner_kind \
         LEFT JOIN vms ON nm.owner_kind = 'vm' AND vms.id = nm.owner_id \
         LEFT JOIN sandboxes ON nm.owner_kind = 'sandbox' AND sandboxes.id = nm.owner_id WHERE nm.network_id = $1");
    let mut members: Vec<MemberRow> = members.bind(network).fetch_all(on).await?;
    members.sort_by_key(|member| member.address);
    Ok(members)
}

/// The VMs among the members of a network.
pub fn labelled(network: &NetworkRow, members: &[MemberRow]) -> Vec<LabelledRow> {
    let of = |member: &MemberRow| {
        let labels = member.labels.clone()?;
        Some(LabelledRow::new(labels, (network.cidr, network.cidr6), member.address))
    };
    members.iter().filter_map(of).collect()
}

/// Networks that want work, organizations in turn, and when the next one does.
pub async fn due(db: &Db, now: Timestamp, limit: usize) -> Result<due::Due<NetworkId>, DbError> {
    due::of_projects(db, TABLE, now, limit).await
}

/// Whose a network is.
pub async fn owner(db: &Db, id: NetworkId) -> Result<Option<Owner>, DbError> {
    due::owner(db, TABLE, id).await
}

/// Has the host told of every network.
pub async fn tell_all(tx: &mut Tx, now: Timestamp) -> Result<(), DbError> {
    tx.signal(Signal::Work(TABLE));
    sql("UPDATE networks SET told = 0, work_at = $1").bind(now).execute(tx).await.map(drop)
}

/// How many networks the host was not told the last change of, their end among those.
pub async fn untold(db: &Db) -> Result<i64, DbError> {
    let untold = sql("SELECT COUNT(*) FROM networks WHERE told < revision OR deleted_at IS NOT NULL");
    untold.fetch_one(db).await
}

/// Every network that has a row.
pub async fn ids(db: &Db) -> Result<Vec<NetworkId>, DbError> {
    struct Id(NetworkId);
    impl FromRow for Id {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            row.parsed("id").map(Self)
        }
    }
    let ids: Vec<Id> = sql("SELECT id FROM networks").fetch_all(db).await?;
    Ok(ids.into_iter().map(|Id(id)| id).collect())
}

/// Whether a project has any.
pub async fn any(tx: &mut Tx, project: ProjectId) -> Result<bool, DbError> {
    let count = sql("SELECT COUNT(*) FROM networks WHERE project_id = $1 AND deleted_at IS NULL");
    let count: i64 = count.bind(project).fetch_one(tx).await?;
    Ok(count > 0)
}
