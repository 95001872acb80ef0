//! Which host a machine is put onto, and why.
//!
//! [`place`] reads a wish and the hosts as they stand, and does nothing. A host is refused by the first filter that it does
//! not pass ([`Why`]), so that an operator reads of each what would have to change. Among those that pass, one where
//! more of what the machine begins with is at hand wins, then one where no warm machine has to give way, then one with
//! room for more of what is wished, then what the policy says, then the smaller id: the same fleet has the same answer,
//! whatever the order of its hosts.
//!
//! A machine that is somewhere already stays there, since its disk is there: a host that takes no new machines
//! starts it again.

mod choice;
mod why;
mod wish;

pub use choice::{MOST_TOLD, Placed, Refused, place};
pub use why::Why;
pub use wish::{AtHand, Disk, Host, Kind, Overcommit, Policy, Promised, Room, Stores, Sum, Wish, WishedGpus};

#[cfg(test)]
mod properties_tests;
#[cfg(test)]
mod tests;
