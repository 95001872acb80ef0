//! Onto which host a VM goes, and what a host lacks for its disks; sums over rows are the only counters.
//!
//! A disk counts from when it has its place: a worker is to make it by itself, or its VM has reserved. One that merely was
//! asked for takes nothing from anybody, so that a wish that the host cannot hold fails alone.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use berth_domain::host::gpu::Gpu;
use berth_domain::host::placement::{AtHand, Disk, Kind, Placed, Wish, WishedGpus};
use berth_domain::ids::HostId;
use berth_domain::vm::{DiskKind, DiskStatus};
use berth_host::EngineError;
use berth_host::vm::{Capacity, Engine};
use futures::future::try_join_all;

use crate::db::{DbError, Tx, network};
use crate::services::placement::{Now, Refusal, Sought, Standings};
use crate::services::vm::Vms;
use crate::services::vm::reconcile::StepError;
use crate::services::vm::store;
use crate::services::vm::store::disk::DiskRow;
use crate::services::vm::store::vm::VmRow;

/// How many hosts may lack room for disks before those of all are summed.
const FEW: usize = 8;
/// Seconds until a host that does not say what it has is left out. The service's own is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a host has at this moment for a VM.
pub(super) struct Offer {
    /// What it has in all.
    capacity: Capacity,
    /// Its GPUs, where the VM is to have some.
    gpus: Vec<Gpu>,
    /// Whether it has the VM's image, if it is of the platform.
    has_image: bool,
    /// What it lacks of addresses and ports, or of what the machine is like, as a sentence.
    pub lacks: Option<String>,
}

impl Offer {
    /// The same for who places the VM, who is to have room for disks there or not. What disks there are is not summed yet.
    fn now(&self, makes_disks: bool) -> Now<'_> {
        let capacity = self.capacity;
        Now {
            vcpu: Some(capacity.vcpu),
            memory_mb: capacity.memory_mb,
            most_sandboxes: None,
            disk: Disk { is_full: makes_disks && !capacity.disk_free, sizes: None },
            gpus: &self.gpus,
            lacks: self.lacks.as_deref(),
            at_hand: if self.has_image { AtHand::Image } else { AtHand::Nothing },
        }
    }
}

/// What hosts have at this moment. Those that do not say are not among them.
pub(super) type Offers = HashMap<HostId, Offer>;

/// The host that a VM goes away from: its root disk is still there. None where it stays on its host, or has none yet.
pub(super) fn goes_from(vm: &VmRow, disks: &[DiskRow]) -> Option<HostId> {
    let is_left_behind = |disk: &&DiskRow| disk.kind == DiskKind::Root && disk.is_elsewhere(vm.machine.host);
    let behind = disks.iter().find(is_left_behind).and_then(|disk| disk.host);
    behind.or_else(|| vm.machine.host.filter(|_| vm.leaves))
}

/// The host that a VM stays on.
fn stays_on(vm: &VmRow, disks: &[DiskRow]) -> Option<HostId> {
    vm.machine.host.filter(|_| goes_from(vm, disks).is_none())
}

/// The store that a VM's disks lie in; none where they lie on its host.
pub(super) fn store(disks: &[DiskRow]) -> Option<&str> {
    disks.iter().find_map(|disk| disk.store.as_deref())
}

/// The hosts that are asked what they have for a VM, in turns: only the one that it stays on; all at once for one that leaves
/// its host.
pub(super) async fn turns(vms: &Vms, vm: &VmRow, disks: &[DiskRow]) -> Result<Vec<Vec<HostId>>, DbError> {
    if let Some(host) = stays_on(vm, disks) {
        return Ok(vec![vec![host]]);
    }
    let all = vms.fleet().ids();
    if goes_from(vm, disks).is_some() {
        return Ok(vec![all]);
    }
    let gpus = gpus(vm, vms).ok().flatten();
    let gpu_model = gpus.map(|gpus| gpus.model);
    let sought = Sought { region: &vm.region_id, memory_mb: vm.memory_mb, gpu_model };
    vms.estimates().turns(vms.db(), all, sought, vms.overcommit()).await
}

/// Asks hosts at once what they have for a VM.
///
/// # Errors
/// The service's own host is among them and does not answer, or the one that it stays on.
pub(super) async fn offers(vms: &Vms, vm: &VmRow, disks: &[DiskRow], hosts: &[HostId]) -> Result<Offers, EngineError> {
    let waited_for = stays_on(vm, disks).unwrap_or_else(|| vms.host());
    let asked = hosts.iter().map(async |&host| {
        // Whether its files are whole the service's own host finds out when it clones the image. A disk that comes boots
        // with them, and is cloned from none.
        let is_taken_on_trust = host == vms.host() && goes_from(vm, disks).is_none();
        let offered = async {
            let engines = vms.fleet().of(host)?;
            offer(&*engines.vm, vm, (host == vms.host(), is_taken_on_trust)).await
        };
        if host == waited_for {
            return Ok(Some((host, offered.await?)));
        }
        let said = tokio::time::timeout(PATIENCE, offered).await;
        let offer = said.ok().and_then(|said| {
            said.inspect_err(|error| tracing::debug!(%host, %error, "a host does not say what it has")).ok()
        });
        Ok(offer.map(|offer| (host, offer)))
    });
    Ok(try_join_all(asked).await?.into_iter().flatten().collect())
}

/// Asks all hosts that a VM could be on what they have for it.
///
/// # Errors
/// As [`offers`], and a database that does not answer.
pub(super) async fn all_offers(vms: &Vms, vm: &VmRow, disks: &[DiskRow]) -> Result<Offers, StepError> {
    let hosts = turns(vms, vm, disks).await?.concat();
    Ok(offers(vms, vm, disks, &hosts).await?)
}

async fn offer(
    engine: &dyn Engine,
    vm: &VmRow,
    (is_own, is_taken_on_trust): (bool, bool),
) -> Result<Offer, EngineError> {
    if !is_own {
        // What keeps it from running machines is in its row.
        engine.ready().map_err(EngineError::Transient)?;
    }
    let capacity = engine.capacity().await?;
    let gpus = if vm.gpu_config_count > 0 { engine.gpus().await? } else { Vec::new() };
    let has_image = is_taken_on_trust || engine.image(&vm.image_id).await?.is_some();
    Ok(Offer { capacity, gpus, has_image, lacks: None })
}

/// Which hosts are read that a VM is put onto.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// Those that were asked what they have: who hears that none of them takes it asks others, or decides anew.
    Asked,
    /// All, each of which is told of where none takes it.
    All,
}

/// The host for a VM and for those of its disks that are not made yet, or why none takes it.
pub(super) async fn place(
    tx: &mut Tx,
    vm: &VmRow,
    offers: &Offers,
    (vms, among): (&Vms, Among),
) -> Result<Result<Placed, Refusal>, DbError> {
    let gpus = match gpus(vm, vms) {
        Ok(gpus) => gpus,
        Err(missing) => return Ok(Err(Refusal::everywhere(missing))),
    };
    let disks = store::disk::of_vm(&mut *tx, vm.id).await?;
    let (goes_from, stays_on) = (goes_from(vm, &disks), stays_on(vm, &disks));
    let begins = match begins(tx, vm, &disks, goes_from).await? {
        Ok(begins) => begins,
        Err(apart) => return Ok(Err(Refusal::everywhere(apart.into()))),
    };
    let unmade = disks.iter().filter(|disk| is_unmade(disk)).map(|disk| disk.extent.wanted_gb);
    // The disks of one that goes from host to host follow it.
    let follow: Vec<_> = disks.iter().filter(|disk| goes_from.is_some() && follows(disk)).collect();
    let wanted = unmade.chain(follow.iter().map(|disk| disk.extent.placed_gb)).sum::<i64>();
    let disk_gb = Some(wanted).filter(|wanted| *wanted > 0);
    let wish = Wish {
        kind: Kind::Vm,
        vcpu: vm.vcpu,
        memory_mb: vm.memory_mb,
        most: 1,
        disk_gb,
        gpus,
        region: Some(&vm.region_id),
        labels: None,
        needs: begins.needs,
        tied: begins.tied,
        on: stays_on,
        store: store(&disks),
    };
    // What is there by now, or has its place there, is counted already.
    let counted = |host: HostId| {
        let is_counted = |disk: &&&DiskRow| disk.host == Some(host) || disk.has_place_on(host, vm.machine.host);
        follow.iter().filter(is_counted).map(|disk| disk.extent.placed_gb).sum::<i64>()
    };
    let mut now: HashMap<_, _> =
        offers.iter().map(|(host, offer)| (*host, offer.now(wanted > counted(*host)))).collect();
    let (own, with_gpus) = (vms.host(), wish.gpus.is_some());
    let standings = match among {
        Among::Asked => Standings::of(&mut *tx, own, offers.keys().copied(), with_gpus).await?,
        Among::All => Standings::all(&mut *tx, own, with_gpus).await?,
    };
    let mut tries = 0;
    loop {
        let placed = standings.place(&wish, &now, vms.overcommit());
        // The disks of a host are summed where it would be the one; those of all hosts after a few that lack room.
        let Ok(host) = placed.as_ref().map(|placed| placed.host) else { return Ok(placed) };
        let is_summed = |host: &HostId| now.get(host).is_none_or(|now| now.disk.sizes.is_some());
        if wanted <= counted(host) || is_summed(&host) {
            return Ok(placed);
        }
        let others = offers.keys().copied().filter(|host| !is_summed(host) && wanted > counted(*host));
        let summed: Vec<_> = if tries < FEW { vec![host] } else { others.collect() };
        for host in summed {
            let (Some(offer), Some(standing)) = (offers.get(&host), now.get_mut(&host)) else { continue };
            let disk = disk_of(&mut *tx, host, offer.capacity).await?;
            let sizes = disk.sizes.map(|(offered, placed)| (offered, placed - counted(host)));
            standing.disk = Disk { sizes, ..disk };
        }
        tries += 1;
    }
}

/// Whether a disk takes room of its VM's host once it is made: what lies in a store takes nothing of one.
fn is_unmade(disk: &DiskRow) -> bool {
    disk.status == DiskStatus::Pending && disk.store.is_none()
}

/// Whether a disk goes where its VM goes: it is there, or is made anew where that is. One in a store is everywhere already.
const fn follows(disk: &DiskRow) -> bool {
    matches!(disk.status, DiskStatus::Ready | DiskStatus::Provisioning) && disk.store.is_none()
}

/// What keeps a VM's disks from being sent, as a sentence: a copy of each is made on the host that they leave, and passes
/// through the service's own.
pub(super) fn unsendable(vms: &Vms, offers: &Offers, from: HostId) -> Option<&'static str> {
    let is_full = |host: &HostId| offers.get(host).is_some_and(|offer| !offer.capacity.disk_free);
    if is_full(&from) {
        return Some("the disk of its host has no room for copies of its disks");
    }
    is_full(&vms.host()).then_some("the disk of the service has no room for what is brought from host to host")
}

/// What a VM begins with.
struct Begins {
    /// The host that has it, where one has it already.
    tied: Option<HostId>,
    /// What else its host has to have.
    needs: AtHand,
}

/// What a VM begins with, or why nothing can have all of it.
async fn begins(
    tx: &mut Tx,
    vm: &VmRow,
    disks: &[DiskRow],
    goes_from: Option<HostId>,
) -> Result<Result<Begins, &'static str>, DbError> {
    if vm.machine.host.is_some() && goes_from.is_none() {
        // It stays where it is.
        return Ok(Ok(Begins { tied: None, needs: AtHand::Nothing }));
    }
    let (mut hosts, mut needs) = (BTreeSet::new(), AtHand::Nothing);
    for disk in disks {
        if disk.status == DiskStatus::Ready && (disk.kind == DiskKind::Data || disk.store.is_some()) {
            // It is brought to wherever the VM goes, or is there already.
            continue;
        }
        // The root disk of a VM that goes from host to host is brought, too, and boots with its image there.
        let host = disk.host.filter(|_| goes_from.is_none());
        let snapshot = disk.snapshot.filter(|_| disk.status != DiskStatus::Ready);
        match (host, snapshot, &disk.image_id) {
            (Some(host), ..) => drop(hosts.insert(host.0)),
            (None, Some(snapshot), _) => {
                let snapshot = store::disk_snapshot::load(&mut *tx, snapshot).await?;
                hosts.extend(snapshot.and_then(|snapshot| snapshot.host).map(|host| host.0));
            }
            (None, None, Some(image)) => match image.parse() {
                Ok(image) => {
                    let image = store::project_image::load(&mut *tx, image).await?;
                    hosts.extend(image.and_then(|image| image.host).map(|host| host.0));
                }
                Err(_) => needs = AtHand::Image,
            },
            (None, None, None) => {}
        }
    }
    for network in &vm.networks {
        let others = network::hosts(&mut *tx, network.id, vm.machine.id, goes_from).await?;
        hosts.extend(others.into_iter().map(|host| host.0));
    }
    if hosts.len() > 1 {
        return Ok(Err("its disks, and the other machines of its networks, are on different hosts"));
    }
    Ok(Ok(Begins { tied: hosts.pop_first().map(HostId), needs }))
}

/// What a VM is to have of GPUs, or why it cannot be said any more.
fn gpus<'a>(vm: &VmRow, vms: &'a Vms) -> Result<Option<WishedGpus<'a>>, String> {
    let Some(count) = usize::try_from(vm.gpu_config_count).ok().filter(|count| *count > 0) else {
        return Ok(None);
    };
    match vms.catalog().vm_config(&vm.vm_config_id).and_then(|config| config.gpu_model.as_deref()) {
        Some(model) => Ok(Some(WishedGpus { model, count })),
        None => Err(format!("this region has no GPUs for the size {} any more", vm.vm_config_id)),
    }
}

/// What a host lacks for so many GiB of disks and snapshots that are not made yet. Disks that are there fit, whatever is said of the
/// host by now.
pub(super) async fn shortage_of_disk(
    tx: &mut Tx,
    host: HostId,
    unmade_gb: i64,
    capacity: Capacity,
) -> Result<Option<String>, DbError> {
    if unmade_gb == 0 {
        return Ok(None);
    }
    let disk = disk_of(tx, host, capacity).await?;
    Ok(disk.lacks(Kind::Vm, unmade_gb).map(|why| why.for_owner()))
}

/// What a host lacks for a disk that has its place there.
pub(super) fn fullness(capacity: Capacity) -> Option<String> {
    let disk = Disk { is_full: !capacity.disk_free, sizes: None };
    disk.lacks(Kind::Vm, 0).map(|why| why.for_owner())
}

/// What there is of a host's disk.
async fn disk_of(tx: &mut Tx, host: HostId, capacity: Capacity) -> Result<Disk, DbError> {
    let placed = store::disk::placed_gb(&mut *tx, host).await?
        + store::disk_snapshot::placed_gb(&mut *tx, host).await?
        + store::project_image::placed_gb(&mut *tx, host).await?;
    Ok(Disk { is_full: !capacity.disk_free, sizes: Some((capacity.disk_gb, placed)) })
}
