//! What goes wrong, for whoever operates the host.

use std::io;

use berth_domain::ids::MachineId;

/// The outcome of what is done on the host.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What is wanted cannot be, whatever the host is.
    #[error("{0}")]
    Invalid(String),
    /// A machine is to have what another one has at this moment. It may be tried again.
    #[error("the machine {machine} is to have {thing}, which another machine has")]
    Taken {
        /// Which machine.
        machine: MachineId,
        /// What of it.
        thing: String,
    },
    /// The host lacks something; the message says what to type.
    #[error("{0}")]
    Missing(String),
    /// The kernel refused a change of a device or of an address. It may be tried again.
    #[error("{what}: {why}")]
    Device {
        /// What was to be done.
        what: String,
        /// What the kernel said.
        why: String,
    },
    /// The kernel refused rules; nothing of them holds.
    #[error("nft refused the rules of the bridge: {0}")]
    Rules(String),
    /// A file of the bridge's folder cannot be read or written.
    #[error("{what}: {source}")]
    File {
        /// Which file.
        what: String,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn device(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let what = what.into();
        move |error| Self::Device { what, why: error.to_string() }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::Device { what, why: error.to_string() }
    }

    pub(crate) fn file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::File { what, source }
    }
}
