//! Questions about networks of projects.

use super::question::questions;
use crate::host::network::NetworkSpec;
use crate::ids::NetworkId;

questions! {
    /// What may be asked about networks.
    "network" {
        /// Tells all of a network. Those of its members that run here reach each other from then on, and who is no
        /// member any more reaches nobody.
        Set "set" {
            /// The network.
            network: NetworkSpec,
        } -> (),
        /// Removes a network; fine where there is none. Its members reach each other no more.
        Remove "remove" {
            /// Which.
            id: NetworkId,
        } -> (),
    }
}
