//! Mounts that are sealed with all that is mounted below them: a host may have file systems of their own below `/usr`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::{Errno, Result};
use rustix::mount::{MountFlags, mount_remount};

/// Takes rights away from a mount and all below it.
pub(super) fn seal(at: &Path, flags: MountFlags) -> Result<()> {
    match kernel::set_all(at, flags) {
        // Linux before 5.12, or a filter of a container's that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => each(at, flags),
        outcome => outcome,
    }
}

fn each(at: &Path, flags: MountFlags) -> Result<()> {
    let known = fs::read("/proc/self/mountinfo").map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    for place in below(&known, at) {
        let before = statvfs(&place)?.f_flag;
        mount_remount(&place, MountFlags::BIND | flags | same(before), "")?;
    }
    Ok(())
}

/// The mounts at and below a path, of what the kernel says of mounts (`proc_pid_mountinfo(5)`).
fn below(known: &[u8], at: &Path) -> Vec<PathBuf> {
    let places = known.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let places = places.map(|field| PathBuf::from(OsString::from_vec(unescaped(field))));
    places.filter(|place| place.starts_with(at)).collect()
}

/// Blanks and the like are written as three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let digits = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.filter(|_| *first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { others.get(3..).unwrap_or_default() } else { others };
    }
    bytes
}

/// What a mount was before has to stay: another user's root may not take it away (mount_namespaces(7)).
fn same(before: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    pairs.into_iter().filter(|(had, _)| before.contains(*had)).fold(MountFlags::empty(), |all, (_, flag)| all | flag)
}

/// What the kernel offers for this (Linux, `include/uapi/linux/mount.h`); no library has it.
#[expect(unsafe_code, reason = "the call has no safe interface anywhere")]
mod kernel {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use rustix::io::{Errno, Result};
    use rustix::mount::MountFlags;

    /// `AT_RECURSIVE` (Linux, `include/uapi/linux/fcntl.h`).
    const RECURSIVE: libc::c_long = 0x8000;

    /// `struct mount_attr`. The bits of what is taken away are those of `mount(2)`.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        users: u64,
    }

    pub(super) fn set_all(at: &Path, flags: MountFlags) -> Result<()> {
        let path = CString::new(at.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let attributes = Attributes { set: u64::from(flags.bits()), clear: 0, propagation: 0, users: 0 };
        let here = libc::c_long::from(libc::AT_FDCWD);
        // SAFETY: the kernel reads a path and attributes, which live until the call returns.
        let outcome = unsafe {
            let size = size_of::<Attributes>();
            libc::syscall(libc::SYS_mount_setattr, here, path.as_ptr(), RECURSIVE, &raw const attributes, size)
        };
        if outcome == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_path_are_found_whatever_their_names_are() {
        let known = b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /data/own rw - tmpfs b rw\n\
            3 2 0:3 / /data/own/a\\040b\\134 rw - tmpfs c rw\n4 1 0:4 / /data/owner rw - tmpfs d rw\n\n";
        assert_eq!(below(known, Path::new("/data/own")), [Path::new("/data/own"), Path::new("/data/own/a b\\")]);
        assert_eq!(unescaped(b"\\9\\1"), b"\\9\\1");
    }
}
