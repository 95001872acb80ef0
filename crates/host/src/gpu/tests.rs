pub(super) mod made_up;
mod parts;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use berth_domain::host::gpu::{Device, Gpu, PciAddress};
use uuid::Uuid;

use self::made_up::{Card, Host, Killed};
use super::*;

const H100: Card<'_> = ("0000:01:00.0", "0x030200", "0x10de", "0x2330", 7, Some("nvidia"));
const SOUND: Card<'_> = ("0000:01:00.1", "0x040300", "0x10de", "0x22ba", 7, Some("snd_hda_intel"));
const SECOND: Card<'_> = ("0000:02:00.0", "0x030200", "0x10de", "0x2330", 8, None);
const DISK: Card<'_> = ("0000:03:00.0", "0x010802", "0x144d", "0xa80a", 9, Some("nvme"));

const ONE: MachineId = MachineId(Uuid::from_u128(1));
const TWO: MachineId = MachineId(Uuid::from_u128(2));

fn host(cards: &[Card<'_>]) -> Host {
    let host = Host::new();
    for card in cards {
        host.plug(*card);
    }
    host
}

fn at(addresses: &[&str]) -> Vec<Device> {
    addresses.iter().map(|text| text.parse().expect("a device")).collect()
}

fn whole(functions: &[PciAddress]) -> Vec<Device> {
    functions.iter().copied().map(Device::Function).collect()
}

fn card() -> Vec<Device> {
    at(&[H100.0, SOUND.0])
}

fn only(gpus: &[Gpu]) -> &Gpu {
    assert_eq!(gpus.len(), 1, "{gpus:?}");
    &gpus[0]
}

/// Does something that may be killed; whether it was.
fn is_killed<T>(act: impl FnOnce() -> T) -> bool {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(_) => false,
        Err(cause) => cause.is::<Killed>() || std::panic::resume_unwind(cause),
    }
}

#[test]
fn a_host_is_read_as_its_files_say() {
    let host = host(&[H100, SOUND, DISK]);
    let gpus = host.service().inventory();
    let gpu = only(&gpus);
    assert_eq!((gpu.model.as_str(), gpu.group, gpu.numa_node), ("nvidia-h100-sxm5-80gb", Some(7), None));
    assert_eq!((whole(&gpu.functions), gpu.driver.as_deref(), gpu.unavailable.clone()), (card(), Some("nvidia"), None));
    fs::write(host.of(H100.0).join("numa_node"), "1\n").unwrap();
    fs::write(host.of(H100.0).join("boot_vga"), "1\n").unwrap();
    let gpus = host.service().inventory();
    assert_eq!(only(&gpus).numa_node, Some(1));
    assert!(only(&gpus).unavailable.as_ref().is_some_and(|why| why.contains("the host's own screen")));
    fs::write(host.of(H100.0).join("boot_vga"), "0\n").unwrap();
    fs::remove_file(host.of(H100.0).join("reset")).unwrap();
    assert!(only(&host.service().inventory()).unavailable.as_ref().is_some_and(|why| why.contains("reset")));
}

#[test]
fn a_host_without_gpus_or_sysfs_has_none() {
    assert_eq!(host(&[DISK]).service().inventory(), []);
    let host = host(&[]);
    fs::remove_dir_all(host.places().sys).unwrap();
    assert_eq!(host.service().inventory(), []);
}

#[tokio::test]
async fn a_machine_has_its_gpu_and_the_host_gets_it_back() {
    let host = host(&[H100, SOUND, SECOND, DISK]);
    let (before, gpus) = (host.state(), host.service());
    let assigned = gpus.take(ONE, &card(), |_| false).await.unwrap();
    assert_eq!(assigned.devices, [H100.0, SOUND.0].map(|address| HostDevice::Function(address.into())));
    assert_eq!(assigned.folders, [H100.0, SOUND.0].map(|address| host.of(address)));
    assert_eq!(
        assigned.files,
        ["vfio", "7"].map(|name| host.places().dev.join("vfio").join(name)),
        "one of each group"
    );
    assert_eq!([H100.0, SOUND.0].map(|at| host.driver(at)), [0; 2].map(|_| Some("vfio-pci".to_owned())));
    assert_eq!((host.driver(SECOND.0), host.driver(DISK.0)), (None, Some("nvme".into())), "others stay as they are");
    assert_eq!(gpus.holders(), [ONE]);
    assert_eq!(gpus.inventory()[0].unavailable, None, "what is held is told by rows");
    gpus.give_back(ONE).await.unwrap();
    gpus.give_back(ONE).await.unwrap();
    assert_eq!((host.state(), gpus.holders()), (before, vec![]));
    assert_eq!(host.resets(), [H100.0, SOUND.0], "nobody finds what the machine left");
}

#[tokio::test]
async fn a_driver_that_was_chosen_stays_chosen() {
    let host = host(&[H100, SOUND]);
    fs::write(host.of(H100.0).join("driver_override"), "nvidia\n").unwrap();
    let (before, gpus) = (host.state(), host.service());
    gpus.take(ONE, &card(), |_| false).await.unwrap();
    gpus.give_back(ONE).await.unwrap();
    assert_eq!(host.state(), before);
}

#[tokio::test]
async fn what_the_operator_gave_to_vfio_stays_there() {
    let host = host(&[(H100.0, H100.1, H100.2, H100.3, 7, Some("vfio-pci"))]);
    let (before, gpus) = (host.state(), host.service());
    gpus.take(ONE, &at(&[H100.0]), |_| false).await.unwrap();
    assert_eq!((host.state(), host.writes()), (before.clone(), 0), "nothing has to be done");
    gpus.give_back(ONE).await.unwrap();
    assert_eq!((host.state(), host.resets()), (before, vec![H100.0.to_owned()]));
}

/// The service dies before each thing that it tells the kernel, while it hands out and while it takes back. Whoever comes
/// next gives back, or hands out again, as if nothing had been.
#[test]
fn whoever_dies_in_between_is_undone_by_the_next() {
    let steps = |act: fn(&Host)| {
        let host = host(&[H100, SOUND]);
        let before = host.writes();
        act(&host);
        host.writes() - before
    };
    let take = |host: &Host| host.inner().take((ONE, Keeper::Vms), &card(), |_| false).map(drop).unwrap();
    let back = |host: &Host| host.inner().give_back(ONE).unwrap();
    let (taking, both) = (
        steps(take),
        steps(|host| {
            host.inner().take((ONE, Keeper::Vms), &card(), |_| false).unwrap();
            host.inner().give_back(ONE).unwrap();
        }),
    );
    assert_eq!((taking, both - taking), (6, 10), "override, unbind, probe; and back with a reset for each");
    for step in 0..both {
        for again in [false, true] {
            let host = host(&[H100, SOUND]);
            let before = host.state();
            host.die_at(Some(step));
            let killed = is_killed(|| {
                take(&host);
                back(&host);
            });
            assert!(killed, "at {step}");
            host.die_at(None);
            if again {
                take(&host);
                assert_eq!(host.driver(H100.0).as_deref(), Some("vfio-pci"), "at {step}");
            }
            back(&host);
            assert_eq!((host.state(), host.service().holders()), (before, vec![]), "at {step}, {again}");
        }
    }
}

/// It dies a second time, while it undoes what it had begun.
#[test]
fn whoever_dies_while_it_undoes_is_undone_too() {
    for first in (0..16).step_by(3) {
        for second in 0..10 {
            let host = host(&[H100, SOUND]);
            let before = host.state();
            for (turn, step) in [first, second].into_iter().enumerate() {
                host.die_at(Some(step));
                is_killed(|| {
                    if turn == 0 {
                        host.inner().take((ONE, Keeper::Vms), &card(), |_| false).unwrap();
                    }
                    host.inner().give_back(ONE).unwrap();
                });
            }
            host.die_at(None);
            host.inner().give_back(ONE).unwrap();
            assert_eq!(host.state(), before, "at {first} and {second}");
        }
    }
}

#[tokio::test]
async fn nobody_takes_what_a_living_machine_has() {
    let host = host(&[H100, SOUND]);
    let gpus = host.service();
    gpus.take(ONE, &card(), |_| false).await.unwrap();
    let refused = gpus.take(TWO, &card(), |machine| machine == ONE).await.unwrap_err();
    assert_eq!(refused, EngineError::Transient("another machine still has a GPU of this one".into()));
    assert_eq!(gpus.holders(), [ONE]);
    // One that died without a word has nothing any more.
    gpus.take(TWO, &card(), |_| false).await.unwrap();
    assert_eq!((gpus.holders(), host.resets().len()), (vec![TWO], 2));
    gpus.give_back(ONE).await.unwrap();
    assert_eq!(host.driver(H100.0).as_deref(), Some("vfio-pci"), "who has nothing takes nothing from others");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_called_off_leaves_nothing() {
    let host = host(&[H100, SOUND]);
    let (before, gpus, gate) = (host.state(), host.service(), host.hold());
    let starting = tokio::spawn({
        let gpus = gpus.clone();
        async move { gpus.take(ONE, &card(), |_| false).await }
    });
    tokio::task::block_in_place(|| gate.wait());
    starting.abort();
    assert!(starting.await.is_err_and(|error| error.is_cancelled()));
    let ending = tokio::spawn({
        let gpus = gpus.clone();
        async move { gpus.give_back(ONE).await }
    });
    // Whoever has nothing waits for nobody meanwhile.
    gpus.give_back(TWO).await.unwrap();
    tokio::task::block_in_place(|| gate.wait());
    ending.await.unwrap().unwrap();
    assert_eq!((host.state(), gpus.holders()), (before, vec![]));
}

#[tokio::test]
async fn what_cannot_be_handed_out_any_more_is_refused() {
    let host = host(&[H100, SOUND]);
    let gpus = host.service();
    let refusal = async |functions: &[&str]| gpus.take(ONE, &at(functions), |_| false).await.unwrap_err().to_string();
    let why = refusal(&[H100.0]).await;
    assert!(why.contains("others of its IOMMU group are missing"), "{why}");
    let why = refusal(&[DISK.0]).await;
    assert!(why.contains("0000:03:00.0 cannot be handed out: it is not there any more"), "{why}");
    fs::remove_dir(host.places().sys.join("bus/pci/drivers/vfio-pci")).unwrap();
    let why = refusal(&[H100.0, SOUND.0]).await;
    assert!(why.starts_with("insufficient_capacity: ") && why.contains("modprobe vfio-pci"), "{why}");
    assert_eq!((gpus.holders(), host.writes()), (vec![], 0));
}

#[tokio::test]
async fn a_reset_that_fails_takes_the_device_out_of_service_until_the_host_starts_again() {
    let mut host = host(&[H100, SOUND, SECOND]);
    let gpus = host.service();
    gpus.take(ONE, &card(), |_| false).await.unwrap();
    host.break_reset(H100.0);
    gpus.give_back(ONE).await.unwrap();
    assert_eq!(gpus.holders(), []);
    assert_eq!(host.driver(H100.0).as_deref(), Some("vfio-pci"), "the host's driver does not get a broken device");
    assert_eq!(host.driver(SOUND.0).as_deref(), Some("snd_hda_intel"), "what is well goes back");
    let why = |gpus: &Gpus| gpus.inventory()[0].unavailable.clone();
    // The next service knows of it, too.
    let told = why(&host.service()).unwrap_or_default();
    assert!(told.contains("its reset failed after a machine had it") && told.contains("restart the host"), "{told}");
    assert_eq!(gpus.inventory()[1].unavailable, None);
    assert!(gpus.take(ONE, &card(), |_| false).await.is_err());
    host.restart();
    assert_eq!(why(&host.service()), None);
}

#[tokio::test]
async fn machines_of_vms_and_of_sandboxes_are_told_apart() {
    let host = host(&[H100, SOUND, SECOND]);
    let vms = host.service();
    let sandboxes = vms.of_sandboxes();
    vms.take(ONE, &at(&[SECOND.0]), |_| false).await.unwrap();
    sandboxes.take(TWO, &card(), |_| false).await.unwrap();
    let next = host.service();
    assert_eq!((next.holders(), next.of_sandboxes().holders()), (vec![ONE], vec![TWO]));
    let refused = vms.take(ONE, &card(), |machine| machine == TWO).await.unwrap_err();
    assert_eq!(refused, EngineError::Transient("another machine still has a GPU of this one".into()));
    next.of_sandboxes().give_back(TWO).await.unwrap();
    assert_eq!((next.of_sandboxes().holders(), host.driver(H100.0).as_deref()), (vec![], Some("nvidia")));
}

#[tokio::test]
async fn a_note_of_another_boot_says_nothing() {
    let mut host = host(&[H100, SOUND]);
    let before = host.state();
    host.service().take(ONE, &card(), |_| false).await.unwrap();
    host.restart();
    let (gpus, writes) = (host.service(), host.writes());
    gpus.give_back(ONE).await.unwrap();
    assert_eq!((host.state(), gpus.holders(), host.writes()), (before, vec![], writes));
    // Half a note was left by a host that died.
    fs::write(host.places().sys.with_file_name("data").join(format!("gpus/{TWO}.json")), "{").unwrap();
    gpus.take(ONE, &card(), |_| true).await.unwrap();
    gpus.give_back(TWO).await.unwrap();
    assert_eq!(gpus.holders(), [ONE]);
}
