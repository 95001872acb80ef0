//! Building templates.
//!
//! ```text
//!   Dockerfile ─ images ─► Provisioner::inspect ─ plan ─► steps ─┐
//!                                                             ▼
//!   layers, contexts (berth-oci) ── tar ──► BuildMachine: a machine with the disk that is built
//!                                            unpack · pack · run
//! ```
//!
//! [`Builder`] decides nothing about machines and disks: a [`Provisioner`] makes them, and a [`BuildMachine`] is one
//! disk that is being built, wherever it is. [`AgentMachine`] is one inside a machine, reached through its agent.
//! Nothing that is built is unpacked or executed on the host; it only passes streams along.
//!
//! Invariants: a stage has a machine of its own; a machine that is not needed any more is dropped at once, and dropping
//! it ends what runs in it; every step has a deadline, and so has the whole.

mod agent_machine;
mod build_machine;
mod builder;
mod context;
mod log;
mod step;
mod stream;

pub use agent_machine::AgentMachine;
pub use build_machine::{Beginning, BuildMachine, Lines, Opened, Provisioner, Tar, Unpack};
pub use builder::{Builder, Finished, Limits, within};
pub use context::open_context;
pub use log::{End, Log, Piece};

use berth_domain::sandbox::dockerfile::Mistakes;

use super::DISK_FULL;
use super::agent::AgentError;

/// Why nothing was built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The Dockerfile has mistakes.
    #[error("{0}")]
    Mistakes(#[from] Mistakes),
    /// A step failed, by its own doing.
    #[error("line {line}: {reason}")]
    Step {
        /// Where the step stands.
        line: usize,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// An image or a context cannot be used.
    #[error(transparent)]
    Image(#[from] berth_oci::Error),
    /// The machine that builds failed, or refused.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A machine or a disk could not be had.
    #[error("{0}")]
    Host(String),
    /// There is no room on the host.
    #[error("insufficient_capacity: {DISK_FULL}")]
    Full,
    /// It needs more machines at a time than there is memory for.
    #[error(
        "insufficient_capacity: the build needs {0} machines at a time, and the host has memory for {1}; use fewer stages, or \
         a smaller memory_mb"
    )]
    Machines(usize, usize),
    /// Its time was up.
    #[error("the build took longer than {0} seconds; do less in it, or begin with a template that has the rest")]
    TooLong(u64),
    /// It was called off.
    #[error("the build was called off")]
    Cancelled,
}

impl BuildError {
    /// Whether the same may succeed another time.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Agent(error) => !matches!(error, AgentError::Refused { .. }),
            Self::Image(error) => is_passing(error),
            Self::Host(_) => true,
            Self::Mistakes(_)
            | Self::Step { .. }
            | Self::Full
            | Self::Machines(..)
            | Self::TooLong(_)
            | Self::Cancelled => false,
        }
    }

    /// The error as one of a step, unless another try may help.
    fn at(self, line: usize) -> Self {
        match self {
            Self::Agent(AgentError::Refused { message, .. }) => Self::Step { line, reason: message },
            Self::Image(error) if !is_passing(&error) => Self::Step { line, reason: error.to_string() },
            other => other,
        }
    }
}

/// Does work that blocks beside the runtime.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BuildError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| BuildError::Host(error.to_string()))
}

fn is_passing(error: &berth_oci::Error) -> bool {
    matches!(error, berth_oci::Error::Unreachable(_) | berth_oci::Error::Io(_))
}

#[cfg(test)]
mod tests;
