//! The words of the VM service: statuses, ports, policies.

use serde::{Deserialize, Serialize};

use crate::words;

words! {
    /// Where a VM stands (specification, States and transitions).
    Status {
        /// Accepted, nothing done yet.
        Pending = "pending",
        /// Resources are reserved and disks are made.
        Provisioning = "provisioning",
        /// The machine is being started.
        Starting = "starting",
        /// The machine executes.
        Running = "running",
        /// The machine was asked to power off.
        Stopping = "stopping",
        /// Off; disks and address are kept.
        Stopped = "stopped",
        /// Its memory is being written to the disk.
        Suspending = "suspending",
        /// Off, with its memory on the disk: it goes on where it was.
        Suspended = "suspended",
        /// Powering off in order to start again.
        Restarting = "restarting",
        /// Being removed.
        Deleting = "deleting",
        /// Gone; seen only in events, audit and with `include_deleted`.
        Deleted = "deleted",
        /// Something went wrong; `message` says what.
        Failed = "failed",
    }
}

impl Status {
    /// Whether the status is on its way to another one and has a deadline.
    pub const fn is_transitional(self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Provisioning
                | Self::Starting
                | Self::Stopping
                | Self::Suspending
                | Self::Restarting
                | Self::Deleting
        )
    }
}

words! {
    /// What a row wants of the world.
    Want {
        /// A machine that executes.
        Run = "run",
        /// No machine, but everything kept.
        Stop = "stop",
        /// No machine, but everything kept, its memory too.
        Suspend = "suspend",
        /// Nothing left.
        Gone = "gone",
    }
}

words! {
    /// A layer-4 protocol.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    Protocol {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
    }
}

words! {
    /// What happens to a machine that died (extension).
    RestartPolicy {
        /// It becomes `failed`.
        Never = "never",
        /// It is started again when it crashed, not when the guest powered itself off.
        OnFailure = "on-failure",
        /// It is started again whenever nobody asked for a stop.
        Always = "always",
    }
}

words! {
    /// Whether the guest of a VM has the SSH keys that its owner wants there (extension).
    KeysState {
        /// It got them, when it booted or since.
        Applied = "applied",
        /// The worker is about to give them to its agent.
        Pending = "pending",
        /// It gets them when it boots next: it does not run, or has no agent that takes them.
        NextBoot = "next_boot",
    }
}

/// An inbound port on the public IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExposedPort {
    /// 1..=65535, never 22.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// Where SSH answers on a VM's address: the wanted port, or the next one that its owner does not expose. One TCP
/// port leads to one place, and the owner's choice comes first.
pub fn ssh_port(wanted: u16, exposed: &[ExposedPort]) -> u16 {
    let taken = |port: &u16| exposed.iter().any(|e| e.protocol == Protocol::Tcp && e.port == *port);
    let upwards = wanted..=u16::MAX;
    // Ten ports at most are exposed, so one is free within eleven; above 65535 the search goes on below.
    upwards.chain((1024..wanted).rev()).find(|port| !taken(port)).unwrap_or(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(numbers: &[u16], protocol: Protocol) -> Vec<ExposedPort> {
        numbers.iter().map(|&port| ExposedPort { port, protocol }).collect()
    }

    #[test]
    fn ssh_makes_room_for_what_is_exposed() {
        let tcp = |numbers| ssh_port(2222, &ports(numbers, Protocol::Tcp));
        assert_eq!(tcp(&[]), 2222);
        assert_eq!(tcp(&[2221, 2223]), 2222);
        assert_eq!(tcp(&[2222]), 2223);
        assert_eq!(tcp(&[2222, 2224, 2223]), 2225);
        assert_eq!(ssh_port(2222, &ports(&[2222], Protocol::Udp)), 2222);
        assert_eq!(ssh_port(u16::MAX, &ports(&[u16::MAX], Protocol::Tcp)), u16::MAX - 1);
    }
}
