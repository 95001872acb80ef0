//! Random fleets, and machines that come and are put onto them one after the other.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::host::State;
use crate::host::gpu::{Device, Gpu, PciAddress};
use crate::ids::HostId;

/// A host with what it borrows.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    pub id: HostId,
    pub name: String,
    pub state: State,
    pub says: bool,
    pub regions: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub stores: Stores,
    pub vcpu: Option<i64>,
    pub memory_mb: i64,
    pub most_sandboxes: Option<i64>,
    pub promised: Promised,
    pub disk: Disk,
    pub gpus: Vec<Gpu>,
    pub held_gpus: BTreeSet<Device>,
    pub lacks: Option<&'static str>,
    pub at_hand: AtHand,
}

impl Owned {
    pub fn new(name: &str, id: u128) -> Self {
        Self {
            id: HostId(Uuid::from_u128(id)),
            name: name.to_owned(),
            state: State::Ready,
            says: true,
            regions: Vec::new(),
            labels: BTreeMap::new(),
            stores: Stores::new(),
            vcpu: None,
            memory_mb: 2048,
            most_sandboxes: None,
            promised: Promised::default(),
            disk: Disk::default(),
            gpus: Vec::new(),
            held_gpus: BTreeSet::new(),
            lacks: None,
            at_hand: AtHand::Nothing,
        }
    }

    pub fn with_gpus(mut self, count: u32) -> Self {
        self.gpus = (0..count).map(gpu).collect();
        self
    }

    pub fn host(&self) -> Host<'_> {
        Host {
            id: self.id,
            name: &self.name,
            state: self.state,
            says: self.says,
            regions: &self.regions,
            labels: &self.labels,
            stores: &self.stores,
            vcpu: self.vcpu,
            memory_mb: self.memory_mb,
            most_sandboxes: self.most_sandboxes,
            overcommit: Overcommit { vm: 1.0, sandbox: 4.0 },
            promised: self.promised,
            disk: self.disk,
            gpus: &self.gpus,
            held_gpus: &self.held_gpus,
            lacks: self.lacks,
            at_hand: self.at_hand,
        }
    }
}

/// A GPU in a group of its own.
fn gpu(number: u32) -> Gpu {
    let address: PciAddress = format!("0000:{number:02x}:00.0").parse().unwrap();
    Gpu {
        address,
        model: "example-9000".into(),
        name: "Example 9000".into(),
        ids: "ffff:0001".into(),
        group: Some(number),
        numa_node: None,
        functions: vec![address],
        driver: None,
        unavailable: None,
        part_of: None,
        kinds: Vec::new(),
        parts: Vec::new(),
    }
}

/// A small machine that wants nothing else.
pub(super) const fn wish(kind: Kind) -> Wish<'static> {
    Wish {
        kind,
        vcpu: 1,
        memory_mb: 256,
        most: 1,
        disk_gb: None,
        gpus: None,
        region: None,
        labels: None,
        needs: AtHand::Nothing,
        tied: None,
        on: None,
        store: None,
    }
}

fn state() -> impl Strategy<Value = State> {
    prop::sample::select(State::ALL)
}

fn at_hand() -> impl Strategy<Value = AtHand> {
    prop::sample::select(vec![AtHand::Nothing, AtHand::Image, AtHand::Layers, AtHand::Warm])
}

prop_compose! {
    fn host()(
        state in state(), at_hand in at_hand(), memory_mb in 0_i64..8192, vcpu in 0_i64..32, warm in 0_i64..2048,
        says in prop::bool::weighted(0.9), gpus in 0_u32..4, region in 0_u8..3, most in 0_i64..6, disk in 0_i64..100, is_full in any::<bool>(),
    ) -> Owned {
        let mut host = Owned::new("some", 0).with_gpus(gpus);
        (host.state, host.at_hand, host.memory_mb, host.vcpu) = (state, at_hand, memory_mb, Some(vcpu));
        host.says = says;
        host.promised.warm.memory_mb = warm;
        host.regions = vec![format!("r{region}")];
        host.most_sandboxes = Some(most);
        host.disk = Disk { is_full, sizes: Some((disk, 0)) };
        host
    }
}

fn fleet() -> impl Strategy<Value = Vec<Owned>> {
    prop::collection::vec(host(), 0..8).prop_map(|hosts| {
        hosts.into_iter().zip(1..).map(|(host, id)| Owned { id: HostId(Uuid::from_u128(id)), ..host }).collect()
    })
}

#[derive(Clone, Debug)]
struct Ask {
    is_vm: bool,
    vcpu: i64,
    memory_mb: i64,
    gpus: usize,
    region: Option<u8>,
    disk_gb: Option<i64>,
    needs: AtHand,
    tied: Option<u128>,
    on: Option<u128>,
    is_packed: bool,
}

prop_compose! {
    fn ask()(
        is_vm in any::<bool>(), vcpu in 1_i64..8, memory_mb in 1_i64..2048, gpus in 0_usize..3,
        region in prop::option::of(0_u8..3), disk_gb in prop::option::of(1_i64..60), needs in at_hand(), tied in prop::option::weighted(0.1, 1_u128..9),
        on in prop::option::weighted(0.2, 1_u128..9), is_packed in any::<bool>(),
    ) -> Ask {
        Ask { is_vm, vcpu, memory_mb, gpus, region, disk_gb, needs, tied, on, is_packed }
    }
}

/// What the filters promise of a host that was chosen.
fn suits(ask: &Ask, host: &Owned) {
    assert!(host.state != State::Joining && host.says, "{ask:?} {host:?}");
    if let Some(on) = ask.on {
        assert_eq!(host.id.0.as_u128(), on, "a machine stays where its disk is");
        return;
    }
    assert_eq!(host.state, State::Ready, "{ask:?} {host:?}");
    assert!(host.at_hand >= ask.needs, "{ask:?} {host:?}");
    assert!(ask.tied.is_none_or(|tied| host.id.0.as_u128() == tied), "{ask:?} {host:?}");
    assert!(ask.region.is_none_or(|region| host.regions == [format!("r{region}")]), "{ask:?} {host:?}");
}

/// Takes what was placed from its host, and checks that it had it.
fn take(ask: &Ask, placed: &Placed, host: &mut Owned) {
    suits(ask, host);
    for device in &placed.devices {
        assert!(host.held_gpus.insert(device.clone()), "{device} has two machines");
    }
    let promised = &mut host.promised;
    let of = if ask.is_vm { &mut promised.vms } else { &mut promised.sandboxes };
    (of.machines, of.vcpu, of.memory_mb) = (of.machines + 1, of.vcpu + ask.vcpu, of.memory_mb + ask.memory_mb);
    if let (Some(gb), Some((offered, placed))) = (ask.disk_gb, &mut host.disk.sizes) {
        assert!(!host.disk.is_full, "{ask:?}");
        *placed += gb;
        assert!(placed <= offered, "{ask:?} {host:?}");
    }
    if !ask.is_vm {
        assert!(promised.sandboxes.machines <= host.most_sandboxes.unwrap_or(i64::MAX), "{ask:?} {host:?}");
    }
    assert!(promised.vms.vcpu <= host.vcpu.unwrap_or(i64::MAX), "{ask:?} {host:?}");
    if placed.room == Room::Instead {
        promised.warm = Sum::default();
    }
    // What VMs have counts once, what sandboxes have is promised four times; a host's own MiB are those of VMs.
    let sandboxes = promised.sandboxes.memory_mb + promised.warm.memory_mb;
    let found = promised.vms.memory_mb + (sandboxes + 3) / 4;
    assert!(found <= host.memory_mb, "{ask:?} {host:?}");
}

proptest! {
    #[test]
    fn no_host_is_promised_more_than_it_has_and_none_what_it_refuses(
        mut fleet in fleet(), asks in prop::collection::vec(ask(), 0..40),
    ) {
        for host in &mut fleet {
            // Warm machines had room when they began.
            host.promised.warm.memory_mb = host.promised.warm.memory_mb.min(host.memory_mb);
        }
        for ask in asks {
            let (kind, region) = (if ask.is_vm { Kind::Vm } else { Kind::Sandbox }, ask.region.map(|r| format!("r{r}")));
            let gpus = (ask.gpus > 0).then_some(WishedGpus { model: "example-9000", count: ask.gpus });
            let wish = Wish {
                vcpu: ask.vcpu, memory_mb: ask.memory_mb, region: region.as_deref(), gpus, disk_gb: ask.disk_gb,
                needs: ask.needs, tied: ask.tied.map(|id| HostId(Uuid::from_u128(id))), on: ask.on.map(|id| HostId(Uuid::from_u128(id))), ..wish(kind)
            };
            let hosts: Vec<_> = fleet.iter().map(|host| {
                // Memory is offered to each kind as often as it is promised to it.
                let own = host.host();
                Host { memory_mb: if ask.is_vm { host.memory_mb } else { host.memory_mb * 4 }, ..own }
            }).collect();
            let policy = if ask.is_packed { Policy::Pack } else { Policy::Spread };
            let placed = place(&wish, &hosts, policy, Uuid::nil);
            let mut turned = hosts.clone();
            turned.reverse();
            prop_assert_eq!(&place(&wish, &turned, policy, Uuid::nil), &placed, "the order of hosts says nothing");
            match placed {
                Ok(placed) => {
                    prop_assert_eq!(placed.devices.len(), ask.gpus);
                    let at = fleet.iter().position(|host| host.id == placed.host).expect("one of the fleet");
                    take(&ask, &placed, &mut fleet[at]);
                }
                Err(refused) => {
                    prop_assert_eq!(refused.hosts.len() + refused.others, fleet.len());
                    prop_assert!(refused.for_owner().split_whitespace().all(|word| word != "some"));
                }
            }
        }
    }

    /// A machine that one host alone can take goes there: no host that passes is passed over.
    #[test]
    fn a_host_that_could_take_it_alone_does_so_in_any_fleet(mut fleet in fleet(), memory_mb in 1_i64..512) {
        let wish = Wish { memory_mb, ..wish(Kind::Vm) };
        for host in &mut fleet {
            host.promised.vms.memory_mb = host.memory_mb;
        }
        prop_assert!(place(&wish, &fleet.iter().map(Owned::host).collect::<Vec<_>>(), Policy::Spread, Uuid::nil).is_err());
        let free = Owned { vcpu: Some(1), memory_mb, ..Owned::new("free", 99) };
        fleet.push(free);
        let hosts: Vec<_> = fleet.iter().map(Owned::host).collect();
        let placed = place(&wish, &hosts, Policy::Pack, Uuid::nil);
        prop_assert_eq!(placed.map(|placed| placed.host), Ok(HostId(Uuid::from_u128(99))));
    }
}
