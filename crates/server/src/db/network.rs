//! Which networks of their project VMs and sandboxes belong to.
//!
//! A membership is a row: the network, its owner, and the owner's address there. The stores of VMs and sandboxes read
//! it with their own rows ([`joined_networks`](crate::joined_networks)), write it in the transaction that writes the
//! owner, and remove it in the one in which the owner goes, so that an address is somebody's for exactly as long as
//! they are there. Every such change, and every other that a network's members have to know of, makes the network due:
//! its reconciler tells the host. Which machine a member has, and what it is called, is told by the rows of machines
//! and owners alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_domain::Timestamp;
use berth_domain::host::network::Membership;
use berth_domain::ids::{HostId, MachineId, NetworkId};
use berth_domain::label::Label;
use berth_domain::machine::Owner;
use berth_domain::network::address6;
use ipnet::{Ipv4Net, Ipv6Net};

use super::record;
use super::tenant::Tenant;
use super::{DbError, FromRow, On, Row, Signal, Tx, sql};
use crate::columns;

/// The table of networks.
pub const TABLE: &str = "networks";
/// The table of who belongs to them.
const MEMBERS: &str = "network_members";

/// The networks of a table's owners of machines, of this kind, as the column `joined`: id, name, addresses, the
/// owner's own address, and IPv6 addresses where there are some, of each, in the order in which the owner named them. There are as many places as
/// [`MAX_NETWORKS`](berth_domain::network::MAX_NETWORKS); a text of all that are taken is an aggregate which the two
/// databases do not call the same. The database looks at the places only of an owner who belongs to a network:
/// four looks for each of a hundred owners took SQLite 0.14 ms, the rest of the statement 0.16.
#[macro_export]
macro_rules! joined_networks {
    ($table:literal, $kind:literal) => {
        $crate::joined_networks!($table, $kind, "0" "1" "2" "3")
    };
    ($table:literal, $kind:literal, $($place:literal)*) => {
        concat!(
            "(CASE WHEN EXISTS (SELECT 1 FROM network_members nm WHERE nm.owner_id = ",
            $table,
            ".id AND nm.owner_kind = '",
            $kind,
            "') THEN ''",
            $(
                " || COALESCE((SELECT n.id || ' ' || n.name || ' ' || n.cidr || ' ' || nm.address || ' ' || COALESCE(n.cidr6, '') || ',' \
                 FROM network_members nm JOIN networks n ON n.id = nm.network_id WHERE nm.owner_id = ",
                $table,
                ".id AND nm.owner_kind = '",
                $kind,
                "' AND nm.place = ",
                $place,
                "), '')",
            )*
            " ELSE '' END) AS joined"
        )
    };
}

/// A network that somebody belongs to, and their address there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipRow {
    /// The network.
    pub id: NetworkId,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some.
    pub cidr6: Option<Ipv6Net>,
    /// The member's own.
    pub address: Ipv4Addr,
}

impl MembershipRow {
    /// The networks of an owner, as its row was read.
    pub fn of(row: &Row) -> Result<Vec<Self>, DbError> {
        let text = row.text("joined")?;
        let read = |part: &str| Self::parse(part).ok_or_else(|| DbError::Other(format!("no membership: {part}")));
        text.split(',').filter(|part| !part.is_empty()).map(read).collect()
    }

    /// The same as a host is told of it.
    pub const fn membership(&self) -> Membership {
        Membership { network: self.id, cidr: self.cidr, cidr6: self.cidr6, address: self.address }
    }

    /// The member's own IPv6 address, if the network has some.
    pub fn address6(&self) -> Option<Ipv6Addr> {
        self.cidr6.map(|cidr6| address6(self.cidr, self.address, cidr6))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            id: words.next()?.parse().ok()?,
            name: words.next()?.to_owned(),
            cidr: words.next()?.parse().ok()?,
            address: words.next()?.parse().ok()?,
            cidr6: words.next().filter(|text| !text.is_empty()).map(str::parse).transpose().ok()?,
        })
    }
}

/// A network that somebody may join.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its id.
    pub id: NetworkId,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub cidr: Ipv4Net,
    /// Its IPv6 addresses, if it has some.
    pub cidr6: Option<Ipv6Net>,
}

impl FromRow for Open {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let (id, name) = (row.parsed("id")?, row.text("name")?);
        Ok(Self { id, name, cidr: row.parsed("cidr")?, cidr6: row.opt_parsed("cidr6")? })
    }
}

/// A tenant's network that is not being removed.
pub async fn open(tx: &mut Tx, tenant: Tenant, id: NetworkId) -> Result<Option<Open>, DbError> {
    sql("SELECT id, name, cidr, cidr6 FROM networks WHERE id = $1 AND project_id = $2 AND deleted_at IS NULL")
        .bind(id)
        .bind(tenant.project)
        .fetch_optional(tx)
        .await
}

/// The hosts that a network's machines have their places on, but for this one. Where that goes away from a host, those do not count
/// that leave it, too, or that are off there, nor those of one that is lost whose disks lie in a store: VMs, but for those that have their memory there, are in rescue, or boot with an
/// image that one host alone has.
pub async fn hosts(
    on: impl On,
    network: NetworkId,
    but: MachineId,
    goes_from: Option<HostId>,
) -> Result<Vec<HostId>, DbError> {
    struct Host(HostId);
    impl FromRow for Host {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            row.parsed("host_id").map(Self)
        }
    }
    let hosts = sql("SELECT DISTINCT m.host_id FROM network_members nm \
         JOIN machines m ON m.owner_id = nm.owner_id AND m.owner_kind = nm.owner_kind \
         WHERE nm.network_id = $1 AND m.id <> $2 AND m.host_id IS NOT NULL AND m.deleted_at IS NULL \
         AND NOT (m.host_id = $3 AND (m.reserved = 0 \
             OR EXISTS (SELECT 1 FROM hosts h WHERE h.id = m.host_id AND h.drain = 'all') \
             OR EXISTS (SELECT 1 FROM hosts h JOIN vms w ON w.id = m.owner_id JOIN disks e ON e.id = w.root_disk_id \
                 WHERE h.id = m.host_id AND h.state = 'lost' AND e.store IS NOT NULL)) \
             AND m.owner_kind = 'vm' AND EXISTS (SELECT 1 FROM vms v WHERE v.id = m.owner_id AND v.has_memory = 0 \
             AND v.rescue_user IS NULL AND NOT EXISTS (SELECT 1 FROM disks d JOIN project_images p ON p.id = d.image_id \
             WHERE d.id = v.root_disk_id AND p.host_id IS NOT NULL)))");
    let goes_from = goes_from.map(|host| host.to_string()).unwrap_or_default();
    let hosts: Vec<Host> = hosts.bind(network).bind(but).bind(goes_from).fetch_all(on).await?;
    Ok(hosts.into_iter().map(|Host(host)| host).collect())
}

/// The hosts of the other machines of a machine's networks.
pub async fn hosts_of_others(
    tx: &mut Tx,
    memberships: &[MembershipRow],
    machine: MachineId,
) -> Result<BTreeSet<HostId>, DbError> {
    let mut found = BTreeSet::new();
    for joined in memberships {
        found.extend(hosts(&mut *tx, joined.id, machine, None).await?);
    }
    Ok(found)
}

/// The addresses of a network that are somebody's.
pub async fn addresses(tx: &mut Tx, network: NetworkId) -> Result<BTreeSet<Ipv4Addr>, DbError> {
    struct Taken(Ipv4Addr);
    impl FromRow for Taken {
        fn from_row(row: &Row) -> Result<Self, DbError> {
            row.parsed("address").map(Self)
        }
    }
    let taken = sql("SELECT address FROM network_members WHERE network_id = $1");
    let taken: Vec<Taken> = taken.bind(network).fetch_all(tx).await?;
    Ok(taken.into_iter().map(|Taken(address)| address).collect())
}

/// A VM in a network.
#[derive(Clone, Debug)]
pub struct LabelledRow {
    /// Its addresses there.
    pub addresses: Vec<IpAddr>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl LabelledRow {
    /// A VM of these labels at a place in a network.
    pub fn new(labels: BTreeMap<String, String>, (cidr, cidr6): (Ipv4Net, Option<Ipv6Net>), address: Ipv4Addr) -> Self {
        let six = cidr6.map(|cidr6| address6(cidr, address, cidr6).into());
        Self { addresses: [Some(address.into()), six].into_iter().flatten().collect(), labels }
    }
}

impl FromRow for LabelledRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        let network = (row.parsed("cidr")?, row.opt_parsed("cidr6")?);
        Ok(Self::new(row.json("labels")?, network, row.parsed("address")?))
    }
}

/// The VMs of all networks that somebody belongs to.
pub async fn labelled(on: impl On, owner: Owner) -> Result<Vec<LabelledRow>, DbError> {
    sql("SELECT n.cidr, n.cidr6, nm.address, vms.labels FROM network_members own \
         JOIN networks n ON n.id = own.network_id JOIN network_members nm ON nm.network_id = n.id \
         JOIN vms ON nm.owner_kind = 'vm' AND vms.id = nm.owner_id WHERE own.owner_id = $1 AND own.owner_kind = $2")
    .bind(owner.id().to_string())
    .bind(owner.kind().as_str())
    .fetch_all(on)
    .await
}

/// The addresses of those who have a label.
pub fn group(labelled: &[LabelledRow], label: &Label) -> BTreeSet<IpAddr> {
    let has = |vm: &&LabelledRow| vm.labels.get(label.key()).is_some_and(|value| value == label.value());
    labelled.iter().filter(has).flat_map(|vm| vm.addresses.iter().copied()).collect()
}

/// Has the worker look at the VMs of a network whose rules speak of groups.
async fn wake_followers(tx: &mut Tx, network: NetworkId, now: Timestamp) -> Result<(), DbError> {
    let woken = sql("UPDATE vms SET work_at = $2 WHERE rules LIKE '%\"label:%' AND id IN \
         (SELECT owner_id FROM network_members WHERE network_id = $1 AND owner_kind = 'vm')");
    woken.bind(network).bind(now).execute(&mut *tx).await?;
    tx.signal(Signal::Work("vms"));
    Ok(())
}

/// Writes that a new owner belongs to networks.
pub async fn join(tx: &mut Tx, owner: Owner, joined: &[MembershipRow], now: Timestamp) -> Result<(), DbError> {
    for (place, network) in (0_i64..).zip(joined) {
        let columns = columns! {
            "network_id": network.id, "owner_kind": owner.kind().as_str(), "owner_id": owner.id().to_string(),
            "place": place, "address": network.address.to_string(),
        };
        record::insert(MEMBERS, columns).execute(&mut *tx).await?;
    }
    change(tx, owner, joined, now).await
}

/// Writes what a change of an owner means for its networks. Whoever goes leaves all of them; nobody leaves one and
/// stays in others. Of one that `changed` in what its networks know of it they are told.
pub async fn keep_up(
    tx: &mut Tx,
    owner: Owner,
    (before, after): (&[MembershipRow], &[MembershipRow]),
    changed: bool,
    now: Timestamp,
) -> Result<(), DbError> {
    if after.is_empty() && !before.is_empty() {
        sql("DELETE FROM network_members WHERE owner_id = $1 AND owner_kind = $2")
            .bind(owner.id().to_string())
            .bind(owner.kind().as_str())
            .execute(&mut *tx)
            .await?;
        return change(tx, owner, before, now).await;
    }
    if changed { change(tx, owner, after, now).await } else { Ok(()) }
}

/// Has the host told of these networks, and the VMs whose rules speak of groups of the change, whatever becomes of the
/// networks: a switch or a member that does not answer keeps nobody's rules as they were.
async fn change(tx: &mut Tx, owner: Owner, joined: &[MembershipRow], now: Timestamp) -> Result<(), DbError> {
    for network in joined {
        sql("UPDATE networks SET revision = revision + 1, work_at = $2 WHERE id = $1")
            .bind(network.id)
            .bind(now)
            .execute(&mut *tx)
            .await?;
        tx.signal(Signal::Work(TABLE));
        if matches!(owner, Owner::Vm(_)) {
            wake_followers(tx, network.id, now).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use berth_domain::network::MAX_NETWORKS;

    use super::*;

    #[test]
    fn there_is_a_place_for_each_network() {
        assert_eq!(joined_networks!("vms", "vm").matches("nm.place = ").count(), MAX_NETWORKS);
    }

    #[test]
    fn a_membership_is_read_as_it_is_written() {
        let id = "01939f2e-7c00-7abc-8def-0123456789ab";
        let joined = MembershipRow::parse(&format!("{id} lan 10.128.0.0/24 10.128.0.2 ")).unwrap();
        assert_eq!(joined.cidr6, None);
        let both = MembershipRow::parse(&format!("{id} lan 10.128.0.0/24 10.128.0.2 fd00:20::/64")).unwrap();
        assert_eq!(both.address6().map(|address| address.to_string()).as_deref(), Some("fd00:20::2"));
        assert_eq!((joined.id.to_string().as_str(), joined.name.as_str()), (id, "lan"));
        assert_eq!((joined.cidr.to_string(), joined.address), ("10.128.0.0/24".to_owned(), [10, 128, 0, 2].into()));
        assert!(MembershipRow::parse("lan").is_none());
    }
}
