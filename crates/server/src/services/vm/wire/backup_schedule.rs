//! Schedules of backups as their owner sees them.

use berth_domain::Timestamp;
use berth_domain::vm::DiskKind;
use berth_domain::vm::backup::Target;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::auth::Scope;
use crate::services::vm::store::backup_schedule::BackupScheduleRow;

/// A schedule of backups, of exactly one of the three.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BackupScheduleResponse)]
pub struct BackupScheduleView {
    /// Identifier.
    #[schema(value_type = uuid::Uuid)]
    id: String,
    /// Its name, and that of its backups.
    name: String,
    /// The data disk of which it makes backups.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    disk_id: Option<String>,
    /// The root disk volume of which it makes backups.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    root_disk_id: Option<String>,
    /// The VM of whose disks, as it has them then, it makes backups.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    vm_id: Option<String>,
    /// A span like `24h`, counted from the creation or the last change of it, or times in the form of cron, in UTC.
    every: String,
    /// How many good backups of each disk are kept.
    keep: i64,
    /// Whether it makes any.
    enabled: bool,
    /// When it was time last.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    last_at: Option<Timestamp>,
    /// When it is time next.
    #[schema(value_type = Option<String>, format = DateTime, required = true)]
    next_at: Option<Timestamp>,
    /// Why it made none the last time, or makes none any more.
    #[schema(required = true)]
    message: Option<String>,
    /// Creation.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Last change.
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
}

/// A schedule to make, of exactly one of the three.
#[derive(ToSchema)]
#[schema(as = CreateBackupScheduleRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct CreateBackupScheduleBody {
    /// Its name, and that of its backups.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: String,
    /// A data disk.
    #[schema(value_type = Option<uuid::Uuid>)]
    disk_id: Option<String>,
    /// A root disk volume.
    #[schema(value_type = Option<uuid::Uuid>)]
    root_disk_id: Option<String>,
    /// A VM: each disk that it has then.
    #[schema(value_type = Option<uuid::Uuid>)]
    vm_id: Option<String>,
    /// A span from `15m` to `366d`, or five fields as cron has them, in UTC, that leave 15 minutes between two times.
    #[schema(examples("24h", "30 2 * * *"))]
    every: String,
    /// How many good backups of each disk are kept; of those that failed as many.
    #[schema(minimum = 1, maximum = 1000)]
    keep: i64,
    /// `true` where it is missing.
    enabled: Option<bool>,
}

/// A change of a schedule; absent fields stay as they are.
#[derive(ToSchema)]
#[schema(as = UpdateBackupScheduleRequest)]
#[expect(dead_code, reason = "describes a body; the domain parses it")]
pub(crate) struct UpdateBackupScheduleBody {
    /// New name.
    #[schema(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length = 1, max_length = 20)]
    name: Option<String>,
    /// New times, counted from now.
    #[schema(examples("24h", "30 2 * * *"))]
    every: Option<String>,
    /// How many good backups of each disk are kept.
    #[schema(minimum = 1, maximum = 1000)]
    keep: Option<i64>,
    /// Whether it makes any.
    enabled: Option<bool>,
}

impl From<&BackupScheduleRow> for BackupScheduleView {
    fn from(schedule: &BackupScheduleRow) -> Self {
        let disk = |wanted: DiskKind| match schedule.of {
            Target::Disk { id, kind } if kind == wanted => Some(id.to_string()),
            Target::Disk { .. } | Target::Vm(_) => None,
        };
        Self {
            id: schedule.id.to_string(),
            name: schedule.name.clone(),
            disk_id: disk(DiskKind::Data),
            root_disk_id: disk(DiskKind::Root),
            vm_id: if let Target::Vm(vm) = schedule.of { Some(vm.to_string()) } else { None },
            every: schedule.every.clone(),
            keep: schedule.keep,
            enabled: schedule.enabled,
            last_at: schedule.last_at,
            next_at: schedule.next_at,
            message: schedule.message.clone(),
            created_at: schedule.created_at,
            updated_at: schedule.updated_at,
        }
    }
}

impl BackupScheduleView {
    /// The path of the schedule.
    pub fn location(&self, scope: &Scope) -> String {
        format!("/api/v1/orgs/{}/projects/{}/backup_schedules/{}", scope.org, scope.project, self.id)
    }
}
