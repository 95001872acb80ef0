//! Scenarios of disks that several hosts reach.

use berth_domain::ids::{DiskId, MachineId};
use berth_host::EngineError;
use berth_host::vm::{DataDisk, DiskSource, DiskSpec, MachineSpec, Store};

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
