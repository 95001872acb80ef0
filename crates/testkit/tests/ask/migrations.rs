//! Machines of VMs that go from one host to another while they run.

use berth_domain::ids::{DiskId, MachineId};
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_host::vm::{Channel, Likeness, MachineSpec};
use tokio::io::AsyncReadExt;

use crate::vms::spec;
use crate::way::{Way, id};

/// A machine that can go.
fn plain(number: u128) -> MachineSpec {
    let spec = spec();
    MachineSpec { id: MachineId(id(number)), gpus: Vec::new(), networks: Vec::new(), rescue: None, ..spec }
}

/// What is answered where a machine of a host becomes another one of the same, in order.
pub async fn migrations(way: &Way) -> Vec<String> {
    let (vm, from, to) = (&way.vm, plain(60), plain(61));
    let early = vm.likeness(&from).await;
    assert!(matches!(early, Err(EngineError::Transient(_))), "{early:?}");
    vm.start(&from).await.expect("a start");
    let likeness = vm.likeness(&from).await.expect("what it is like");
    let mut said = vec![format!("{likeness:?} {:?}", vm.likeness(&plain(62)).await)];
    let other = Likeness { processor: "another one".into(), ..likeness.clone() };
    said.push(format!("{:?} {:?}", vm.expect_machine(&to, &other).await, vm.expect_machine(&from, &likeness).await));
    said.push(format!("{:?}", vm.expect_machine(&to, &likeness).await));
    said.push(format!("{:?} {:?}", vm.observe(to.id).await, vm.hand_over(from.aim()).await));
    for channel in [Channel::Disk(DiskId(id(2))), Channel::Disk(DiskId(id(3))), Channel::Memory] {
        if channel == Channel::Memory {
            said.push(format!("{:?}", vm.mirrored(from.aim()).await));
        }
        let mut into = vm.fill_machine(to.aim(), channel).await.expect("a way");
        let mut out = vm.send_machine(from.aim(), channel).await.expect("a way");
        tokio::io::copy_bidirectional(&mut out, &mut into).await.expect("all of it");
        assert_eq!(out.read(&mut [0]).await.expect("an end"), 0);
    }
    said.push(format!("{:?} {:?}", vm.hand_over(from.aim()).await, vm.taken(to.aim()).await));
    assert_eq!((vm.observe(from.id).await, vm.observe(to.id).await), (Ok(Machine::Paused), Ok(Machine::Paused)));
    said.push(format!("{:?} {:?}", vm.resume(to.aim()).await, vm.observe(to.id).await));
    said.push(format!("{:?} {:?}", vm.call_off(from.aim()).await, vm.observe(from.id).await));
    for machine in [&from, &to] {
        vm.power_off(machine.aim()).await.expect("an end");
        vm.discard(machine.aim()).await.expect("an end");
    }
    said
}
