//! Facts about this host.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio::process::Command;
use tokio::sync::Mutex;

use crate::error::at;
use crate::{Error, Result};

/// The package that has QEMU.
pub const QEMU_PACKAGE: &str = "qemu-system-x86";
const QEMU: &str = "qemu-system-x86_64";

/// A program that machines need.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// The package that has it.
    pub package: &'static str,
    /// What it is needed for.
    pub purpose: &'static str,
    /// Where it is, if it is there.
    pub path: Option<PathBuf>,
}

/// Finds a program on `PATH`, and where administrators' programs are for users without them on it.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(extra).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// QEMU's binary: the one named, or the one on `PATH`.
pub fn qemu(named: Option<&Path>) -> Result<PathBuf> {
    let missing = || Error::Missing { tool: QEMU.into(), package: QEMU_PACKAGE };
    match named {
        Some(path) if path.is_file() => Ok(path.to_path_buf()),
        Some(_) => Err(missing()),
        None => find(QEMU).ok_or_else(missing),
    }
}

/// Every program that machines need.
pub fn tools() -> Vec<Tool> {
    [
        (QEMU, QEMU_PACKAGE, "runs machines"),
        ("qemu-img", "qemu-utils", "clones disks"),
        ("mkfs.ext4", "e2fsprogs", "formats data disks"),
    ]
    .map(|(name, package, purpose)| Tool { name, package, purpose, path: find(name) })
    .into()
}

/// Every program that disks of a store need beside those.
pub fn store_tools() -> Vec<Tool> {
    [
        ("rbd", "ceph-common", "makes and removes disks of a store"),
        ("ceph", "ceph-common", "shuts lost hosts out of a store"),
        ("qemu-nbd", "qemu-utils", "serves disks of a store to machines"),
    ]
    .map(|(name, package, purpose)| Tool { name, package, purpose, path: find(name) })
    .into()
}

/// A program that must be there.
pub(crate) fn tool(name: &'static str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        let package = tools().into_iter().chain(store_tools()).find(|t| t.name == name).map_or(name, |t| t.package);
        Error::Missing { tool: name.into(), package }
    })
}

/// The first line of `qemu --version`, without copyright.
pub async fn qemu_version(qemu: &Path) -> Result<String> {
    let out = Command::new(qemu).arg("--version").output().await.map_err(at("cannot run", qemu))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().next().map(str::to_owned).ok_or_else(|| Error::Qemu("it did not tell its version".into()))
}

/// A release of QEMU: its first two numbers.
pub type Release = (u32, u32);

/// The release of a QEMU, asked once for each file.
pub async fn release_of(qemu: &Path) -> Result<Release> {
    static KNOWN: Mutex<Option<(PathBuf, SystemTime, Release)>> = Mutex::const_new(None);
    let changed = std::fs::metadata(qemu).and_then(|file| file.modified()).map_err(at("cannot start", qemu))?;
    let mut known = KNOWN.lock().await;
    if let Some((path, at, release)) = known.as_ref()
        && path == qemu
        && *at == changed
    {
        return Ok(*release);
    }
    let release = release(&qemu_version(qemu).await?);
    *known = Some((qemu.to_path_buf(), changed, release));
    Ok(release)
}

/// The release that a version tells, as `QEMU emulator version 7.2.22 (Debian …)` tells 7 and 2; 0 and 0 where it tells none.
pub fn release(version: &str) -> Release {
    let number = version.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let mut parts = number.unwrap_or_default().split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Whether QEMU can hand a machine's network card to another program (7.2 and later).
pub async fn has_stream_network(qemu: &Path) -> bool {
    let out = Command::new(qemu).args(["-M", "none", "-netdev", "help"]).output().await;
    out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line.trim() == "stream"))
}

/// Processors.
pub fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// Memory, in MiB.
pub fn memory_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or_default() / 1024
}

/// Size and free space of a file system, in bytes.
pub fn disk(path: &Path) -> Result<(u64, u64)> {
    let stat = rustix::fs::statvfs(path).map_err(|e| Error::io("cannot look at the disk", e.into()))?;
    Ok((stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize))
}

/// Whether this process may listen on ports below 1024: found out by trying.
pub fn can_bind_low_ports() -> bool {
    TcpListener::bind((Ipv4Addr::new(127, 127, 255, 254), 22)).is_ok()
}

/// Whether this process may become a user and group of the host: root may, but for one of a user namespace (as of a
/// container) that has no such numbers.
pub fn may_become(user: u32) -> bool {
    let maps = ["/proc/self/uid_map", "/proc/self/gid_map"].map(std::fs::read_to_string);
    rustix::process::geteuid().is_root() && maps.iter().all(|map| map.as_ref().is_ok_and(|map| is_mapped(map, user)))
}

/// Whether a map of numbers (user_namespaces(7)) has one: a line for each stretch, its first number within, without, and
/// its length.
fn is_mapped(map: &str, number: u32) -> bool {
    map.lines().any(|line| {
        let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(0));
        let (first, _, length): (u64, _, u64) = (words.next().unwrap_or(0), words.next(), words.next().unwrap_or(0));
        (first..first.saturating_add(length)).contains(&u64::from(number))
    })
}

/// Identifies the present boot of the host.
pub fn boot_id() -> String {
    berth_process::boot_id().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_namespace_has_the_users_that_it_maps() {
        let all = "         0          0 4294967295\n";
        assert!(super::is_mapped(all, 0) && super::is_mapped(all, u32::MAX - 1));
        let few = "         0       1000          1\n      1000     100000      65536\n";
        assert_eq!(
            [0, 1, 999, 1000, 66_535, 66_536].map(|number| super::is_mapped(few, number)),
            [true, false, false, true, true, false]
        );
        assert!(!super::is_mapped("", 0));
    }

    #[test]
    fn a_version_tells_its_release() {
        for (version, release) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", (7, 2)),
            ("QEMU emulator version 8.2.2", (8, 2)),
            ("QEMU emulator version 10.0", (10, 0)),
            ("no version", (0, 0)),
            ("", (0, 0)),
        ] {
            assert_eq!(super::release(version), release, "{version}");
        }
    }
}
