//! `[machines]`: how the processes of machines are confined, VMs and sandboxes alike.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use berth_qemu::host::may_become;
use berth_qemu::machine::Jail;
use serde::Deserialize;

/// Users of sandboxes by their slots; as many follow for what is set aside.
const SANDBOX_USERS: u32 = 1 << 20;
/// Users of VMs by their addresses, which are those of 127.64.0.0/10.
const VM_USERS: u32 = 1 << 22;
/// The first address of a VM.
const FIRST_ADDRESS: u32 = 0x7f40_0000;
/// All users of machines.
const USERS: u32 = 2 * SANDBOX_USERS + VM_USERS;
/// Below these, users are people's and the distribution's, and those that it hands to containers.
const LEAST_USER: u32 = 1 << 20;

/// What the operator demands of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Demand {
    /// Machines are confined by what the host has.
    Available,
    /// Machines do not run where something is missing.
    Required,
}

/// How machines' processes are confined.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machines {
    /// What the host must have.
    pub confinement: Demand,
    /// The first user of the host that machines run as, where the service is root; some six million follow.
    pub first_user: u32,
}

impl Default for Machines {
    fn default() -> Self {
        Self { confinement: Demand::Available, first_user: 0x7000_0000 }
    }
}

impl Machines {
    pub(super) fn check(self) -> Result<()> {
        let most = u32::MAX - USERS;
        ensure!(
            (LEAST_USER..=most).contains(&self.first_user),
            "machines.first_user must be from {LEAST_USER} to {most}"
        );
        Ok(())
    }

    /// The jail of a sandbox's machine: a user of its own by its slot, or by a number beyond the slots.
    pub(crate) fn of_sandbox(self, slot: i64) -> Jail {
        self.jail(u32::try_from(slot.rem_euclid(2 * i64::from(SANDBOX_USERS))).unwrap_or(0))
    }

    /// The jail of a VM: a user of its own by its address, which no other VM of the host has.
    pub(crate) fn of_vm(self, address: Ipv4Addr) -> Jail {
        self.jail(2 * SANDBOX_USERS + address.to_bits().wrapping_sub(FIRST_ADDRESS) % VM_USERS)
    }

    fn jail(self, offset: u32) -> Jail {
        let user = self.first_user + offset;
        Jail { user: may_become(user).then_some(user), required: self.confinement == Demand::Required }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_two_machines() {
        let machines = Machines::default();
        let user = |jail: Jail| jail.user.unwrap_or(0);
        let users = [
            user(machines.of_sandbox(0)),
            user(machines.of_sandbox(i64::from(2 * SANDBOX_USERS) - 1)),
            user(machines.of_vm(Ipv4Addr::new(127, 64, 0, 0))),
            user(machines.of_vm(Ipv4Addr::new(127, 127, 255, 255))),
        ];
        if rustix::process::geteuid().is_root() {
            assert_eq!(users, [0x7000_0000, 0x701f_ffff, 0x7020_0000, 0x705f_ffff]);
        } else {
            assert_eq!(users, [0; 4], "only root may choose");
        }
    }
}
