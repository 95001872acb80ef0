//! What could not be done, as whoever asked is told.

use berth_domain::host::EngineError;
use berth_qemu::Error;

/// Tells an error after which another try may work.
pub fn transient(error: impl std::fmt::Display) -> EngineError {
    EngineError::Transient(error.to_string())
}

/// Tells an error of QEMU's. What only the operator may know stands in the log.
pub fn qemu_failed(error: Error) -> EngineError {
    use EngineError::{NoCapacity, Permanent, Transient};
    match error {
        Error::NoMemory => NoCapacity("the host has not enough memory".into()),
        Error::NoSpace => NoCapacity("the host's disk is full".into()),
        // A path of the host is nothing for the owner of a machine; the log has it.
        Error::Damaged(reason) => {
            tracing::error!(reason, "a disk or image is damaged");
            Permanent("a disk or image is damaged; ask the operator".into())
        }
        // Where a store is, and what it says, is the operator's to know.
        Error::Store(reason) => {
            tracing::error!(reason, "a store of disks refused something");
            Transient("the disk store does not give or take a disk now; ask the operator".into())
        }
        Error::StoreFull(reason) => {
            tracing::error!(reason, "a store of disks is full");
            NoCapacity("the disk store is full; ask the operator".into())
        }
        // What exactly is missing on the host is the operator's to know.
        Error::Unconfined(missing) => {
            tracing::error!(missing, "a machine was not started, since this host cannot confine what belongs to it");
            let reason =
                "the host cannot confine machines as its operator requires; ask the operator to type: berth doctor";
            Permanent(reason.into())
        }
        Error::Missing { .. } | Error::Invalid(_) | Error::Unloadable(_) => Permanent(error.to_string()),
        Error::Timeout(_) | Error::Qemu(_) | Error::Refused(_) | Error::Io { .. } => Transient(error.to_string()),
    }
}
