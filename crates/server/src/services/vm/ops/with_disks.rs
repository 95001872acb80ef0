//! What operations on a VM answer with.

use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;

/// A VM with its disks.
#[derive(Clone, Debug)]
pub struct VmWithDisks {
    /// The row.
    pub vm: VmRow,
    /// Its disks, root first.
    pub disks: Vec<DiskRow>,
}
