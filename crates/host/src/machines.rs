//! `[machines]`: how the processes of machines are confined, VMs and sandboxes alike.

use std::net::Ipv4Addr;

use berth_domain::ids::DiskId;
use berth_qemu::host::may_become;
use berth_qemu::machine::Jail;
use serde::Deserialize;

/// Users of sandboxes' machines, and of those that work for templates, by their slots.
const SANDBOX_USERS: u32 = 1 << 21;
/// Users of VMs' machines by their addresses, which are those of 127.64.0.0/10.
const VM_USERS: u32 = 1 << 22;
/// How far the user of the program that carries a machine's network lies above the machine's own.
const NETWORK: u32 = SANDBOX_USERS + VM_USERS;
/// The first address of a VM.
const FIRST_ADDRESS: u32 = 0x7f40_0000;
/// Users of the switches of projects' networks, which lie above those.
const SWITCH_USERS: u32 = 1 << 20;
/// How far the user of the program that answers guests of the bridge lies above, which is the last of them.
const BRIDGE: u32 = 2 * NETWORK + SWITCH_USERS;
/// Users of what serves disks of a store, by the disks' ids, which lie above all those: two disks may have one.
const SERVED: u32 = BRIDGE + 1;
const SERVED_USERS: u32 = 1 << 20;
/// All users of machines, of their networks, of switches, of the bridge and of disks that are served.
const USERS: u32 = SERVED + SERVED_USERS;
/// Users of conversions, far more than there are at a time.
const CONVERSIONS: u32 = 64;
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
    /// The first user of the host that machines and their networks run as, where the service is root;
    /// 14,680,064 follow.
    pub first_user: u32,
}

impl Default for Machines {
    fn default() -> Self {
        Self { confinement: Demand::Available, first_user: 0x7000_0000 }
    }
}

impl Machines {
    /// Whether it can be so; else the sentence for the operator.
    pub fn check(self) -> Result<(), String> {
        let most = u32::MAX - USERS;
        if (LEAST_USER..=most).contains(&self.first_user) {
            Ok(())
        } else {
            Err(format!("machines.first_user must be from {LEAST_USER} to {most}"))
        }
    }

    /// The jail of a sandbox's machine, or of one that works for a template: a user of its own by its slot.
    pub fn of_sandbox(self, slot: i64) -> Jail {
        self.jail(by_slot(slot))
    }

    /// The jail of a VM: a user of its own by its address, which no other VM of the host has.
    pub(crate) fn of_vm(self, address: Ipv4Addr) -> Jail {
        self.jail(by_address(address))
    }

    /// The jail of a machine whose boot is captured: there is one at a time, by the last of the addresses, which is a
    /// broadcast's.
    pub(crate) fn of_boots(self) -> Jail {
        self.of_vm(Ipv4Addr::new(127, 127, 255, 255))
    }

    /// The user of a program that reads what somebody sent, where the service may choose: one for each slot, by the last
    /// addresses but one that are broadcasts', which no VM has.
    pub(crate) fn of_conversion(self, slot: u32) -> Option<u32> {
        self.user(by_conversion(slot))
    }

    /// The user of the program that carries the network of such a sandbox, where the service may choose.
    pub(crate) fn network_of_sandbox(self, slot: i64) -> Option<u32> {
        self.user(NETWORK + by_slot(slot))
    }

    /// The user of the program that carries the network of such a VM, where the service may choose.
    pub(crate) fn network_of_vm(self, address: Ipv4Addr) -> Option<u32> {
        self.user(NETWORK + by_address(address))
    }

    /// The user of the switch of a network, where the service may choose.
    pub(crate) fn of_switch(self, slot: u32) -> Option<u32> {
        self.user(2 * NETWORK + slot % SWITCH_USERS)
    }

    /// The user of the program that answers guests of the bridge, where the service may choose.
    pub(crate) fn of_bridge(self) -> Option<u32> {
        self.user(BRIDGE)
    }

    /// The jail of what serves a disk of a store: it has the store's key, and is no machine's.
    pub(crate) fn of_served(self, disk: DiskId) -> Jail {
        self.jail(by_disk(disk))
    }

    fn jail(self, number: u32) -> Jail {
        Jail { user: self.user(number), required: self.confinement == Demand::Required }
    }

    fn user(self, number: u32) -> Option<u32> {
        Some(self.first_user + number).filter(|user| may_become(*user))
    }
}

/// Which of the users a slot has.
fn by_slot(slot: i64) -> u32 {
    u32::try_from(slot.rem_euclid(i64::from(SANDBOX_USERS))).unwrap_or(0)
}

/// Which of the users an address has.
fn by_address(address: Ipv4Addr) -> u32 {
    SANDBOX_USERS + address.to_bits().wrapping_sub(FIRST_ADDRESS) % VM_USERS
}

/// Which of the users a disk has that is served. What ends an id was drawn by chance.
fn by_disk(id: DiskId) -> u32 {
    let [.., a, b, c, d] = *id.0.as_bytes();
    SERVED + u32::from_be_bytes([a, b, c, d]) % SERVED_USERS
}

/// Which of the users a slot of a conversion has.
fn by_conversion(slot: u32) -> u32 {
    let last = Ipv4Addr::new(127, 127, 254, 255).to_bits();
    by_address(Ipv4Addr::from_bits(last - (slot % CONVERSIONS) * 256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_two_machines_or_networks() {
        let (first, last) = (Ipv4Addr::new(127, 64, 0, 0), Ipv4Addr::new(127, 127, 255, 255));
        let ends = [by_slot(0), by_slot(i64::from(SANDBOX_USERS) - 1), by_address(first), by_address(last)];
        assert_eq!(ends, [0, 0x1f_ffff, 0x20_0000, 0x5f_ffff]);
        assert_eq!(
            (NETWORK, SERVED, USERS),
            (0x60_0000, 0xd0_0001, 0xe0_0001),
            "networks begin where machines end, switches where those do, then there is the bridge, and disks that are served"
        );
    }

    #[test]
    fn what_serves_a_disk_is_nobody_else() {
        let of = |number: u128| by_disk(DiskId(uuid::Uuid::from_u128(number)));
        assert_eq!([of(0), of(0xf_ffff), of(0x10_0000)], [SERVED, USERS - 1, SERVED]);
    }

    #[test]
    fn each_conversion_is_somebody_whom_no_machine_is() {
        let mut users: Vec<_> = (0..CONVERSIONS).map(by_conversion).collect();
        assert_eq!((users[0], users[1], users[63]), (0x5f_feff, 0x5f_fdff, 0x5f_bfff));
        assert_eq!((users.len(), by_conversion(CONVERSIONS)), (64, users[0]), "further slots begin anew");
        // The last broadcast's address is that of the machine whose boot is captured.
        users.push(by_address(Ipv4Addr::new(127, 127, 255, 255)));
        assert!(users.iter().all(|user| user % 256 == 255), "no VM has a broadcast's address");
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len(), 65);
    }

    #[test]
    fn a_user_is_chosen_only_where_the_service_may_become_it() {
        let machines = Machines::default();
        let user = may_become(0x7000_0007).then_some(0x7000_0007);
        assert_eq!((machines.of_sandbox(7).user, machines.of_sandbox(7).required), (user, false));
        assert_eq!(machines.network_of_sandbox(7), user.map(|user| user + NETWORK));
        assert_eq!(machines.of_conversion(0), user.map(|_| 0x705f_feff));
        let beyond = Machines { first_user: u32::MAX - USERS, confinement: Demand::Required };
        assert!(beyond.check().is_ok() && beyond.of_vm(Ipv4Addr::new(127, 127, 255, 255)).required);
        assert!(Machines { first_user: u32::MAX - USERS + 1, ..beyond }.check().is_err());
        // So that none is the number that means nobody (setuid(2)), 4,294,967,295.
        let check = |first_user| Machines { first_user, ..beyond }.check();
        assert!(check(4_280_287_230).is_ok() && 4_280_287_230 + (USERS - 1) == u32::MAX - 1);
        assert_eq!(check(4_280_287_231), Err("machines.first_user must be from 1048576 to 4280287230".into()));
        assert!(Machines { first_user: LEAST_USER - 1, ..beyond }.check().is_err());
        assert!(Machines { first_user: LEAST_USER, ..beyond }.check().is_ok());
    }
}
