//! The place that the host gave the machine: what requests about files and commands work on.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::accounts::Account;

/// Where and as whom users work.
pub struct Place {
    /// The workspace, a handle that paths are resolved beneath.
    pub root: OwnedFd,
    /// The workspace's absolute path.
    pub workspace: PathBuf,
    /// Whose it is.
    pub account: Account,
    /// What runs `cmd`.
    pub shell: &'static str,
}
