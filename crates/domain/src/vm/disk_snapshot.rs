//! Snapshots of disks: copies of what a disk is at one moment.
//!
//! ```text
//!   pending ─► ready ─► deleting ─► (gone)
//!      │  └──► failed ─────▲
//!      └───────────────────┘
//! ```
//!
//! Whoever has the disk makes the snapshot, as its VM does whatever else happens to a disk: who starts, ends and grows a
//! machine's disk takes turns with who copies it. What was begun that way is given up by the same hand. All that is left is
//! the snapshot's own ([`next`]).

use serde_json::Value;

use super::disk::{DiskKind, DiskStatus, DiskType};
use crate::Timestamp;
use crate::error::{Code, Error, Result};
use crate::fields::{Fields, id};
use crate::host::State;
use crate::ids::{DiskId, DiskSnapshotId, HostId};
use crate::names::Name;
use crate::vm::request::name;
use crate::words;

words! {
    /// Where a snapshot stands.
    DiskSnapshotStatus {
        /// Accepted, or being copied.
        Pending = "pending",
        /// Whole.
        Ready = "ready",
        /// Could not be made.
        Failed = "failed",
        /// Being removed.
        Deleting = "deleting",
        /// Gone; never shown.
        Deleted = "deleted",
    }
}

words! {
    /// What the worker does for a snapshot whose disk's owner does not.
    DiskSnapshotStep {
        /// Remove it, and record that it is gone.
        Remove = "remove",
    }
}

/// Shortest and longest wait between two looks at a copy that is under way, in milliseconds.
const LOOKS: (i64, i64) = (200, 5_000);

/// A snapshot that its disk's owner has to do something about: it is to be copied, or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Which.
    pub id: DiskSnapshotId,
    /// Not before this.
    pub after: Option<Timestamp>,
}

/// Of those that are open, the one to look at first.
pub fn first_due(open: impl IntoIterator<Item = Open>) -> Option<Open> {
    open.into_iter().min_by_key(|open| open.after)
}

impl Open {
    /// Whether it is time to do something about it.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.after.is_none_or(|at| at <= now)
    }
}

/// A host, and where it stands; nowhere once it was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which.
    pub host: HostId,
    /// Where it stands.
    pub state: Option<State>,
}

impl Place {
    /// Whether it is the platform's still, and not lost.
    pub fn is_there(&self) -> bool {
        !matches!(self.state, None | Some(State::Lost))
    }
}

/// Who does something about a snapshot of a disk that lies in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// This host.
    Host(HostId),
    /// Any that reaches the store.
    Any,
    /// Nobody before its VM is on another host.
    Nobody,
}

/// Who makes a snapshot of a disk in a store, or gives it up: the host of the VM that has the disk, whose guest stands still for
/// that; for none, the one on which it was begun, or else any other.
pub fn maker(vm: Option<Place>, begun: Option<Place>) -> Actor {
    match (vm, begun) {
        (Some(Place { state: None, .. }), _) => Actor::Nobody,
        (Some(place), _) => Actor::Host(place.host),
        (None, Some(place)) if place.is_there() => Actor::Host(place.host),
        (None, _) => Actor::Any,
    }
}

/// Who removes a snapshot of a disk in a store that nothing makes: the host that has a file of it, which is gone with that host.
pub fn remover(file: Option<Place>) -> Actor {
    file.filter(|place| place.state.is_some()).map_or(Actor::Any, |place| Actor::Host(place.host))
}

/// Whether the owner of a snapshot's disk has to do something about it.
pub const fn is_open(status: DiskSnapshotStatus, has_begun: bool) -> bool {
    match status {
        DiskSnapshotStatus::Pending => true,
        DiskSnapshotStatus::Deleting => has_begun,
        DiskSnapshotStatus::Ready | DiskSnapshotStatus::Failed | DiskSnapshotStatus::Deleted => false,
    }
}

/// The next step for a snapshot itself; none where it is at rest, or its disk's owner acts.
pub const fn next(status: DiskSnapshotStatus, has_begun: bool) -> Option<DiskSnapshotStep> {
    match status {
        DiskSnapshotStatus::Deleting if !has_begun => Some(DiskSnapshotStep::Remove),
        _ => None,
    }
}

/// When to look again at a copy that began at a time: seldom where it takes long.
pub fn look_again(begun: Timestamp, now: Timestamp) -> Timestamp {
    let age = (now.0 - begun.0) / 1000;
    now.plus_millis((age / 10).clamp(LOOKS.0, LOOKS.1))
}

/// Whether a snapshot may be made of a disk. `field` names the disk in the request.
pub fn on_create(status: DiskStatus, field: &str, disk: DiskId) -> Result<()> {
    if status == DiskStatus::Ready {
        return Ok(());
    }
    Err(Error::field(field, format!("{disk} is {status}, not ready")))
}

/// A snapshot of which a disk is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Which.
    pub id: DiskSnapshotId,
    /// Where it stands.
    pub status: DiskSnapshotStatus,
    /// What the disk is for that it is of, and how a guest gets that.
    pub of: (DiskKind, DiskType),
    /// How large that disk was, in GiB.
    pub size_gb: i64,
    /// Where it lies.
    pub region: &'a str,
}

/// A disk that is to be made of a snapshot, as it is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What it is for, and how a guest gets it.
    pub of: (DiskKind, DiskType),
    /// How large it is to be, in GiB.
    pub size_gb: i64,
    /// Where.
    pub region: &'a str,
    /// The field of the request that names the snapshot, and the object of the request that describes the disk, with a dot
    /// behind it.
    pub fields: (&'a str, &'a str),
}

/// Whether a disk may be made of a snapshot.
pub fn on_use(snapshot: Source<'_>, wanted: Wanted<'_>) -> Result<()> {
    let (id, (field, disk)) = (snapshot.id, wanted.fields);
    if snapshot.of.0 != wanted.of.0 {
        return Err(Error::field(field, format!("{id} is of a {} disk", snapshot.of.0)));
    }
    if snapshot.of.1 != wanted.of.1 {
        return Err(Error::field(format!("{disk}type"), format!("must be {}, as that of the snapshot", snapshot.of.1)));
    }
    if snapshot.region != wanted.region {
        return Err(Error::field(field, format!("{id} lies in the region {}", snapshot.region)));
    }
    if snapshot.size_gb > wanted.size_gb {
        let rule = format!("must be at least {}, the size of the snapshot", snapshot.size_gb);
        return Err(Error::field(format!("{disk}size_gb"), rule));
    }
    match snapshot.status {
        DiskSnapshotStatus::Ready => Ok(()),
        status => Err(Error::new(
            Code::SnapshotNotReady,
            format!("The snapshot {id} is {status}. Only one that is ready can be used."),
        )),
    }
}

/// A request for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateDiskSnapshot {
    /// The disk.
    pub disk: DiskId,
    /// Whether it is a root disk volume.
    pub is_root: bool,
    /// What it is called; as its disk where nothing is said.
    pub name: Option<Name>,
}

impl CreateDiskSnapshot {
    /// The field that names the disk.
    pub const fn field(&self) -> &'static str {
        if self.is_root { "root_disk_id" } else { "disk_id" }
    }
}

impl TryFrom<&Value> for CreateDiskSnapshot {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let (data, root) = (f.optional("disk_id", id), f.optional("root_disk_id", id));
        if f.has("disk_id") == f.has("root_disk_id") {
            f.fail("disk_id", "give exactly one of disk_id and root_disk_id");
        }
        let name = f.optional("name", name);
        let request = data.map(|disk| (disk, false)).or(root.map(|disk| (disk, true)));
        f.finish(request.map(|(disk, is_root)| Self { disk, is_root, name }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use DiskSnapshotStatus::{Deleting, Pending, Ready};

    #[test]
    fn either_its_disk_has_it_or_it_is_its_own_to_remove() {
        for &status in DiskSnapshotStatus::ALL {
            for has_begun in [false, true] {
                let (open, own) = (is_open(status, has_begun), next(status, has_begun).is_some());
                assert!(!(open && own), "{status}");
                assert_eq!(open || own, matches!(status, Pending | Deleting), "{status}");
            }
        }
    }

    #[test]
    fn only_what_is_ready_is_copied_and_used() {
        let (disk, snapshot) = (DiskId(uuid::Uuid::nil()), DiskSnapshotId(uuid::Uuid::nil()));
        for &status in DiskStatus::ALL {
            assert_eq!(on_create(status, "disk_id", disk).is_ok(), status == DiskStatus::Ready);
        }
        for &status in DiskSnapshotStatus::ALL {
            let of = (DiskKind::Data, DiskType::Block);
            let source = Source { id: snapshot, status, of, size_gb: 10, region: "local" };
            let wanted = Wanted { of, size_gb: 10, region: "local", fields: ("snapshot_id", "disk.") };
            assert_eq!(on_use(source, wanted).is_ok(), status == Ready);
            assert!(on_use(Source { status: Ready, ..source }, Wanted { size_gb: 11, ..wanted }).is_ok());
            let refused = |wanted| on_use(source, wanted).unwrap_err().details[0].field.clone();
            let of = |kind, disk_type| Wanted { of: (kind, disk_type), ..wanted };
            assert_eq!(refused(of(DiskKind::Root, DiskType::Block)), "snapshot_id");
            assert_eq!(refused(of(DiskKind::Data, DiskType::Filesystem)), "disk.type");
            assert_eq!(refused(Wanted { region: "far", ..wanted }), "snapshot_id");
            assert_eq!(refused(Wanted { size_gb: 9, ..wanted }), "disk.size_gb");
        }
    }

    #[test]
    fn the_first_is_the_one_that_waited_for_no_time_or_the_shortest() {
        let open = |after: Option<i64>| Open { id: DiskSnapshotId(uuid::Uuid::nil()), after: after.map(Timestamp) };
        assert_eq!(first_due([open(Some(2)), open(Some(1))]), Some(open(Some(1))));
        assert_eq!(first_due([open(Some(1)), open(None)]), Some(open(None)));
        let due = |after| open(after).is_due(Timestamp(5));
        assert_eq!([due(None), due(Some(5)), due(Some(6))], [true, true, false]);
    }

    #[test]
    fn the_host_of_a_vm_makes_a_snapshot_or_nobody_and_for_none_whoever_is_there() {
        let [vm, begun] = [1, 2].map(|id| HostId(uuid::Uuid::from_u128(id)));
        let at = |host, state| Some(Place { host, state });
        for state in [State::Ready, State::Lost] {
            assert_eq!(maker(at(vm, Some(state)), at(begun, Some(State::Ready))), Actor::Host(vm), "{state}");
        }
        assert_eq!(maker(at(vm, None), at(begun, Some(State::Ready))), Actor::Nobody);
        assert_eq!(maker(None, at(begun, Some(State::Ready))), Actor::Host(begun));
        for state in [None, Some(State::Lost)] {
            assert_eq!(maker(None, at(begun, state)), Actor::Any);
        }
        assert_eq!(maker(None, None), Actor::Any);
    }

    #[test]
    fn the_host_of_a_file_removes_it_for_as_long_as_the_platform_has_that_host() {
        let host = HostId(uuid::Uuid::nil());
        for state in [State::Ready, State::Lost] {
            assert_eq!(remover(Some(Place { host, state: Some(state) })), Actor::Host(host));
        }
        assert_eq!(remover(Some(Place { host, state: None })), Actor::Any);
        assert_eq!(remover(None), Actor::Any);
    }

    #[test]
    fn looks_become_seldom() {
        let at = |seconds: i64| Timestamp(seconds * Timestamp::SECOND);
        let wait = |age: i64| (look_again(at(0), at(age)).0 - at(age).0) / 1000;
        assert_eq!([wait(0), wait(2), wait(10), wait(50), wait(3600)], [200, 200, 1000, 5000, 5000]);
    }

    #[test]
    fn exactly_one_disk_is_named() {
        let one = "01939f2e-7c00-7abc-8def-0123456789ab";
        let read = |body: Value| CreateDiskSnapshot::try_from(&body);
        assert!(!read(json!({"disk_id": one})).unwrap().is_root);
        let root = read(json!({"root_disk_id": one, "name": "before"})).unwrap();
        assert!(root.is_root && root.name.is_some());
        for body in [json!({}), json!({"disk_id": one, "root_disk_id": one})] {
            assert_eq!(read(body).unwrap_err().details[0].field, "disk_id");
        }
        for (body, field) in [(json!({"disk_id": "x"}), "disk_id"), (json!({"disk_id": one, "name": "A"}), "name")] {
            assert_eq!(read(body).unwrap_err().details[0].field, field);
        }
    }
}
