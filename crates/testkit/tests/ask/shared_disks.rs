//! Scenarios of disks that several hosts reach.

use berth_domain::ids::{DiskId, DiskSnapshotId, MachineId};
use berth_host::EngineError;
use berth_host::vm::{Aim, DataDisk, DiskSnapshotSpec, DiskSource, DiskSpec, ExportSource, MachineSpec, Store};

use crate::vms::spec;
use crate::way::{Way, id};

fn store() -> Store {
    Store {
        name: "pool-a".into(),
        monitors: vec!["10.0.0.1:3300".into(), "[2001:db8::1]:3300".into()],
        pool: "rbd".into(),
        user: "berth".into(),
        key: "AQAAAAAAAAAAABAAAAECAwQFBgcICQoLDA0ODw==".to_owned().try_into().expect("a key"),
    }
}

/// What is answered of disks that lie in a store, in order.
pub async fn shared_disks(way: &Way) -> Vec<String> {
    let (mut said, vm, store) = (Vec::new(), &way.vm, store());
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    way.vms.refuse("reach_store", EngineError::Permanent("install ceph-common".into()));
    // Each simulated host has an address of its own.
    let reach = async || vm.reach_store(&store).await.map(|reached| reached.addresses.len());
    note!(reach().await);
    way.vms.allow("reach_store");
    let root = DiskSpec { id: DiskId(id(90)), source: DiskSource::Image("micro".into()), size_gb: 20 };
    let data = DiskSpec { id: DiskId(id(91)), source: DiskSource::Filesystem("data".into()), size_gb: 1 };
    let gpus = Vec::new();
    let data_disks = vec![DataDisk { id: data.id, mount: Some("/mnt/data".into()) }];
    let machine = MachineSpec {
        id: MachineId(id(92)),
        root_disk: root.id,
        gpus,
        data_disks,
        store: Some(store.clone()),
        ..spec()
    };
    note!(reach().await, vm.start(&machine).await);
    for disk in [&root, &data] {
        note!(vm.make_shared_disk(disk, &store).await, vm.make_shared_disk(disk, &store).await);
    }
    note!(vm.grow_shared_disk(root.id, 30, &store).await, vm.grow_shared_disk(root.id, 25, &store).await);
    assert_eq!(way.vms.shared_disk_gb(&root.id.to_string()), Some(30));
    note!(vm.start(&machine).await);
    assert_eq!(way.vms.spec(&machine.id.to_string()), Some(machine.clone()), "it is started as it was asked for");
    let another = DiskSpec { id: DiskId(id(93)), source: DiskSource::Empty, size_gb: 2 };
    let has = || way.vms.spec(&machine.id.to_string()).expect("a machine").data_disks.len();
    note!(vm.attach_shared_disk(machine.aim(), another.id, &store).await, vm.make_shared_disk(&another, &store).await);
    note!(vm.attach_shared_disk(machine.aim(), another.id, &store).await);
    note!(vm.attach_shared_disk(machine.aim(), another.id, &store).await);
    assert_eq!(has(), 2);
    note!(vm.detach_disk(machine.aim(), another.id).await);
    assert_eq!(has(), 1);
    note!(vm.power_off(machine.aim()).await, vm.discard(machine.aim()).await);
    for disk in [&root, &data, &another, &root] {
        note!(vm.remove_shared_disk(disk.id, &store).await);
    }
    note!(vm.grow_shared_disk(root.id, 40, &store).await);
    said
}

/// What is answered about snapshots of disks that lie in a store, in order.
pub async fn shared_snapshots(way: &Way) -> Vec<String> {
    let (mut said, vm, store) = (Vec::new(), &way.vm, store());
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    let disk = DiskSpec { id: DiskId(id(94)), source: DiskSource::Empty, size_gb: 20 };
    let data_disks = vec![DataDisk { id: disk.id, mount: None }];
    let root = DiskSpec { id: DiskId(id(95)), ..disk.clone() };
    for disk in [&disk, &root] {
        vm.make_shared_disk(disk, &store).await.expect("a disk");
    }
    let (id_of, gpus, in_store) = (MachineId(id(96)), Vec::new(), Some(store.clone()));
    let machine = MachineSpec { id: id_of, root_disk: root.id, data_disks, gpus, store: in_store, ..spec() };
    vm.start(&machine).await.expect("a start");
    let (aim, older) = (Some(machine.aim()), Some(Aim::of(machine.id, 2)));
    let [kept, copy] = [97, 98].map(|n| DiskSnapshotSpec { id: DiskSnapshotId(id(n)), disk: disk.id });
    note!(vm.snapshot_shared_disk(&kept, aim, &store).await, vm.snapshot_shared_disk(&kept, None, &store).await);
    note!(vm.copy_shared_disk(&copy, aim, &store).await, vm.copy_shared_disk(&copy, None, &store).await);
    assert_eq!((way.vms.shared_snapshots(), vm.scan().await.expect("a search").snapshots), (1, vec![copy.id]));
    assert_eq!(vm.snapshot_shared_disk(&kept, older, &store).await, Err(EngineError::Outdated(3)));
    assert_eq!(vm.copy_shared_disk(&copy, older, &store).await, Err(EngineError::Outdated(3)));
    note!(vm.export(&ExportSource::Snapshot(copy.id)).await);
    let of = |id| DiskSource::Snapshot { id, is_root: false };
    let restored = DiskSpec { id: DiskId(id(99)), source: of(kept.id), size_gb: 30 };
    note!(vm.make_shared_disk(&restored, &store).await, vm.restore_shared_disk(&disk, &store).await);
    note!(vm.restore_shared_disk(&restored, &store).await, vm.restore_shared_disk(&restored, &store).await);
    assert_eq!(way.vms.shared_disk_gb(&restored.id.to_string()), Some(30));
    let of_none = DiskSpec { id: DiskId(id(100)), source: of(copy.id), size_gb: 30 };
    note!(vm.restore_shared_disk(&of_none, &store).await);
    for snapshot in [&kept, &copy, &kept] {
        note!(vm.remove_shared_snapshot(snapshot, &store).await);
    }
    assert_eq!((way.vms.shared_snapshots(), way.vms.snapshots()), (0, (0, 0)));
    note!(vm.power_off(machine.aim()).await, vm.discard(machine.aim()).await);
    for disk in [&disk, &root, &restored] {
        note!(vm.remove_shared_disk(disk.id, &store).await);
    }
    note!(vm.snapshot_shared_disk(&kept, None, &store).await, vm.copy_shared_disk(&copy, None, &store).await);
    said
}
