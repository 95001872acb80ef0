//! Why a launcher could not do as ordered, and whether its host can at all.

use std::fmt::Display;
use std::io;

use rustix::io::Errno;

/// The exit code of a launcher whose host does not have a part that was ordered.
pub(super) const HOST_LACKS: u8 = 2;

/// What a step came to.
pub(super) type Step<T = ()> = Result<T, Failure>;

/// A step that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    /// Why, for the log; empty where that was said already.
    pub(super) line: String,
    /// Whether the host does not have it. Else it may have been a moment's, as a lack of memory or descriptors is.
    pub(super) host_lacks: bool,
}

impl Failure {
    /// One that says nothing of the host.
    pub(super) fn of(what: &str, error: impl Display) -> Self {
        Self { line: format!("{what}: {error}"), host_lacks: false }
    }

    /// One of a call that gives a process something of its own: a namespace, a mount, a filter.
    pub(super) fn of_part(what: &str, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        Self { host_lacks: is_lack(&error), ..Self::of(what, error) }
    }
}

/// Whether the kernel says that it does not do this at all, or not for this service: it does not know it, its
/// configuration or a security module forbids it (`EACCES` of AppArmor, as where Ubuntu restricts namespaces of users), no
/// more of these namespaces may be (`ENOSPC`, user_namespaces(7)), or one who is above this service listens already.
fn is_lack(error: &io::Error) -> bool {
    let lacks =
        [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::INVAL, Errno::USERS, Errno::NOSPC, Errno::NODEV, Errno::BUSY];
    error.raw_os_error().is_some_and(|number| lacks.iter().any(|lack| lack.raw_os_error() == number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_the_host_is_no_lack_of_the_moment() {
        for (error, host_lacks) in [
            (Errno::PERM, true),
            (Errno::NOSYS, true),
            (Errno::NOSPC, true),
            (Errno::NOMEM, false),
            (Errno::NFILE, false),
            (Errno::MFILE, false),
            (Errno::AGAIN, false),
            (Errno::INTR, false),
            (Errno::IO, false),
            (Errno::NOENT, false),
        ] {
            assert_eq!(Failure::of_part("cannot", error).host_lacks, host_lacks, "{error}");
            assert!(!Failure::of("cannot", io::Error::from(error)).host_lacks);
        }
    }
}
