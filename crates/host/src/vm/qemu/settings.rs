//! What the operator tells the engine of VMs.

use berth_qemu::machine::Accel;

use crate::HostSettings;
use crate::vm::VmNetwork;

/// Which machines begin with captured boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CapturedBoots {
    /// None.
    Never,
    /// Those that are emulated, where a boot takes long.
    Emulated,
    /// All, as the operator asked.
    Asked,
}

impl CapturedBoots {
    /// What the operator's word says; without one, it is worth it where a boot takes long, and where nobody relies on what
    /// keeps machines apart that began so.
    pub const fn of(word: Option<bool>) -> Self {
        match word {
            Some(true) => Self::Asked,
            Some(false) => Self::Never,
            None => Self::Emulated,
        }
    }

    /// Whether machines that run so begin with them.
    pub(super) fn are_for(self, accel: Accel) -> bool {
        match self {
            Self::Never => false,
            Self::Emulated => accel == Accel::Tcg,
            Self::Asked => true,
        }
    }
}

/// What the engine may take of its host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every engine of the host is told.
    pub host: HostSettings,
    /// Virtual CPUs on offer for each core.
    pub cpu_overcommit: f64,
    /// Memory on offer for each byte of the host's.
    pub memory_overcommit: f64,
    /// Disk on offer for each byte of the data folder's file system (disks are sparse).
    pub disk_overcommit: f64,
    /// Free space below which no new disk is made, in GiB.
    pub disk_reserve_gb: i64,
    /// Largest file of an image that is accepted, both as uploaded and as stored, in GiB.
    pub image_file_gb: i64,
    /// Largest disk that an accepted image may give a guest, in GiB.
    pub image_virtual_gb: i64,
    /// How long converting an image, or a disk that somebody sent, may take, in seconds.
    pub image_seconds: i64,
    /// Which machines begin with captured boots.
    pub captured_boots: CapturedBoots,
    /// MiB of translated code that an emulated machine keeps at most.
    pub translated_mb: u32,
    /// How VMs are reached.
    pub network: VmNetwork,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_s_word_says_which_machines_begin_with_captured_boots() {
        for (word, emulated, accelerated) in
            [(None, true, false), (Some(false), false, false), (Some(true), true, true)]
        {
            let boots = CapturedBoots::of(word);
            assert_eq!((boots.are_for(Accel::Tcg), boots.are_for(Accel::Kvm)), (emulated, accelerated), "{word:?}");
        }
    }
}
