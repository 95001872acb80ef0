//! Questions about templates of sandboxes.

use super::question::questions;
use crate::host::template::{PlatformTemplate, Warming};
use crate::ids::{LayerId, TemplateId};

questions! {
    /// What may be asked about templates.
    "template" {
        /// The templates that the platform brings along.
        List "list" {} -> Vec<PlatformTemplate>,
        /// Makes a layer of a platform template's disk.
        Adopt "adopt" {
            /// The template's name.
            name: String,
            /// The layer.
            layer: LayerId,
        } -> (),
        /// Ends what is left of a template's build, and removes it; fine where there is none.
        ClearBuild "clear_build" {
            /// Whose.
            id: TemplateId,
        } -> (),
        /// Boots a template once and keeps its memory; answers what that takes, in bytes. The machine is gone afterwards.
        /// Whoever leaves before the answer ends the machine.
        Warm "warm" {
            /// How.
            warming: Warming,
        } -> i64,
    }
}
