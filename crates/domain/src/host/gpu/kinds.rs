//! Kinds of parts that a GPU's driver makes when it is asked to.
//!
//! There are two ways. A *mediated device* is made by writing a UUID to a file of its kind (Linux,
//! `Documentation/driver-api/vfio-mediated-device.rst`). Where NVIDIA's vGPU Manager does without those, from Linux 6.8 on, a
//! virtual function becomes a part by writing the number of a kind to a file of it (NVIDIA, "Virtual GPU Software User
//! Guide", vendor-specific VFIO framework; `NVIDIA/vgpu-device-manager`, `pkg/vfio`). Kinds that are backed by MIG stand
//! among them, as `NVIDIA A100-1-5C`.
//!
//! How many of a kind a GPU has room for depends on what was made of it already, and only its driver knows. What it says
//! counts, and it has the last word when it is asked.

use serde::{Deserialize, Serialize};

use super::function::Function;
use super::names::{NVIDIA, of_kind};
use super::{KindId, Part, PciAddress};

/// A kind of parts of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kind {
    /// What the driver calls it.
    pub id: KindId,
    /// Its model: the id of the size of machines that has one. Lower-case letters, digits and hyphens, at most 40.
    pub model: String,
    /// Its model for people.
    pub name: String,
    /// Whether it is a mediated device, which has a UUID.
    pub is_mediated: bool,
    /// How many of it the GPU has room for in all, at least one.
    pub most: u32,
    /// Where the driver would make more of it now.
    pub places: Vec<Place>,
}

/// A function at which a driver makes parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where.
    pub at: PciAddress,
    /// How many more, at least one.
    pub free: u32,
}

impl Kind {
    /// Whether it is of a model, by its id or its name.
    pub fn is_a(&self, model: &str) -> bool {
        self.model == model || self.name == model
    }
}

/// The kinds of a GPU of which some functions are: itself, and those that it is divided into. `parts` are there already.
pub(super) fn kinds(members: &[&Function], parts: &[Part]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut told: Vec<Option<u32>> = Vec::new();
    for (function, offer) in members.iter().flat_map(|function| function.offers.iter().map(move |o| (function, o))) {
        let place = (offer.free > 0).then_some(Place { at: function.address, free: offer.free });
        if let Some(index) = kinds.iter().position(|kind| kind.id == offer.kind) {
            kinds[index].places.extend(place);
            told[index] = told[index].or(offer.most);
            continue;
        }
        let (model, name) = of_kind(function.vendor, &offer.name);
        let (id, is_mediated) = (offer.kind.clone(), offer.is_mediated);
        kinds.push(Kind { id, model, name, is_mediated, most: 0, places: Vec::from_iter(place) });
        told.push(offer.most);
    }
    let is_nvidia = members.iter().any(|function| function.vendor == NVIDIA);
    let largest = kinds.iter().filter_map(|kind| gigabytes(&kind.name)).max().filter(|_| is_nvidia);
    for (kind, told) in kinds.iter_mut().zip(told) {
        let by_memory = || Some(largest? / gigabytes(&kind.name)?);
        let made = parts.iter().filter(|part| part.kind == kind.id).map(|_| 1);
        let by_places = || kind.places.iter().map(|place| place.free).chain(made).fold(0, u32::saturating_add);
        kind.most = told.or_else(by_memory).unwrap_or_else(by_places).max(1);
    }
    kinds
}

/// How much memory one of NVIDIA's kinds has, in GB, as its name says behind the last hyphen: `A100-1-5C`, `A40-24Q`
/// (NVIDIA, "Virtual GPU Software User Guide", vGPU types).
fn gigabytes(name: &str) -> Option<u32> {
    let last = name.rsplit_once('-')?.1;
    let digits = last.find(|c: char| !c.is_ascii_digit()).unwrap_or(last.len());
    last[..digits].parse().ok().filter(|size| *size > 0)
}

/// Why none of the kinds of a GPU can be had.
pub(super) fn obstacle(members: &[&Function]) -> Option<String> {
    let is_closed = |function: &&&Function| function.offers.iter().any(|offer| !offer.may_make);
    let closed = members.iter().find(is_closed)?;
    Some(format!(
        "its driver makes parts of it, and the service may not ask for one at {}; run the service as root",
        closed.address
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_kind_stands_in_its_name() {
        let of = |names: [&str; 7]| names.map(gigabytes);
        let names =
            ["NVIDIA A100-1-5C", "NVIDIA A40-24Q", "GRID T4-2B4", "NVIDIA H200X-141C", "GVTg_V5_4", "A-C", "A-0Q"];
        assert_eq!(of(names), [Some(5), Some(24), Some(2), Some(141), None, None, None]);
    }
}
