//! Backups: what a disk was at one moment, kept outside of the host, in a folder or a bucket that the operator names.
//!
//! ```text
//!   pending ─► running ─► ready ─► deleting ─► (gone)
//!      │          │ └──► failed ─────▲
//!      └──────────┴──────────────────┘
//! ```
//!
//! A backup begins with a hidden snapshot of the disk, which the disk's owner makes as it makes any other. What that has goes
//! to the store in parts, is read back, and only then the backup is `ready` and lets go of the snapshot. Three facts tell what
//! is to be done ([`Facts`]), so that a worker that dies between any two of them leaves a row that says what it left.

use serde_json::Value;

use super::disk::{DiskKind, DiskStatus};
use super::disk_snapshot::DiskSnapshotStatus;
use crate::error::{Code, Error, Result};
use crate::fields::{Fields, id};
use crate::ids::{BackupId, DiskId, VmId};
use crate::names::Name;
use crate::vm::request::name;
use crate::words;

/// How long a backup may take from when its turn comes, in seconds: 2 TiB at 30 MB a second.
pub const LONGEST: i64 = 20 * 3600;

words! {
    /// Where a backup stands.
    BackupStatus {
        /// Accepted; its disk is being copied.
        Pending = "pending",
        /// On its way to the store, or being read back.
        Running = "running",
        /// Whole, and read back.
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
    /// What the worker does next for a backup.
    BackupStep {
        /// Bring it to the store and read it back, or record why that cannot be.
        Store = "store",
        /// Record that it cannot be made.
        Fail = "fail",
        /// Remove what the store may have of it.
        Clear = "clear",
        /// Have the snapshot go that it was made from.
        LetGo = "let_go",
        /// Record that it is gone.
        End = "end",
    }
}

/// What there is of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where it stands.
    pub status: BackupStatus,
    /// Whether the store may have something of it.
    pub is_begun: bool,
    /// The snapshot that it names, and where that stands; none where it names none, or one that is gone.
    pub snapshot: Option<DiskSnapshotStatus>,
    /// Whether it names a snapshot, which may be gone.
    pub names_snapshot: bool,
    /// Whether it took longer than it may.
    pub is_late: bool,
}

/// The next step for a backup; none where it is at rest, or its disk's owner acts.
pub const fn next(facts: Facts) -> Option<BackupStep> {
    match facts.status {
        BackupStatus::Pending | BackupStatus::Running => match facts.snapshot {
            _ if facts.is_late => Some(BackupStep::Fail),
            Some(DiskSnapshotStatus::Pending) => None,
            Some(DiskSnapshotStatus::Ready) => Some(BackupStep::Store),
            // The store may have all of it: where the database is an older copy, this may have been made long ago.
            _ if facts.is_begun => Some(BackupStep::Store),
            Some(DiskSnapshotStatus::Failed | DiskSnapshotStatus::Deleting | DiskSnapshotStatus::Deleted) | None => {
                Some(BackupStep::Fail)
            }
        },
        // First what takes room on the host: that needs no store, which may be away for days.
        BackupStatus::Ready | BackupStatus::Failed | BackupStatus::Deleting if facts.names_snapshot => {
            Some(BackupStep::LetGo)
        }
        BackupStatus::Failed | BackupStatus::Deleting if facts.is_begun => Some(BackupStep::Clear),
        BackupStatus::Deleting => Some(BackupStep::End),
        BackupStatus::Ready | BackupStatus::Failed | BackupStatus::Deleted => None,
    }
}

/// Whether a backup may be made of a disk. `field` names the disk, or its VM, in the request.
pub fn on_create(status: DiskStatus, field: &str, disk: DiskId) -> Result<()> {
    if status == DiskStatus::Ready {
        return Ok(());
    }
    Err(Error::field(field, format!("{disk} is {status}, not ready")))
}

/// Whether a disk may be made of what a backup has.
pub fn on_restore(status: BackupStatus, id: BackupId) -> Result<()> {
    if status == BackupStatus::Ready {
        return Ok(());
    }
    let message = format!("The backup {id} is {status}. Only one that is ready can be restored.");
    Err(Error::new(Code::BackupNotReady, message))
}

/// What a backup is made of, or a schedule makes backups of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A data disk or a root disk volume.
    Disk {
        /// Which.
        id: DiskId,
        /// What it is for.
        kind: DiskKind,
    },
    /// All disks that a VM has then, each in a backup of its own.
    Vm(VmId),
}

impl Target {
    /// The field of a request that names it.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Disk { kind: DiskKind::Data, .. } => "disk_id",
            Self::Disk { kind: DiskKind::Root, .. } => "root_disk_id",
            Self::Vm(_) => "vm_id",
        }
    }

    /// Reads it from the fields of a request, exactly one of which is to be given.
    pub(super) fn read(f: &mut Fields<'_>) -> Option<Self> {
        const FIELDS: [&str; 3] = ["disk_id", "root_disk_id", "vm_id"];
        let disk = |kind: DiskKind| move |id: DiskId| Self::Disk { id, kind };
        let data = f.optional(FIELDS[0], id).map(disk(DiskKind::Data));
        let root = f.optional(FIELDS[1], id).map(disk(DiskKind::Root));
        let vm = f.optional(FIELDS[2], id).map(Self::Vm);
        if FIELDS.iter().filter(|field| f.has(field)).count() != 1 {
            f.fail(FIELDS[0], "give exactly one of disk_id, root_disk_id and vm_id");
        }
        data.or(root).or(vm)
    }
}

/// A request for a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateBackup {
    /// Of what.
    pub of: Target,
    /// What it is called; as its disk where nothing is said.
    pub name: Option<Name>,
}

impl TryFrom<&Value> for CreateBackup {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let of = Target::read(&mut f);
        let name = f.optional("name", name);
        f.finish(of.map(|of| Self { of, name }))
    }
}

/// A request for a new disk with what a backup has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreBackup {
    /// What the disk is called; as the backup where nothing is said.
    pub name: Option<Name>,
}

impl TryFrom<&Value> for RestoreBackup {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.optional("name", name);
        f.finish(Some(Self { name }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const ONE: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

    fn facts(status: BackupStatus) -> Facts {
        Facts { status, is_begun: false, snapshot: None, names_snapshot: false, is_late: false }
    }

    #[test]
    fn it_is_stored_once_its_snapshot_is_whole() {
        for status in [BackupStatus::Pending, BackupStatus::Running] {
            let of = |snapshot| next(Facts { snapshot, names_snapshot: true, ..facts(status) });
            assert_eq!(of(Some(DiskSnapshotStatus::Pending)), None);
            assert_eq!(of(Some(DiskSnapshotStatus::Ready)), Some(BackupStep::Store));
            for gone in [Some(DiskSnapshotStatus::Failed), Some(DiskSnapshotStatus::Deleting), None] {
                assert_eq!(of(gone), Some(BackupStep::Fail));
                let begun = Facts { snapshot: gone, names_snapshot: true, is_begun: true, ..facts(status) };
                assert_eq!(next(begun), Some(BackupStep::Store), "the store may have it");
            }
            let late = Facts { snapshot: Some(DiskSnapshotStatus::Ready), is_late: true, ..facts(status) };
            assert_eq!(next(late), Some(BackupStep::Fail));
        }
    }

    #[test]
    fn the_host_is_cleared_before_the_store() {
        for status in [BackupStatus::Failed, BackupStatus::Deleting] {
            let begun = Facts { is_begun: true, ..facts(status) };
            assert_eq!(next(Facts { names_snapshot: true, ..begun }), Some(BackupStep::LetGo));
            assert_eq!(next(begun), Some(BackupStep::Clear));
        }
    }

    #[test]
    fn only_what_is_ready_is_copied_and_restored() {
        let (disk, backup) = (ONE.parse().unwrap(), ONE.parse().unwrap());
        for &status in DiskStatus::ALL {
            assert_eq!(on_create(status, "disk_id", disk).is_ok(), status == DiskStatus::Ready);
        }
        for &status in BackupStatus::ALL {
            assert_eq!(on_restore(status, backup).is_ok(), status == BackupStatus::Ready);
        }
    }

    #[test]
    fn exactly_one_thing_is_named() {
        let read = |body: Value| CreateBackup::try_from(&body);
        for (field, is_vm) in [("disk_id", false), ("root_disk_id", false), ("vm_id", true)] {
            let request = read(json!({field: ONE, "name": "nightly"})).unwrap();
            assert_eq!(request.of.field(), field);
            assert_eq!(matches!(request.of, Target::Vm(_)), is_vm);
        }
        for body in [json!({}), json!({"disk_id": ONE, "vm_id": ONE}), json!({"root_disk_id": ONE, "disk_id": ONE})] {
            assert_eq!(read(body).unwrap_err().details[0].field, "disk_id");
        }
        for (body, field) in [(json!({"vm_id": "x"}), "vm_id"), (json!({"disk_id": ONE, "name": "A"}), "name")] {
            assert_eq!(read(body).unwrap_err().details[0].field, field);
        }
        assert_eq!(RestoreBackup::try_from(&json!({})).unwrap().name, None);
        assert_eq!(RestoreBackup::try_from(&json!({"name": "A"})).unwrap_err().details[0].field, "name");
    }

    proptest! {
        /// Whatever is there, each step takes something away, and at the end a backup is at rest with nothing left behind.
        #[test]
        fn it_comes_to_rest_and_leaves_nothing(status in 0..5_usize, begun: bool, named: bool, late: bool, snapshot in 0..5_usize) {
            let snapshot = DiskSnapshotStatus::ALL[snapshot];
            let mut facts = Facts {
                status: BackupStatus::ALL[status],
                is_begun: begun,
                snapshot: named.then_some(snapshot),
                names_snapshot: named,
                is_late: late,
            };
            let waits = |facts: Facts| facts.snapshot == Some(DiskSnapshotStatus::Pending) && !facts.is_late;
            for _ in 0..6 {
                match next(facts) {
                    None => break,
                    Some(BackupStep::Store) => (facts.status, facts.is_begun) = (BackupStatus::Ready, true),
                    Some(BackupStep::Fail) => facts.status = BackupStatus::Failed,
                    Some(BackupStep::Clear) => facts.is_begun = false,
                    Some(BackupStep::LetGo) => (facts.names_snapshot, facts.snapshot) = (false, None),
                    Some(BackupStep::End) => facts.status = BackupStatus::Deleted,
                }
            }
            prop_assert_eq!(next(facts), None);
            let is_unmade = matches!(facts.status, BackupStatus::Pending | BackupStatus::Running);
            prop_assert!(!is_unmade || waits(facts));
            prop_assert!(is_unmade || !facts.names_snapshot);
            prop_assert!(!facts.is_begun || is_unmade || facts.status == BackupStatus::Ready);
        }
    }
}
