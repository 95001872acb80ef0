//! Questions about disks as stand-alone files.

use super::question::questions;
use crate::host::export::{ExportSource, Exported};

questions! {
    /// What may be asked about exports.
    "export" {
        /// Makes a stand-alone qcow2 file of a disk, or finds it made. It is kept for a while after it was asked for last.
        /// Whoever leaves before the answer ends it, where nobody else waits for the same.
        Make "make" {
            /// Of what.
            of: ExportSource,
        } -> Exported,
    }
}
