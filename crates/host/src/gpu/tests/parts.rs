//! Parts of GPUs on made-up hosts.

use std::fs;

use berth_domain::host::gpu::{Device, Kind};
use berth_qemu::machine::HostDevice;
use uuid::Uuid;

use super::super::*;
use super::is_killed;
use super::made_up::{Card, Host};

const A100: Card<'_> = ("0000:41:00.0", "0x030200", "0x10de", "0x20f1", 7, Some("nvidia"));
const FIRST: Card<'_> = ("0000:41:00.4", "0x030200", "0x10de", "0x20f1", 8, Some("nvidia"));
const SECOND: Card<'_> = ("0000:41:00.5", "0x030200", "0x10de", "0x20f1", 9, Some("nvidia"));

const ONE: MachineId = MachineId(Uuid::from_u128(1));
const TWO: MachineId = MachineId(Uuid::from_u128(2));

/// A host with a GPU that makes mediated devices.
fn mediating() -> Host {
    let host = Host::new();
    host.plug(A100);
    host.offer_mediated(A100.0, &[("nvidia-474", "NVIDIA A100-1-5C", 7), ("nvidia-480", "NVIDIA A100-7-40C", 1)]);
    host
}

/// A host with a GPU that is divided into two functions, which can become parts.
fn divided() -> Host {
    let host = Host::new();
    for card in [A100, FIRST, SECOND] {
        host.plug(card);
    }
    fs::write(host.of(A100.0).join("sriov_numvfs"), "2\n").unwrap();
    for function in [FIRST, SECOND] {
        host.offer_virtual(
            function.0,
            A100.0,
            "ID    : vGPU Name\n1428  : NVIDIA A100-7-40C\n1414 : NVIDIA A100-1-5C\n",
        );
    }
    host
}

fn uuid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn device(text: &str) -> Vec<Device> {
    vec![text.parse().expect("a device")]
}

fn small(number: u128) -> Vec<Device> {
    device(&format!("{}/nvidia-474/{}", A100.0, uuid(number)))
}

fn virtual_part() -> Vec<Device> {
    device(&format!("{}/1414", FIRST.0))
}

/// How many of each kind a host says that it would make, by model.
fn free(host: &Host) -> Vec<(String, u32)> {
    let gpus = host.service().inventory();
    assert_eq!(gpus.len(), 1, "{gpus:?}");
    let free = |kind: &Kind| kind.places.iter().map(|place| place.free).sum();
    gpus[0].kinds.iter().map(|kind| (kind.model.clone(), free(kind))).collect()
}

fn counted(small: u32, large: u32) -> Vec<(String, u32)> {
    vec![("nvidia-a100-1-5c".into(), small), ("nvidia-a100-7-40c".into(), large)]
}

#[tokio::test]
async fn a_mediated_device_is_made_for_a_machine_and_taken_away_after_it() {
    let host = mediating();
    let (before, gpus) = (host.state(), host.service());
    assert_eq!(free(&host), counted(7, 1));
    let assigned = gpus.take(ONE, &small(9), |_| false).await.unwrap();
    let folder = host.places().sys.join("bus/mdev/devices").join(uuid(9).to_string());
    assert_eq!(assigned.devices, [HostDevice::Mediated(folder.clone())]);
    assert_eq!((assigned.folders, assigned.hides_hypervisor, assigned.window_mb), (vec![folder], false, None));
    assert_eq!(assigned.files, ["vfio", "101"].map(|name| host.places().dev.join("vfio").join(name)));
    assert_eq!((host.parts(), gpus.holders(), host.state()), (vec![uuid(9).to_string()], vec![ONE], before.clone()));
    assert_eq!(free(&host), counted(6, 0), "its driver makes one kind at a time");
    assert_eq!(gpus.inventory()[0].parts, [small(9)[0].part().unwrap().clone()]);
    assert_eq!(gpus.inventory()[0].offered().count(), 2, "the other kind again, once this one goes");
    gpus.give_back(ONE).await.unwrap();
    gpus.give_back(ONE).await.unwrap();
    assert_eq!((host.parts(), gpus.holders(), host.state()), (vec![], vec![], before));
    assert_eq!(free(&host), counted(7, 1));
}

#[tokio::test]
async fn a_virtual_function_becomes_a_part_and_is_none_after_it() {
    let host = divided();
    let (before, gpus) = (host.state(), host.service());
    let inventory = gpus.inventory();
    let kinds: Vec<_> = inventory[0].kinds.iter().map(|kind| (kind.model.as_str(), kind.most)).collect();
    assert_eq!(kinds, [("nvidia-a100-7-40c", 1), ("nvidia-a100-1-5c", 8)]);
    let assigned = gpus.take(ONE, &virtual_part(), |_| false).await.unwrap();
    assert_eq!(assigned.devices, [HostDevice::Virtual(FIRST.0.into())]);
    assert_eq!(assigned.folders, [host.of(FIRST.0)]);
    assert_eq!(assigned.files, ["vfio", "8"].map(|name| host.places().dev.join("vfio").join(name)));
    assert_eq!((host.parts(), host.state()), (vec![format!("{}/1414", FIRST.0)], before.clone()), "its driver stays");
    gpus.give_back(ONE).await.unwrap();
    assert_eq!((host.parts(), gpus.holders(), host.state()), (vec![], vec![], before));
}

/// The service dies before and after each thing that it tells the kernel, while it has parts made and taken away. Whoever comes
/// next takes away, or makes again, as if nothing had been.
#[test]
fn whoever_dies_in_between_leaves_no_part() {
    let two = || [small(8), small(9)].concat();
    for (make_host, parts, steps) in [(mediating as fn() -> Host, two(), 4), (divided, virtual_part(), 2)] {
        for step in 0..(steps * 2) {
            for again in [false, true] {
                let host = make_host();
                let before = (host.state(), free(&host));
                if step < steps {
                    host.die_at(Some(step));
                } else {
                    host.die_after(step - steps + 1);
                }
                let killed = is_killed(|| {
                    host.inner().take((ONE, Keeper::Vms), &parts, |_| false).unwrap();
                    host.inner().give_back(ONE).unwrap();
                });
                assert!(killed, "at {step}");
                host.die_at(None);
                assert_eq!(host.service().holders(), [ONE], "its note is older than what it made: {step}");
                if again {
                    host.inner().take((ONE, Keeper::Vms), &parts, |_| false).unwrap();
                    assert_eq!(host.parts().len(), parts.len(), "at {step}");
                }
                host.inner().give_back(ONE).unwrap();
                assert_eq!((host.parts(), host.service().holders()), (vec![], vec![]), "at {step}, {again}");
                assert_eq!((host.state(), free(&host)), before, "at {step}, {again}");
            }
        }
    }
}

#[tokio::test]
async fn nobody_takes_a_part_of_a_living_machine_and_a_dead_one_s_goes() {
    for (host, part) in [(mediating(), small(9)), (divided(), virtual_part())] {
        let gpus = host.service();
        gpus.take(ONE, &part, |_| false).await.unwrap();
        let refused = gpus.take(TWO, &part, |machine| machine == ONE).await.unwrap_err();
        assert_eq!(refused, EngineError::Transient("another machine still has a GPU of this one".into()));
        gpus.take(TWO, &part, |_| false).await.unwrap();
        gpus.give_back(ONE).await.unwrap();
        assert_eq!((gpus.holders(), host.parts().len()), (vec![TWO], 1));
    }
}

#[tokio::test]
async fn what_the_service_did_not_make_is_never_taken_away() {
    let host = mediating();
    let kind = host.of(A100.0).join("mdev_supported_types/nvidia-474/create");
    host.tell(&kind, &uuid(9).to_string());
    let gpus = host.service();
    let refused = gpus.take(ONE, &small(9), |_| false).await.unwrap_err().to_string();
    assert!(refused.contains("somebody else has made it"), "{refused}");
    gpus.give_back(ONE).await.unwrap();
    gpus.take(ONE, &small(8), |_| false).await.unwrap();
    gpus.give_back(ONE).await.unwrap();
    assert_eq!(host.parts(), [uuid(9).to_string()]);
    let host = divided();
    host.tell(&host.of(FIRST.0).join("nvidia/current_vgpu_type"), "1414");
    let gpus = host.service();
    assert!(gpus.take(ONE, &virtual_part(), |_| false).await.is_err());
    gpus.give_back(ONE).await.unwrap();
    assert_eq!(host.parts(), [format!("{}/1414", FIRST.0)]);
    // Another one has it become something else than what was noted.
    let other = device(&format!("{}/1414", SECOND.0));
    gpus.take(TWO, &other, |_| false).await.unwrap();
    host.tell(&host.of(SECOND.0).join("nvidia/current_vgpu_type"), "1428");
    gpus.give_back(TWO).await.unwrap();
    assert_eq!(host.parts(), [format!("{}/1414", FIRST.0), format!("{}/1428", SECOND.0)]);
}

#[tokio::test]
async fn a_part_without_room_is_refused_and_leaves_nothing() {
    let host = mediating();
    let gpus = host.service();
    gpus.take(ONE, &small(9), |_| false).await.unwrap();
    let large = device(&format!("{}/nvidia-480/{}", A100.0, uuid(8)));
    let refused = gpus.take(TWO, &large, |_| true).await.unwrap_err().to_string();
    assert!(refused.starts_with("insufficient_capacity: ") && refused.contains("no room for another one"), "{refused}");
    // The driver says that it has room, and finds out otherwise.
    let told = host.of(A100.0).join("mdev_supported_types/nvidia-480");
    gpus.give_back(ONE).await.unwrap();
    let both = [large.clone(), small(7)].concat();
    let refused = gpus.take(TWO, &both, |_| true).await.unwrap_err().to_string();
    assert!(
        refused.starts_with("insufficient_capacity: the driver of the GPU 0000:41:00.0 makes no part"),
        "{refused}"
    );
    gpus.give_back(TWO).await.unwrap();
    assert_eq!((host.parts(), gpus.holders(), free(&host)), (vec![], vec![], counted(7, 1)));
    fs::remove_dir_all(told).unwrap();
    assert!(gpus.take(TWO, &large, |_| true).await.is_err(), "a kind that is not there any more");
}

#[tokio::test]
async fn a_part_that_is_not_taken_away_has_its_function_be_out_of_service() {
    let mut host = mediating();
    let gpus = host.service();
    gpus.take(ONE, &small(9), |_| false).await.unwrap();
    host.break_reset(A100.0);
    gpus.give_back(ONE).await.unwrap();
    let told = host.service().inventory().remove(0);
    let why = told.unavailable.clone().unwrap_or_default();
    assert!(why.contains("does not take away the part 0000:41:00.0/nvidia-474/"), "{why}");
    assert!(why.contains("restart the host") && !told.can_be_had(), "{why}");
    assert!(gpus.take(ONE, &small(8), |_| false).await.unwrap_err().to_string().contains("does not take away"));
    host.restart();
    assert!(host.service().inventory()[0].can_be_had());

    let host = divided();
    let gpus = host.service();
    gpus.take(ONE, &virtual_part(), |_| false).await.unwrap();
    host.break_reset(FIRST.0);
    gpus.give_back(ONE).await.unwrap();
    let gpu = host.service().inventory().remove(0);
    assert!(gpu.unavailable.as_ref().is_some_and(|why| why.contains("but not at 0000:41:00.4: its driver does not")));
    let places = gpu.kinds.iter().flat_map(|kind| &kind.places).map(|place| place.at.to_string());
    assert_eq!(places.collect::<Vec<_>>(), [SECOND.0; 2], "the other is well");
}

#[test]
fn mig_instances_of_the_host_are_told_from_what_machines_can_have() {
    let host = Host::new();
    host.plug(A100);
    let driver = host.places().proc.join("driver/nvidia");
    fs::create_dir_all(driver.join("gpus").join(A100.0)).unwrap();
    fs::create_dir_all(driver.join("capabilities/gpu3/mig")).unwrap();
    let told = "Model: \t\t NVIDIA A100\nBus Location: \t 0000:41:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n";
    fs::write(driver.join("gpus").join(A100.0).join("information"), told).unwrap();
    assert_eq!(host.service().inventory()[0].unavailable, None, "none is made");
    for instance in ["gi1", "gi2"] {
        fs::create_dir(driver.join("capabilities/gpu3/mig").join(instance)).unwrap();
    }
    let gpus = host.service().inventory();
    let why = gpus[0].unavailable.as_deref().unwrap_or_default();
    assert!(why.contains("2 MIG instances, which nvidia-smi shows") && why.contains("-i 0000:41:00.0 -mig 0"), "{why}");
    host.offer_mediated(A100.0, &[("nvidia-474", "NVIDIA A100-1-5C", 7)]);
    assert!(host.service().inventory()[0].can_be_had(), "NVIDIA's vGPU Manager makes kinds of them");
}

#[test]
fn kinds_of_other_devices_than_pci_s_are_none() {
    let host = mediating();
    for kind in ["nvidia-474", "nvidia-480"] {
        fs::write(host.of(A100.0).join("mdev_supported_types").join(kind).join("device_api"), "vfio-ccw\n").unwrap();
    }
    assert_eq!(host.service().inventory()[0].kinds, []);
}
