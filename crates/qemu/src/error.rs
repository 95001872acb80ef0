//! What can go wrong with a machine, told so that a person knows what to do.

use std::io;
use std::path::Path;

/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program of the host is missing.
    #[error("{tool} is missing on the host; install it with: apt install {package}")]
    Missing {
        /// The program.
        tool: String,
        /// The package that has it.
        package: &'static str,
    },
    /// The disk of the host is full.
    #[error("the host's disk is full")]
    NoSpace,
    /// A disk or an image cannot be read as what it should be.
    #[error("a disk or image is damaged: {0}")]
    Damaged(String),
    /// The host has not enough memory.
    #[error("the host has not enough memory for the machine")]
    NoMemory,
    /// The host cannot confine machines as its operator requires.
    #[error("this host cannot confine machines as required: {0}")]
    Unconfined(String),
    /// A saved memory is none of the machine that is to go on with it.
    #[error("its memory cannot be loaded: {0}")]
    Unloadable(String),
    /// Something did not answer in time.
    #[error("{0} did not answer in time")]
    Timeout(&'static str),
    /// A store of disks refused.
    #[error("the disk store refused: {0}")]
    Store(String),
    /// A store of disks has no room.
    #[error("the disk store is full: {0}")]
    StoreFull(String),
    /// QEMU refused.
    #[error("QEMU refused: {0}")]
    Qemu(String),
    /// A guest's agent refused, or said what no agent says.
    #[error("the guest's agent says: {0}")]
    Refused(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// How it failed.
        source: io::Error,
    },
}

impl Error {
    /// A failed system call, with what was being done.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Io { what: what.into(), source },
        }
    }
}

/// Turns a failed system call on a path into an [`Error`].
pub(crate) fn at<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::io(format!("{what} {}", path.display()), source)
}
