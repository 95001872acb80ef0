//! What a machine's process is confined to, as an order to its launcher.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::spec::Jail;
use crate::groups::Limits;
use crate::launch::Order;
use crate::{Error, Result, confinement, groups};

/// How much larger than its disk a file of a machine may become: what QEMU notes about it, and what an unclean end
/// leaves unused.
const LARGER: u64 = 2;
/// What every machine's file may have, in bytes.
const LEAST: u64 = 1 << 30;

/// What a machine's process needs of its host.
pub(crate) struct Needs<'a> {
    /// QEMU.
    pub(crate) program: &'a Path,
    /// Its command line.
    pub(crate) arguments: Vec<OsString>,
    /// The machine's folder.
    pub(crate) dir: &'a Path,
    /// Files that it reads.
    pub(crate) read: Vec<PathBuf>,
    /// Disks that it writes to.
    pub(crate) write: Vec<PathBuf>,
    /// A file of its folder that it opens to write to, and is to have for reading alone.
    pub(crate) lend: Option<PathBuf>,
    /// How many descriptors it is given.
    pub(crate) given: usize,
    /// Files of devices that it has for itself.
    pub(crate) devices: Vec<PathBuf>,
    /// How many bytes of its memory it locks for those.
    pub(crate) locked_bytes: Option<u64>,
    /// What it may use.
    pub(crate) limits: Limits,
    /// The size that its largest disk has or may be given while it runs, in bytes.
    pub(crate) disk_bytes: u64,
}

/// How large a file of a machine may become whose largest disk has so many bytes.
pub(super) const fn file_bytes(disk_bytes: u64) -> u64 {
    disk_bytes.saturating_mul(LARGER).saturating_add(LEAST)
}

/// What its launcher is told. Nothing of an earlier machine is left in its groups afterwards.
pub(crate) async fn order(id: Uuid, jail: Jail, needs: Needs<'_>) -> Result<Order> {
    let found = confinement::of_host(needs.dir.parent().unwrap_or(needs.dir)).await?;
    if jail.required {
        found.require()?;
        if jail.user.is_none() && rustix::process::geteuid().is_root() {
            return Err(Error::Unconfined("a user of its own: this root may become no other user".into()));
        }
    }
    let name = groups::name(needs.dir, id);
    groups::end(&name).await?;
    let joined = groups::make(&name, needs.limits);
    if jail.required && joined.is_empty() {
        return Err(Error::Unconfined("its control groups could not be made".into()));
    }
    if jail.required && needs.lend.is_some() && !found.lends() {
        let text = "a memory that it cannot write to: that takes QEMU 8.2, or Linux 5.14 and its seccomp";
        return Err(Error::Unconfined(text.into()));
    }
    let lend = needs.lend.filter(|_| found.lends());
    let mut read = needs.read;
    read.extend(lend.as_ref().map(|name| needs.dir.join(name)));
    Ok(Order {
        program: needs.program.to_path_buf(),
        arguments: needs.arguments,
        dir: needs.dir.to_path_buf(),
        groups: joined,
        parts: found.parts().to_vec(),
        read,
        write: needs.write,
        lend,
        given: needs.given,
        devices: needs.devices,
        locked_bytes: needs.locked_bytes,
        user: None,
        file_bytes: Some(file_bytes(needs.disk_bytes)),
    })
}
