//! Rows of hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use berth_domain::Timestamp;
use berth_domain::host::fence::{Fence, Fences};
use berth_domain::host::gpu::Gpu;
use berth_domain::host::placement::{Overcommit, Stores};
use berth_domain::host::{Capacity, Drain, Service, State};
use berth_domain::ids::HostId;

use crate::db::listing::{Listed, Listing, Words};
use crate::db::record::{self, Columns};
use crate::db::{Db, DbError, FromRow, On, Row, Tx, json, marks, page_of, sql};
use crate::{columns, no_platforms, no_platforms_layer};

/// What is said of a store that a host is shut out of.
const FENCED: &str = "it was lost, and is shut out of the store until it has ended what it had; since";

/// The table.
const TABLE: &str = "hosts";

/// A host as its row has it. What an administrator says of it: its given name, labels, and whether it is cordoned. All else its
/// service found.
#[derive(Clone, Debug, PartialEq)]
pub struct HostRow {
    /// Its id.
    pub id: HostId,
    /// What its machine calls itself.
    pub name: String,
    /// What an administrator calls it.
    pub given_name: Option<String>,
    /// Where it is reached.
    pub addresses: Vec<String>,
    /// Ids of the regions that it belongs to.
    pub regions: Vec<String>,
    /// What it has in all.
    pub capacity: Capacity,
    /// The GPUs that it has.
    pub gpus: Vec<Gpu>,
    /// How often each MiB is promised, by who has it.
    pub overcommit: BTreeMap<String, f64>,
    /// Its present boot.
    pub boot: Option<String>,
    /// Free pairs.
    pub labels: BTreeMap<String, String>,
    /// What becomes of its machines, as far as its services say.
    pub state: State,
    /// Whether an administrator said that it takes no new machines. It holds on while the host is lost.
    pub cordoned: bool,
    /// Which VMs an administrator said are to leave it. It is cordoned, too, then.
    pub drain: Option<Drain>,
    /// When its service last wrote here.
    pub last_seen: Timestamp,
    /// When its first service wrote here, or an administrator had it join.
    pub created_at: Timestamp,
    /// Whether it is asked over the network; else a service is there.
    pub joined: bool,
    /// The service of this database that is there. The host of one that stands by is asked over the network.
    pub service: Option<Service>,
    /// How often it joined.
    pub enrolment: i64,
    /// SHA-256 of the token that it may join with, in hexadecimal.
    pub token_hash: Option<String>,
    /// Until when that token holds.
    pub token_until: Option<Timestamp>,
    /// When its certificate ends.
    pub certificate_until: Option<Timestamp>,
    /// The version of Berth there.
    pub version: Option<String>,
    /// Why it cannot be asked, or what keeps it from running machines, as a sentence for administrators.
    pub trouble: Option<String>,
    /// Which stores of disks it reaches, and why it does not reach the others.
    pub stores: Stores,
    /// From where it reached each of them last.
    pub store_addresses: BTreeMap<String, Vec<IpAddr>>,
    /// Those that it is shut out of.
    pub fences: Fences,
}

impl FromRow for HostRow {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            id: row.parsed("id")?,
            name: row.text("name")?,
            given_name: row.opt_text("given_name")?,
            addresses: row.json("addresses")?,
            regions: row.json("regions")?,
            capacity: Capacity { cpus: row.int("cpus")?, memory_mb: row.int("memory_mb")? },
            gpus: row.json("gpus")?,
            overcommit: row.json("overcommit")?,
            boot: row.opt_text("boot")?,
            labels: row.json("labels")?,
            state: row.word("state", State::parse)?,
            cordoned: row.flag("cordoned")?,
            drain: row.opt_word("drain", Drain::parse)?,
            last_seen: row.time("last_seen")?,
            created_at: row.time("created_at")?,
            joined: row.flag("joined")?,
            service: row.opt_word("service", Service::parse)?,
            enrolment: row.int("enrolment")?,
            token_hash: row.opt_text("token_hash")?,
            token_until: row.opt_time("token_until")?,
            certificate_until: row.opt_time("certificate_until")?,
            version: row.opt_text("version")?,
            trouble: row.opt_text("trouble")?,
            stores: row.json("stores")?,
            store_addresses: row.json("store_addresses")?,
            fences: row.json("fences")?,
        })
    }
}

impl HostRow {
    /// What it is called.
    pub fn name(&self) -> &str {
        self.given_name.as_deref().unwrap_or(&self.name)
    }

    /// How often each MiB of it is promised, where it says so; else as here.
    pub fn overcommit(&self, here: Overcommit) -> Overcommit {
        let said = |word: &str, here| self.overcommit.get(word).copied().unwrap_or(here);
        Overcommit { vm: said("vm", here.vm), sandbox: said("sandbox", here.sandbox) }
    }

    /// Which stores of disks machines on it may use, and why not the others: it reaches them, and is not shut out.
    pub fn usable_stores(&self) -> Stores {
        let fenced = self.fences.iter().map(|(name, fence)| (name.clone(), Some(format!("{FENCED} {}", fence.since))));
        self.stores.clone().into_iter().chain(fenced).collect()
    }

    /// What becomes of its machines, by all that was said of it.
    pub fn state(&self) -> State {
        match self.state {
            State::Lost if self.joined && self.enrolment == 0 => State::Joining,
            State::Ready if self.drain.is_some() => State::Draining,
            State::Ready if self.cordoned => State::Cordoned,
            state => state,
        }
    }
}

fn columns(host: &HostRow) -> Columns {
    columns! {
        "id": host.id, "name": &host.name, "given_name": host.given_name.clone(), "addresses": json::text(&host.addresses),
        "regions": json::text(&host.regions), "cpus": host.capacity.cpus, "memory_mb": host.capacity.memory_mb,
        "gpus": json::text(&host.gpus), "overcommit": json::text(&host.overcommit), "boot": host.boot.clone(), "labels": json::text(&host.labels),
        "state": host.state.as_str(), "cordoned": host.cordoned, "drain": host.drain.map(Drain::as_str), "last_seen": host.last_seen, "created_at": host.created_at,
        "joined": host.joined, "service": host.service.map(Service::as_str), "enrolment": host.enrolment, "token_hash": host.token_hash.clone(), "token_until": host.token_until,
        "certificate_until": host.certificate_until, "version": host.version.clone(), "trouble": host.trouble.clone(),
        "stores": json::text(&host.stores), "store_addresses": json::text(&host.store_addresses), "fences": json::text(&host.fences),
    }
}

/// How lists of hosts are narrowed and ordered.
pub const LISTED: Listed = Listed {
    id: "hosts.id",
    created: "hosts.created_at",
    name: Some("COALESCE(hosts.given_name, hosts.name)"),
    status: Some(Words {
        param: "state",
        column: "CASE WHEN hosts.drain IS NOT NULL AND hosts.state = 'ready' THEN 'draining' \
                 WHEN hosts.cordoned = 1 AND hosts.state = 'ready' THEN 'cordoned' \
                 WHEN hosts.joined = 1 AND hosts.enrolment = 0 THEN 'joining' ELSE hosts.state END",
        words: State::WORDS,
    }),
    labels: Some("hosts.labels"),
};

/// A page of all hosts, and how many there are.
pub async fn list(db: &Db, listing: &Listing) -> Result<(Vec<HostRow>, i64), DbError> {
    page_of("*", "hosts WHERE hosts.removed_at IS NULL").list(db, &LISTED, listing).await
}

/// A host, if it was not removed.
pub async fn find(on: impl On, id: HostId) -> Result<Option<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE id = $1 AND removed_at IS NULL").bind(id).fetch_optional(on).await
}

/// Has a host be there again that was removed.
pub async fn bring_back(tx: &mut Tx, id: HostId) -> Result<(), DbError> {
    sql("UPDATE hosts SET removed_at = NULL WHERE id = $1 AND removed_at IS NOT NULL")
        .bind(id)
        .execute(tx)
        .await
        .map(drop)
}

/// Every host that was not removed, the oldest first.
pub async fn all(on: impl On) -> Result<Vec<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE removed_at IS NULL ORDER BY id").fetch_all(on).await
}

/// Those of these hosts that were not removed; at least one is asked for.
pub async fn among(on: impl On, ids: &[HostId]) -> Result<Vec<HostRow>, DbError> {
    let marks = marks(ids.len());
    let among = format!("SELECT * FROM hosts WHERE id IN ({marks}) AND removed_at IS NULL ORDER BY id");
    sql(among).bind_all(ids.iter().copied()).fetch_all(on).await
}

/// Every host that is asked over the network: those that joined, and those of replicas.
pub async fn joined(on: impl On) -> Result<Vec<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE joined = 1 AND enrolment > 0 AND removed_at IS NULL ORDER BY id").fetch_all(on).await
}

/// What a host has that no row has given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Things {
    /// Machines.
    pub machines: i64,
    /// Disks that lie there, and snapshots of disks.
    pub disks: i64,
    /// Images of projects.
    pub images: i64,
    /// Layers of disks of sandboxes, snapshots and templates, and captured memories, but for those of the platform's templates.
    pub layers: i64,
    /// Of its disks, those whose VM is on another host by now: they follow it.
    pub leaving: i64,
    /// What machines hold of it.
    pub load: Load,
}

/// What machines hold of a host: those that run or are about to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
}

impl FromRow for Things {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self {
            machines: row.int("machines")?,
            disks: row.int("disks")?,
            images: row.int("images")?,
            layers: row.int("layers")?,
            leaving: row.int("leaving")?,
            load: Load { vcpu: row.int("vcpu")?, memory_mb: row.int("memory_mb")? },
        })
    }
}

impl Things {
    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What each of these hosts has.
pub async fn things_of(db: &Db, hosts: &[HostRow]) -> Result<Vec<Things>, DbError> {
    let mut all = Vec::with_capacity(hosts.len());
    for host in hosts {
        all.push(things(db, host.id).await?);
    }
    Ok(all)
}

/// What a host has.
pub async fn things(on: impl On, id: HostId) -> Result<Things, DbError> {
    let counted = sql(concat!(
        "SELECT (SELECT COUNT(*) FROM machines WHERE host_id = $1 AND deleted_at IS NULL) AS machines, \
         (SELECT COUNT(*) FROM disks WHERE host_id = $1 AND store IS NULL AND deleted_at IS NULL) \
         + (SELECT COUNT(*) FROM disk_snapshots WHERE host_id = $1 AND deleted_at IS NULL) AS disks, \
         (SELECT COUNT(*) FROM project_images WHERE host_id = $1 AND deleted_at IS NULL) AS images, \
         (SELECT COUNT(*) FROM sandbox_layers l WHERE host_id = $1 AND ",
        no_platforms_layer!("l.id"),
        ") + (SELECT COUNT(*) FROM sandbox_memories k WHERE host_id = $1 AND ",
        no_platforms!("k.id", "memory_id", "next_memory_id"),
        ") AS layers, \
         (SELECT COUNT(*) FROM disks d JOIN machines m ON m.owner_id = d.vm_id AND m.owner_kind = 'vm' \
         WHERE d.host_id = $1 AND d.store IS NULL AND d.deleted_at IS NULL AND m.host_id <> $1 AND m.deleted_at IS NULL) AS leaving, \
         (SELECT CAST(COALESCE(SUM(vcpu), 0) AS BIGINT) FROM machines WHERE host_id = $1 AND reserved = 1) AS vcpu, \
         (SELECT CAST(COALESCE(SUM(memory_mb), 0) AS BIGINT) FROM machines WHERE host_id = $1 AND reserved = 1) AS memory_mb"
    ));
    counted.bind(id).fetch_one(on).await
}

/// The stores of disks that belong to a host's regions, or whose VM is on it, and of snapshots of such disks.
pub async fn stores_used(on: impl On, host: &HostRow) -> Result<BTreeSet<String>, DbError> {
    let used = sql(
        "SELECT DISTINCT d.store, d.region_id, CAST(CASE WHEN m.host_id = $1 THEN 1 ELSE 0 END AS BIGINT) AS is_here \
         FROM disks d LEFT JOIN machines m ON m.owner_id = d.vm_id AND m.owner_kind = 'vm' AND m.deleted_at IS NULL \
         WHERE d.store IS NOT NULL AND d.deleted_at IS NULL \
         UNION SELECT store, region_id, CAST(0 AS BIGINT) FROM disk_snapshots WHERE store IS NOT NULL AND deleted_at IS NULL",
    );
    let used = used.bind(host.id).fetch_all::<Used>(on).await?.into_iter();
    Ok(used.filter(|used| used.is_here || host.regions.contains(&used.region)).map(|used| used.store).collect())
}

/// A store, and a region that disks of it belong to, or snapshots.
struct Used {
    store: String,
    region: String,
    is_here: bool,
}

impl FromRow for Used {
    fn from_row(row: &Row) -> Result<Self, DbError> {
        Ok(Self { store: row.text("store")?, region: row.text("region_id")?, is_here: row.flag("is_here")? })
    }
}

/// Hosts that joined and were removed.
pub async fn removed(on: impl On) -> Result<Vec<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE joined = 1 AND removed_at IS NOT NULL ORDER BY id").fetch_all(on).await
}

/// Hosts that were removed, whoever asked them.
pub async fn all_removed(on: impl On) -> Result<Vec<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE removed_at IS NOT NULL ORDER BY id").fetch_all(on).await
}

/// Hosts that are shut out of a store, or are to be; those that were removed, too.
pub async fn fenced(on: impl On) -> Result<Vec<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE fences <> '{}'").fetch_all(on).await
}

/// Says that a host is shut out of a store, or that it is not; of one that was removed, too.
pub async fn set_fence(tx: &mut Tx, id: HostId, store: &str, fence: Option<Fence>) -> Result<(), DbError> {
    let found = sql("SELECT * FROM hosts WHERE id = $1").bind(id).fetch_optional::<HostRow>(&mut *tx).await?;
    let Some(HostRow { mut fences, .. }) = found else { return Ok(()) };
    match fence {
        Some(fence) => drop(fences.insert(store.to_owned(), fence)),
        None => drop(fences.remove(store)),
    }
    let set = sql("UPDATE hosts SET fences = $2 WHERE id = $1");
    set.bind(id).bind(json::text(&fences)).execute(tx).await.map(drop)
}

/// The host that may join with the token of this hash.
pub async fn by_token(on: impl On, hash: &str) -> Result<Option<HostRow>, DbError> {
    sql("SELECT * FROM hosts WHERE token_hash = $1 AND removed_at IS NULL").bind(hash).fetch_optional(on).await
}

/// Takes a token, so that nobody else joins with it; `false` where somebody was faster.
pub async fn spend(tx: &mut Tx, hash: &str) -> Result<bool, DbError> {
    let spent = sql("UPDATE hosts SET token_hash = NULL, token_until = NULL WHERE token_hash = $1");
    Ok(spent.bind(hash).execute(tx).await? == 1)
}

/// Removes a host. What ended there goes on naming it, and so do copies of layers, which are there again where it comes back.
pub async fn remove(tx: &mut Tx, id: HostId, now: Timestamp) -> Result<(), DbError> {
    let removed = sql("UPDATE hosts SET removed_at = $2, state = 'lost', token_hash = NULL WHERE id = $1");
    removed.bind(id).bind(now).execute(tx).await.map(drop)
}

/// Writes a row; `known` is what stood there.
pub async fn put(tx: &mut Tx, known: Option<&HostRow>, host: &HostRow) -> Result<(), DbError> {
    match known {
        Some(known) => record::update(tx, TABLE, &columns(known), columns(host)).await,
        None => record::insert(TABLE, columns(host)).execute(tx).await.map(drop),
    }
}

/// Says of every host but one that its service is active no more, and that it is lost; of none that it is lost which is asked
/// over the network, whoever asks.
pub async fn lose_others(tx: &mut Tx, id: HostId) -> Result<(), DbError> {
    let lost = sql("UPDATE hosts SET state = 'lost', service = NULL WHERE id <> $1 AND state <> 'lost' AND joined = 0");
    lost.bind(id).execute(&mut *tx).await?;
    let overtaken = sql("UPDATE hosts SET service = 'standby' WHERE id <> $1 AND service = 'active' AND joined = 1");
    overtaken.bind(id).execute(tx).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use uuid::Uuid;

    use super::*;

    fn host(name: &str, state: State) -> HostRow {
        HostRow {
            id: HostId(Uuid::now_v7()),
            name: name.into(),
            given_name: None,
            addresses: vec!["127.0.0.1:8080".into()],
            regions: vec!["local".into()],
            capacity: Capacity { cpus: 2, memory_mb: 4096 },
            gpus: Vec::new(),
            overcommit: [("vm".to_owned(), 1.5)].into(),
            boot: Some("one".into()),
            labels: BTreeMap::new(),
            state,
            cordoned: false,
            drain: None,
            last_seen: Timestamp(1),
            created_at: Timestamp(1),
            joined: false,
            service: Some(Service::Active),
            enrolment: 0,
            token_hash: None,
            token_until: None,
            certificate_until: None,
            version: Some("1".into()),
            trouble: None,
            store_addresses: [("pool".to_owned(), vec![Ipv4Addr::LOCALHOST.into()])].into(),
            fences: [(
                "pool".to_owned(),
                Fence {
                    addresses: vec![Ipv4Addr::LOCALHOST.into()],
                    enrolment: 1,
                    since: Timestamp(1),
                    is_tried: false,
                    is_made: true,
                },
            )]
            .into(),
            stores: Stores::from([
                ("pool".to_owned(), None),
                ("away".to_owned(), Some("no monitor answers".to_owned())),
            ]),
        }
    }

    #[test]
    fn a_store_that_a_host_is_shut_out_of_is_told_whether_it_was_asked_or_not() {
        let asked = host("alpha", State::Ready);
        let reached = HostRow { fences: Fences::new(), ..asked.clone() };
        assert_eq!(reached.usable_stores(), asked.stores);
        let unasked = HostRow { stores: Stores::new(), ..asked.clone() };
        for (host, names) in [(asked, vec!["away", "pool"]), (unasked, vec!["pool"])] {
            let shown = host.usable_stores();
            assert_eq!(shown.keys().collect::<Vec<_>>(), names);
            assert!(shown["pool"].as_ref().is_some_and(|why| why.starts_with(FENCED)), "{shown:?}");
        }
    }

    #[tokio::test]
    async fn a_row_is_what_was_written_last_and_others_are_lost() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let mut tx = db.begin().await.unwrap();
        let (own, other) = (host("alpha", State::Draining), host("beta", State::Ready));
        put(&mut tx, None, &own).await.unwrap();
        put(&mut tx, None, &other).await.unwrap();
        let later = HostRow { boot: Some("two".into()), last_seen: Timestamp(2), ..own.clone() };
        put(&mut tx, Some(&own), &later).await.unwrap();
        lose_others(&mut tx, own.id).await.unwrap();
        assert_eq!(find(&mut tx, own.id).await.unwrap(), Some(later));
        assert_eq!(find(&mut tx, other.id).await.unwrap().map(|host| host.state), Some(State::Lost));
    }
}
