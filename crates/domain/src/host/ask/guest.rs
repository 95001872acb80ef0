//! Questions about what sandboxes boot.

use super::question::questions;
use crate::host::guest::GuestArrival;
use crate::host::image::ImageFile;

questions! {
    /// What may be asked about the guest.
    "guest" {
        /// Which it is: the SHA-256 of its manifest; none where it has none that is whole.
        Version "version" {} -> Option<String>,
        /// What it consists of, if it is whole and still this one.
        Files "files" {
            /// Which.
            version: String,
        } -> Vec<ImageFile>,
        /// Makes room for one that comes from another host. What came in an earlier try goes, and who is at that is refused
        /// from then on.
        Expect "expect" {
            /// What comes.
            arrival: GuestArrival,
        } -> (),
        /// Has machines that start from now on boot what came, whole or not at all; fine where they do already.
        Adopt "adopt" {
            /// What came.
            arrival: GuestArrival,
        } -> (),
    }
}
