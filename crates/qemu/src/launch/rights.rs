//! What a process may do on the host, taken away.

use std::io;

use berth_process::filter;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid, geteuid, setrlimit};
use rustix::thread::{
    CapabilitySet, clear_ambient_capability_set, remove_capability_from_bounding_set, set_no_new_privs, set_thread_gid,
    set_thread_groups, set_thread_uid,
};

use super::calls::{CALLS, OLDER};
use super::order::Order;

/// Descriptors of a machine: one for each layer of its disk, and some.
const FILES: u64 = 4096;
/// Rights that QEMU started by root has until it becomes another user: to do that, to leave its root folder, and to open
/// disks that are another user's.
const STARTING: [CapabilitySet; 4] =
    [CapabilitySet::SETUID, CapabilitySet::SETGID, CapabilitySet::SYS_CHROOT, CapabilitySet::DAC_OVERRIDE];

/// Has the program be able to lock so much of its memory, whatever it could before.
pub(super) fn let_lock(bytes: u64) -> io::Result<()> {
    let before = rustix::process::getrlimit(Resource::Memlock);
    let raised = |had: Option<u64>| had.map(|had| had.max(bytes));
    Ok(setrlimit(Resource::Memlock, Rlimit { current: raised(before.maximum), maximum: raised(before.maximum) })?)
}

/// Takes away what the program does not need; nothing that it executes gets any of it back.
pub(super) fn reduce(order: &Order) -> io::Result<()> {
    set_no_new_privs(true)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, FILES)?;
    if let Some(bytes) = order.file_bytes {
        limit(Resource::Fsize, bytes)?;
    }
    clear_ambient_capability_set()?;
    if geteuid().is_root() {
        for number in 0..u64::BITS {
            let right = CapabilitySet::from_bits_retain(1 << number);
            if STARTING.contains(&right) {
                continue;
            }
            match remove_capability_from_bounding_set(right) {
                // The kernel knows no more of them; a root without this right has none to lose.
                Err(Errno::INVAL | Errno::PERM) => break,
                outcome => outcome?,
            }
        }
    }
    if let Some(user) = order.user {
        become_user(user)?;
    }
    filter::refuse_ways_around()?;
    filter::allow_only(&[CALLS, OLDER].concat())
}

/// Becomes another user, who has none of root's rights, and of whom nothing leads back.
fn become_user(user: u32) -> io::Result<()> {
    set_thread_groups(&[])?;
    set_thread_gid(Gid::from_raw(user))?;
    Ok(set_thread_uid(Uid::from_raw(user))?)
}

/// Bounds what a process may take; never above what it had.
fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let before = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(before));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_locked_only_grows() {
        let now = || rustix::process::getrlimit(Resource::Memlock);
        let most = now().maximum;
        let_lock(0).unwrap();
        assert_eq!((now().maximum, now().current), (most, most), "it may lock all that it could be let");
        // Whoever may not have more is refused, and keeps what it had.
        if let Some(most) = most {
            let raised = if let_lock(most + 4096).is_ok() { most + 4096 } else { most };
            assert_eq!(now().current, Some(raised));
        }
    }
}
