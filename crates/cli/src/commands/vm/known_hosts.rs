//! The host keys by which ssh knows VMs again, each under its VM's id, because addresses are reused.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use berth_client::Vm;

use crate::credentials;

/// The file for a VM's host key. A rescue system has another one each time, so that none is kept.
pub fn file(vm: &Vm) -> Result<PathBuf> {
    if vm.rescue { Ok("/dev/null".into()) } else { kept() }
}

/// Forgets the host key of a VM, whose next system has another one.
pub fn forget(vm: &Vm) -> Result<()> {
    let file = kept()?;
    if !file.exists() {
        return Ok(());
    }
    let mut command = Command::new("ssh-keygen");
    command.args(["-R", &vm.id, "-f"]).arg(&file).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("ssh-keygen cannot be started; install openssh-client")?;
    if !status.success() {
        bail!("{} could not be changed; type: ssh-keygen -R {} -f {}", file.display(), vm.id, file.display());
    }
    Ok(())
}

fn kept() -> Result<PathBuf> {
    Ok(credentials::folder()?.join("known_hosts"))
}
