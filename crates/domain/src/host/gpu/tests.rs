//! Made-up hosts.

use std::collections::BTreeSet;
use std::slice;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn at(text: &str) -> PciAddress {
    text.parse().expect("an address")
}

/// A function as sysfs may have it: an H100 unless it is said otherwise.
fn function(address: &str, group: u32) -> Function {
    Function {
        address: at(address),
        class: 0x03_0200,
        vendor: 0x10de,
        device: 0x2330,
        subsystem: (0x10de, 0x16c1),
        group: Some(group),
        numa_node: Some(0),
        driver: Some("nvidia".into()),
        is_boot_screen: false,
        physical: None,
        virtual_functions: 0,
        has_reset: true,
        large_bytes: 1 << 37,
        offers: Vec::new(),
        mig_instances: 0,
    }
}

fn sound(address: &str, group: u32) -> Function {
    Function { class: 0x04_0300, device: 0x22ba, driver: Some("snd_hda_intel".into()), ..function(address, group) }
}

fn prepared() -> Facts {
    Facts { has_iommu: true, has_vfio: true, may_bind: true, ..Facts::default() }
}

fn functions_of(gpu: &Gpu) -> Vec<String> {
    gpu.functions.iter().map(ToString::to_string).collect()
}

/// Why the first GPU of a host cannot be handed out.
fn obstacle(functions: &[Function], facts: &Facts) -> Option<String> {
    inventory(functions, facts, "").into_iter().next().expect("a GPU").unavailable
}

#[test]
fn an_address_is_written_as_it_is_read() {
    for good in ["0000:01:00.0", "0000:ff:1f.7", "10000:e1:00.0", "ffffffff:00:00.0"] {
        assert_eq!(at(good).to_string(), good);
    }
    let bad = [
        "",
        "0000:01:00",
        "000:01:00.0",
        "0000:1:00.0",
        "0000:01:20.0",
        "0000:01:00.8",
        "0000:01:00.0:1",
        "0000:+1:00.0",
        "0000:01:0A.0",
    ];
    for bad in bad {
        assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
    }
    let json = serde_json::to_string(&at("0000:01:00.1")).unwrap();
    assert_eq!((json.as_str(), serde_json::from_str(&json).ok()), ("\"0000:01:00.1\"", Some(at("0000:01:00.1"))));
}

#[test]
fn a_gpu_is_told_with_its_model_and_what_goes_with_it() {
    let bridge = Function { class: 0x06_0400, driver: Some("pcieport".into()), ..function("0000:00:01.0", 7) };
    let idle = Function { class: 0x0c_0500, driver: None, ..function("0000:02:00.0", 7) };
    let found = inventory(&[sound("0000:01:00.1", 7), function("0000:01:00.0", 7), bridge, idle], &prepared(), "");
    assert_eq!(found.len(), 1);
    let gpu = &found[0];
    assert_eq!(
        (gpu.model.as_str(), gpu.group, gpu.ids.as_str()),
        ("nvidia-h100-sxm5-80gb", Some(7), "10de:2330 10de:16c1")
    );
    assert_eq!(functions_of(gpu), ["0000:01:00.0", "0000:01:00.1"], "the bridge and what is not in use stay");
    assert_eq!(gpu.unavailable, None);
}

#[test]
fn gpus_of_one_group_go_together() {
    let found = inventory(&[function("0000:02:00.0", 7), function("0000:01:00.0", 7)], &prepared(), "");
    assert_eq!(found.iter().map(functions_of).collect::<Vec<_>>(), [["0000:01:00.0", "0000:02:00.0"]; 2]);
    assert!(found.iter().all(|gpu| gpu.unavailable.is_none()));
}

#[test]
fn what_is_a_gpu_follows_from_its_class() {
    for (class, vendor, is_gpu) in [
        (0x03_0000, 0x10de, true),
        (0x03_0100, 0x10de, false),
        (0x03_0200, 0x10de, true),
        (0x03_8000, 0x1002, true),
        (0x12_0000, 0x1002, true),
        (0x12_0000, 0x8086, false),
        (0x02_0000, 0x10de, false),
        (0x03_0000, 0x1a03, false),
    ] {
        let function = Function { class, vendor, ..function("0000:01:00.0", 1) };
        assert_eq!(function.is_gpu(), is_gpu, "{class:06x} of {vendor:04x}");
    }
}

#[test]
fn what_cannot_be_handed_out_says_why() {
    let gpu = function("0000:01:00.0", 7);
    let boot = Function { is_boot_screen: true, ..gpu.clone() };
    let beside =
        |driver: &str| Function { class: 0x01_0802, driver: Some(driver.into()), ..function("0000:03:00.0", 7) };
    let says = |functions: &[Function], facts: &Facts, words: &str| {
        let why = obstacle(functions, facts).unwrap_or_default();
        assert!(why.contains(words), "{words}: {why}");
    };
    says(slice::from_ref(&gpu), &Facts { has_iommu: false, ..prepared() }, "IOMMU is off");
    says(&[Function { group: None, ..gpu.clone() }], &prepared(), "in no IOMMU group");
    says(slice::from_ref(&boot), &prepared(), "the host's own screen is on 0000:01:00.0");
    says(
        &[gpu.clone(), Function { address: at("0000:02:00.0"), ..boot.clone() }],
        &prepared(),
        "screen is on 0000:02:00.0",
    );
    says(
        &[gpu.clone(), beside("nvme")],
        &prepared(),
        "0000:03:00.0 is in its IOMMU group and in use by the host (nvme)",
    );
    says(slice::from_ref(&gpu), &Facts { has_vfio: false, ..prepared() }, "sudo modprobe vfio-pci");
    says(&[Function { has_reset: false, ..gpu.clone() }], &prepared(), "no way to reset it");
    says(&[Function { virtual_functions: 2, ..gpu.clone() }], &prepared(), "0000:01:00.0/sriov_numvfs");
    says(&[Function { physical: Some(at("0000:09:00.0")), ..gpu.clone() }], &prepared(), "says of no kind");
    let divided = Function { mig_instances: 7, ..gpu.clone() };
    says(&[divided], &prepared(), "7 MIG instances, which nvidia-smi shows and programs of this host use");
    let stuck = Function { has_reset: false, ..function("0000:02:00.0", 7) };
    says(&[gpu.clone(), stuck], &prepared(), "0000:02:00.0 is in its IOMMU group, and of that one: the kernel knows");
    // What the operator has given away is not the host's.
    let vfio = |function: &Function| Function { driver: Some(VFIO.into()), ..function.clone() };
    assert_eq!(obstacle(&[vfio(&boot)], &prepared()), None);
    assert_eq!(obstacle(&[gpu.clone(), vfio(&beside("nvme"))], &prepared()), None);
    assert_eq!(obstacle(&[gpu.clone(), Function { driver: None, ..beside("nvme") }], &prepared()), None);
    assert_eq!(obstacle(&[gpu, Function { group: Some(8), ..beside("nvme") }], &prepared()), None);
}

#[test]
fn without_root_only_what_was_prepared_is_handed_out() {
    let facts = Facts { may_bind: false, ..prepared() };
    let [gpu, sound] = [function("0000:01:00.0", 7), sound("0000:01:00.1", 7)];
    let bound = |function: &Function| Function { driver: Some(VFIO.into()), ..function.clone() };
    let why = obstacle(&[bound(&gpu), sound.clone()], &facts).unwrap();
    assert!(why.contains("may not give 0000:01:00.1 another driver"), "{why}");
    let prepared = [bound(&gpu), bound(&sound)];
    let why = obstacle(&prepared, &Facts { opened: BTreeSet::from([8]), ..facts.clone() }).unwrap();
    assert!(why.contains("may not open /dev/vfio/7"), "{why}");
    assert_eq!(obstacle(&prepared, &Facts { opened: BTreeSet::from([7]), ..facts }), None);
}

#[test]
fn a_machine_is_told_only_what_its_gpus_need() {
    let data_center = function("0000:01:00.0", 1);
    let small = Function { large_bytes: 0, ..data_center.clone() };
    let card = Function { class: 0x03_0000, large_bytes: 16 << 30, ..data_center.clone() };
    let window = |bytes| quirks([&Function { large_bytes: bytes, ..small.clone() }]).window_mb;
    assert!(!quirks([&small, &sound("0000:01:00.1", 1)]).hides_hypervisor);
    assert_eq!(quirks([&small]), Quirks::default());
    assert_eq!(quirks([&card]), Quirks { hides_hypervisor: true, window_mb: None });
    assert!(!quirks([&Function { vendor: 0x1002, ..card }]).hides_hypervisor);
    assert_eq!((window(16 << 30), window((16 << 30) + 1)), (None, Some(64 << 10)));
    assert_eq!(quirks([&data_center]).window_mb, Some(256 << 10));
}

/// A GPU of a host: its group is told by its second number.
fn gpu(bus: u32, group: u32, node: u32) -> Function {
    Function { numa_node: Some(node), ..function(&format!("0000:{bus:02x}:00.0"), group) }
}

fn held_by_others(devices: &[&str]) -> BTreeSet<Device> {
    devices.iter().map(|text| text.parse().expect("a device")).collect()
}

fn chosen(gpus: &[Gpu], held: &[&str], count: usize) -> Option<Vec<String>> {
    let found = choose(gpus, &held_by_others(held), "nvidia-h100-sxm5-80gb", count, || unreachable!("they are whole"))?;
    Some(found.iter().map(ToString::to_string).collect())
}

#[test]
fn those_of_one_node_are_preferred_and_none_is_wasted() {
    let host = [gpu(1, 1, 0), gpu(2, 2, 1), gpu(3, 3, 1), gpu(4, 4, 0), gpu(5, 5, 0)];
    let gpus = inventory(&host, &prepared(), "");
    let some = |addresses: &[&str]| Some(addresses.iter().map(|a| format!("0000:{a}:00.0")).collect::<Vec<_>>());
    assert_eq!(chosen(&gpus, &[], 1), some(&["01"]));
    assert_eq!(chosen(&gpus, &["0000:01:00.0", "0000:04:00.0"], 2), some(&["02", "03"]));
    assert_eq!(chosen(&gpus, &["0000:01:00.0", "0000:02:00.0"], 3), some(&["03", "04", "05"]));
    assert_eq!((chosen(&gpus, &[], 5).map(|all| all.len()), chosen(&gpus, &[], 6)), (Some(5), None));
    assert_eq!(choose(&gpus, &BTreeSet::new(), "another", 1, Uuid::nil), None);
    // A group of two is taken for one only where nothing else is left.
    let host = [gpu(1, 1, 0), gpu(2, 1, 0), gpu(3, 3, 1)];
    let gpus = inventory(&host, &prepared(), "");
    assert_eq!(chosen(&gpus, &[], 1), some(&["03"]));
    assert_eq!(chosen(&gpus, &["0000:03:00.0"], 1), some(&["01", "02"]));
    assert_eq!(chosen(&gpus, &[], 2), some(&["01", "02"]));
    assert_eq!(chosen(&gpus, &["0000:01:00.0"], 2), None, "half a group is nobody's");
    let told = shortage(&gpus, &held_by_others(&["0000:01:00.0"]), "nvidia-h100-sxm5-80gb", 2);
    assert_eq!(told, "this region has 1 free GPUs of the model nvidia-h100-sxm5-80gb, and 2 would be needed");
}

#[test]
fn what_is_unavailable_is_not_chosen() {
    let mut gpus = inventory(&[gpu(1, 1, 0), gpu(2, 1, 0), gpu(3, 3, 0)], &prepared(), "");
    gpus[1].unavailable = Some("its reset failed".into());
    assert_eq!(chosen(&gpus, &[], 1), Some(vec!["0000:03:00.0".into()]));
    assert_eq!(chosen(&gpus, &[], 2), None);
}

proptest! {
    /// Whatever is held: what is chosen is free, whole groups, enough, and there wherever there is enough.
    #[test]
    fn what_is_chosen_is_free_and_whole(
        groups in proptest::collection::vec((1_usize..4, 0_u32..3), 1..8),
        taken in proptest::collection::vec(any::<bool>(), 8),
        count in 1_usize..10,
    ) {
        let mut host = Vec::new();
        for (number, (size, node)) in (1_u32..).zip(&groups) {
            for _ in 0..*size {
                host.push(gpu(u32::try_from(host.len()).unwrap() + 1, number, *node));
            }
        }
        let gpus = inventory(&host, &prepared(), "");
        let held: BTreeSet<Device> = gpus.iter()
            .filter(|gpu| gpu.group.is_some_and(|group| taken[group as usize - 1]))
            .map(|gpu| gpu.address.into()).collect();
        let free = gpus.len() - held.len();
        match choose(&gpus, &held, "nvidia-h100-sxm5-80gb", count, Uuid::nil) {
            None => prop_assert!(free < count),
            Some(functions) => {
                prop_assert!(functions.len() >= count);
                prop_assert!(functions.iter().all(|f| !held.contains(f)));
                for gpu in &gpus {
                    let inside = gpu.functions.iter().filter(|f| functions.contains(&Device::from(**f))).count();
                    prop_assert!(inside == 0 || inside == gpu.functions.len());
                }
            }
        }
    }
}
