//! Facts about this host.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use tokio::process::Command;

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

/// A program that must be there.
pub(crate) fn tool(name: &'static str) -> Result<PathBuf> {
    find(name).ok_or_else(|| {
        let package = tools().into_iter().find(|t| t.name == name).map_or(name, |t| t.package);
        Error::Missing { tool: name.into(), package }
    })
}

/// The first line of `qemu --version`, without copyright.
pub async fn qemu_version(qemu: &Path) -> Result<String> {
    let out = Command::new(qemu).arg("--version").output().await.map_err(at("cannot run", qemu))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines().next().map(str::to_owned).ok_or_else(|| Error::Qemu("it did not tell its version".into()))
}

/// Whether QEMU was built with the network `user`.
pub async fn has_user_network(qemu: &Path) -> bool {
    let out = Command::new(qemu).args(["-M", "none", "-netdev", "help"]).output().await;
    out.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line.trim() == "user"))
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

/// Identifies the present boot of the host.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
