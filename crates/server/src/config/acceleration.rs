//! `accel`: how machines are accelerated.

use berth_qemu::accel::Request;
use serde::Deserialize;

/// How machines are accelerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acceleration {
    /// KVM where a boot under it works, else TCG.
    #[default]
    Auto,
    /// KVM; starting a machine fails where it does not work.
    Kvm,
    /// Software emulation.
    Tcg,
}

impl Acceleration {
    /// The same as the engine asks for it.
    pub(crate) const fn request(self) -> Request {
        match self {
            Self::Auto => Request::Auto,
            Self::Kvm => Request::Kvm,
            Self::Tcg => Request::Tcg,
        }
    }
}
