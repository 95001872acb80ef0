//! What a process has to itself.

use std::fs;
use std::io;

use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use super::order::Part;

/// The host name of every machine's process.
const NAME: &[u8] = b"machine";

/// Leaves the namespaces of the service for new ones. That of processes is for those that are started from here on.
pub(super) fn enter(parts: &[Part]) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    let flags = parts.iter().map(|part| flags(*part)).fold(UnshareFlags::empty(), UnshareFlags::union);
    #[expect(deprecated, reason = "its successor is unsafe for the sake of descriptors, which are not unshared here")]
    rustix::thread::unshare(flags)?;
    if parts.contains(&Part::Users) {
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{0} {0} 1", user.as_raw()))?;
        fs::write("/proc/self/gid_map", format!("{0} {0} 1", group.as_raw()))?;
    }
    if parts.contains(&Part::Names) {
        rustix::system::sethostname(NAME)?;
    }
    Ok(())
}

fn flags(part: Part) -> UnshareFlags {
    match part {
        Part::Users => UnshareFlags::NEWUSER,
        Part::Network => UnshareFlags::NEWNET,
        Part::Processes => UnshareFlags::NEWPID,
        Part::Files => UnshareFlags::NEWNS,
        Part::Names => UnshareFlags::NEWUTS | UnshareFlags::NEWIPC,
    }
}
