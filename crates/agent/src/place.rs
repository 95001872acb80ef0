//! The place that the host gave the machine: requests about files and commands work there.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::accounts::Account;

/// Where users work, and as which account.
pub struct Place {
    /// The workspace: the handle beneath which paths are resolved.
    pub root: OwnedFd,
    /// The workspace's absolute path.
    pub workspace: PathBuf,
    /// Its owner.
    pub account: Account,
    /// The shell that runs `cmd`.
    pub shell: &'static str,
}
