//! Made-up GPUs that are handed out in parts.

use std::collections::BTreeSet;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const MODEL: &str = "nvidia-a100-1-5c";

fn at(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

fn kind(text: &str) -> KindId {
    text.parse().expect("a kind")
}

fn function(address: &str) -> Function {
    Function {
        address: at(address),
        class: 0x03_0200,
        vendor: 0x10de,
        device: 0x20f1,
        subsystem: (0x10de, 0x145f),
        group: Some(u32::from(address.as_bytes()[6]) << 8 | u32::from(address.as_bytes()[11])),
        numa_node: None,
        driver: Some("nvidia".into()),
        is_boot_screen: false,
        physical: None,
        virtual_functions: 0,
        has_reset: true,
        large_bytes: 0,
        offers: Vec::new(),
        mig_instances: 0,
    }
}

fn offer(id: &str, name: &str, free: u32) -> Offer {
    Offer { kind: kind(id), name: name.into(), is_mediated: true, free, most: None, may_make: true }
}

/// A GPU that makes mediated devices.
fn mediated(address: &str, free: u32) -> Function {
    let small = Offer { most: Some(7), ..offer("nvidia-474", "NVIDIA A100-1-5C", free) };
    let large = Offer { most: Some(1), ..offer("nvidia-480", "NVIDIA A100-7-40C", u32::from(free == 7)) };
    Function { offers: vec![small, large], ..function(address) }
}

/// A virtual function that becomes a part.
fn virtual_function(address: &str, of: &str, kinds: &[(&str, &str)]) -> Function {
    let offers = kinds.iter().map(|(id, name)| Offer { is_mediated: false, ..offer(id, name, 1) });
    Function { physical: Some(at(of)), offers: offers.collect(), ..function(address) }
}

fn prepared() -> Facts {
    Facts { has_iommu: true, has_vfio: true, may_bind: true, ..Facts::default() }
}

fn part(text: &str) -> Part {
    text.parse::<Device>().expect("a device").part().expect("a part").clone()
}

fn chosen(gpus: &[Gpu], held: &[&str], model: &str, count: usize) -> Option<Vec<String>> {
    let held = held.iter().map(|text| text.parse().expect("a device")).collect();
    let mut number = 0;
    let fresh = || {
        number += 1;
        Uuid::from_u128(number)
    };
    Some(choose(gpus, &held, model, count, fresh)?.iter().map(ToString::to_string).collect())
}

fn one(at: &str, number: u128) -> String {
    format!("{at}/nvidia-474/{}", Uuid::from_u128(number))
}

#[test]
fn a_gpu_whose_driver_makes_parts_is_handed_out_in_those() {
    let found = inventory(&[mediated("0000:41:00.0", 7)], &prepared(), "");
    let gpu = &found[0];
    assert!(gpu.unavailable.as_ref().is_some_and(|why| why.contains("handed out in those")) && gpu.can_be_had());
    let told: Vec<_> = gpu.kinds.iter().map(|kind| (kind.model.as_str(), kind.name.as_str(), kind.most)).collect();
    assert_eq!(told, [(MODEL, "NVIDIA A100-1-5C", 7), ("nvidia-a100-7-40c", "NVIDIA A100-7-40C", 1)]);
    assert_eq!(chosen(&found, &[], "nvidia-a100-pcie-40gb", 1), None, "not whole");
    assert_eq!(chosen(&found, &[], MODEL, 1), Some(vec![one("0000:41:00.0", 1)]));
    assert_eq!(chosen(&found, &[], "NVIDIA A100-7-40C", 1).map(|found| found.len()), Some(1), "by its name, too");
    assert_eq!(chosen(&found, &[], MODEL, 7).map(|found| found.len()), Some(7));
    assert_eq!(chosen(&found, &[], MODEL, 8), None);
}

#[test]
fn what_is_promised_takes_room_until_it_is_made() {
    let (first, second) = (one("0000:41:00.0", 8), one("0000:41:00.0", 9));
    let promised = inventory(&[mediated("0000:41:00.0", 2)], &prepared(), "");
    assert_eq!(chosen(&promised, &[&first], MODEL, 1).map(|found| found.len()), Some(1));
    assert_eq!(chosen(&promised, &[&first, &second], MODEL, 1), None);
    let other = format!("0000:41:00.0/nvidia-480/{}", Uuid::from_u128(7));
    assert_eq!(chosen(&promised, &[&first, &other], MODEL, 1), None, "another kind takes at least as much");
    // What is made already is in what the driver says.
    let facts = Facts { parts: vec![part(&first)], ..prepared() };
    let made = inventory(&[mediated("0000:41:00.0", 2)], &facts, "");
    assert_eq!(made[0].parts, facts.parts);
    assert_eq!(chosen(&made, &[&first], MODEL, 2).map(|found| found.len()), Some(2));
    let told = shortage(&made, &BTreeSet::from([first.parse().unwrap(), second.parse().unwrap()]), MODEL, 2);
    assert_eq!(told, format!("this region has 1 free GPUs of the model {MODEL}, and 2 would be needed"));
}

#[test]
fn the_fullest_gpu_is_filled_first() {
    let found = inventory(
        &[mediated("0000:41:00.0", 7), mediated("0000:61:00.0", 2), mediated("0000:81:00.0", 0)],
        &prepared(),
        "",
    );
    let three = chosen(&found, &[], MODEL, 3).unwrap();
    assert_eq!(three, [one("0000:61:00.0", 1), one("0000:61:00.0", 2), one("0000:41:00.0", 3)]);
}

#[test]
fn virtual_functions_become_parts_of_their_gpu() {
    let kinds = [("1428", "NVIDIA H200X-141C"), ("1414", "NVIDIA H200X-1-18C")];
    let whole = Function { virtual_functions: 3, ..function("0000:41:00.0") };
    let parts = ["0000:41:00.4", "0000:41:00.5"].map(|at| virtual_function(at, "0000:41:00.0", &kinds));
    let spare = virtual_function("0000:41:00.6", "0000:41:00.0", &[]);
    let all: Vec<_> = [whole].into_iter().chain(parts).chain([spare]).collect();
    let found = inventory(&all, &prepared(), "");
    assert_eq!(found.len(), 1, "its virtual functions are nothing by themselves");
    let most: Vec<_> = found[0].kinds.iter().map(|kind| (kind.model.as_str(), kind.most)).collect();
    assert_eq!(most, [("nvidia-h200x-141c", 1), ("nvidia-h200x-1-18c", 7)], "by what memory each has");
    let small = |held: &[&str], count| chosen(&found, held, "nvidia-h200x-1-18c", count);
    assert_eq!(small(&[], 2), Some(vec!["0000:41:00.4/1414".into(), "0000:41:00.5/1414".into()]));
    assert_eq!(small(&["0000:41:00.4/1428"], 1), Some(vec!["0000:41:00.5/1414".into()]));
    assert_eq!(small(&["0000:41:00.4/1414"], 2), None, "a function is one part");
    assert_eq!(chosen(&found, &["0000:41:00.4/1414"], "nvidia-h200x-141c", 1), None, "a GPU has room for one");
    // What the IOMMU does not tell apart is nobody's.
    let mut shared = all;
    shared[2].group = shared[1].group;
    assert_eq!(inventory(&shared, &prepared(), "")[0].kinds, []);
}

#[test]
fn kinds_that_the_service_may_not_ask_for_are_on_no_offer() {
    let mut gpu = mediated("0000:41:00.0", 7);
    gpu.offers[1].may_make = false;
    let found = inventory(&[gpu], &prepared(), "");
    assert!(found[0].unavailable.as_ref().is_some_and(|why| why.contains("run the service as root")), "{found:?}");
    assert!(found[0].kinds.is_empty() && !found[0].can_be_had());
}

#[test]
fn a_kind_without_room_is_offered_while_its_room_is_the_service_s() {
    let full = |parts| inventory(&[mediated("0000:41:00.0", 0)], &Facts { parts, ..prepared() }, "");
    assert_eq!(full(Vec::new())[0].offered().count(), 0, "others have it all");
    assert_eq!(full(vec![part(&one("0000:41:00.0", 1))])[0].offered().count(), 2);
}

#[test]
fn a_virtual_function_that_works_by_itself_is_a_gpu() {
    let of_amd = |function: Function| Function { vendor: 0x1002, device: 0x740f, ..function };
    let whole = of_amd(Function { virtual_functions: 2, ..function("0000:41:00.0") });
    let part = |address: &str| of_amd(Function { physical: Some(at("0000:41:00.0")), ..function(address) });
    let found = inventory(&[whole.clone(), part("0000:41:00.1"), part("0000:41:00.2")], &prepared(), "");
    let told: Vec<_> = found.iter().map(|gpu| (gpu.model.as_str(), gpu.unavailable.is_none())).collect();
    let (model, half) = ("amd-instinct-mi210", "amd-instinct-mi210-1-2");
    assert_eq!(told, [(model, false), (half, true), (half, true)]);
    assert!(found[0].unavailable.as_ref().is_some_and(|why| why.contains("it is divided into 2 parts")));
    assert_eq!(found[1].part_of, Some(Whole { address: at("0000:41:00.0"), parts: 2 }));
    assert_eq!(chosen(&found, &["0000:41:00.1"], half, 1), Some(vec!["0000:41:00.2".into()]));
    let stuck = Function { group: whole.group, ..part("0000:41:00.1") };
    let found = inventory(&[whole, stuck], &prepared(), "");
    assert!(!found[1].can_be_had(), "it is not told from the whole one");
}

proptest! {
    /// Whatever is promised and made: no function or GPU has more parts than it has room for.
    #[test]
    fn no_gpu_is_promised_more_than_it_has(
        free in proptest::collection::vec(0_u32..8, 1..4),
        taken in 0_usize..8,
        count in 1_usize..8,
    ) {
        let names = ["0000:41:00.0", "0000:61:00.0", "0000:81:00.0"];
        let host: Vec<_> = names.iter().zip(&free).map(|(at, free)| mediated(at, *free)).collect();
        let gpus = inventory(&host, &prepared(), "");
        let mut number = 0;
        let mut next = || {
            number += 1;
            Uuid::from_u128(number)
        };
        let held: BTreeSet<Device> = choose(&gpus, &BTreeSet::new(), MODEL, taken, &mut next)
            .unwrap_or_default().into_iter().collect();
        let room = free.iter().sum::<u32>() as usize - held.len();
        match choose(&gpus, &held, MODEL, count, &mut next) {
            None => prop_assert!(room < count),
            Some(more) => {
                prop_assert_eq!(more.len(), count);
                for (name, free) in names.iter().zip(&free) {
                    let here = held.iter().chain(&more).filter_map(Device::part).filter(|part| part.at == at(name));
                    prop_assert!(here.count() <= *free as usize);
                }
            }
        }
    }
}
