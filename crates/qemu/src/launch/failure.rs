//! Why a launcher could not do as ordered, and whether its host can at all.

use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

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
/// configuration or a security module forbids it (`EACCES` of AppArmor, as where Ubuntu restricts namespaces of users), it
/// allows no namespace of a kind at all (`ENOSPC`, namespaces(7); where it allows some, others have them for now), or a
/// filter above this service listens already (`EBUSY`).
fn is_lack(error: &io::Error) -> bool {
    if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) {
        return may_have_none(Path::new("/proc/sys/user"));
    }
    let lacks = [Errno::PERM, Errno::ACCESS, Errno::NOSYS, Errno::INVAL, Errno::USERS, Errno::NODEV, Errno::BUSY];
    error.raw_os_error().is_some_and(|number| lacks.iter().any(|lack| lack.raw_os_error() == number))
}

/// Whether of a kind of namespace the host allows none: the bounds are files of a folder.
fn may_have_none(bounds: &Path) -> bool {
    let bounds = fs::read_dir(bounds).into_iter().flatten().flatten();
    let of_namespaces = bounds.filter(|bound| bound.file_name().to_string_lossy().ends_with("_namespaces"));
    of_namespaces.into_iter().any(|bound| fs::read_to_string(bound.path()).is_ok_and(|most| most.trim() == "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_namespaces_that_is_reached_is_of_the_moment() {
        let bounds = tempfile::tempdir().unwrap();
        for (most, none) in [("15000", false), ("0", true)] {
            fs::write(bounds.path().join("max_user_namespaces"), format!("{most}\n")).unwrap();
            fs::write(bounds.path().join("max_inotify_watches"), "0\n").unwrap();
            assert_eq!(may_have_none(bounds.path()), none, "{most}");
        }
        assert!(!may_have_none(&bounds.path().join("none")));
    }

    #[test]
    fn a_lack_of_the_host_is_no_lack_of_the_moment() {
        for (error, host_lacks) in [
            (Errno::PERM, true),
            (Errno::NOSYS, true),
            (Errno::ACCESS, true),
            (Errno::INVAL, true),
            (Errno::USERS, true),
            (Errno::NODEV, true),
            (Errno::BUSY, true),
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
