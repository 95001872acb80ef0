//! What the operator tells every engine of a host.

use std::path::{Path, PathBuf};

use berth_qemu::{accel, host};

use crate::error::qemu_failed;
use crate::{Machines, Result};

/// Where engines work, with what they run machines, and what of the host they leave to others.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The data folder.
    pub data: PathBuf,
    /// QEMU's binary; by default the one on PATH.
    pub qemu: Option<PathBuf>,
    /// How machines are accelerated.
    pub acceleration: accel::Request,
    /// How machines are confined.
    pub machines: Machines,
    /// Memory kept back for the host, in MiB.
    pub memory_reserve_mb: i64,
}

impl HostSettings {
    /// QEMU's binary, if it is there.
    pub(crate) fn find_qemu(&self) -> Result<PathBuf> {
        host::qemu(self.qemu.as_deref()).map_err(qemu_failed)
    }

    /// Decides how this QEMU accelerates machines, by a boot where the operator leaves it open; all engines of a data
    /// folder share the verdict.
    pub(crate) async fn decide_acceleration(&self, probe: Option<&accel::Probe>, qemu: &Path) -> accel::Decision {
        accel::decide(self.acceleration, probe, &self.data.join("accel.json"), qemu).await
    }
}
