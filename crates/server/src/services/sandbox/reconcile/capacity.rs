//! Onto which host machines of sandboxes and templates go; sums over rows are the only counters.

use berth_domain::host::gpu::Gpu;
use berth_domain::host::overcommit::offered_mb;
use berth_domain::host::placement::{AtHand, Disk, Kind, Placed, Wish, WishedGpus};
use berth_domain::ids::HostId;
use berth_host::sandbox::Capacity;

use crate::db::{DbError, Tx};
use crate::services::placement::{self, Now, Refusal};
use crate::services::sandbox::Sandboxes;

/// What is to be put onto a host.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// Virtual CPUs and MiB of each machine.
    pub size: (i64, i64),
    /// So many machines, or as many as there is memory for.
    pub most: i64,
    /// Whether a disk is still to be made, for which the host needs room.
    pub makes_disk: bool,
    /// Whether it is a sandbox, of which a host takes so many.
    pub is_sandbox: bool,
    /// The host that it is on already.
    pub on: Option<HostId>,
    /// GPUs that it is to have, and those of the service's own host.
    pub gpus: Option<(WishedGpus<'a>, &'a [Gpu])>,
}

impl Asked<'_> {
    /// Machines of a size that work for a template, or wait for an owner.
    pub const fn machines(size: (i64, i64), most: i64) -> Self {
        Self { size, most, makes_disk: false, is_sandbox: false, on: None, gpus: None }
    }
}

/// The host for machines, or why none takes them.
pub(super) async fn place(
    tx: &mut Tx,
    sandboxes: &Sandboxes,
    capacity: Capacity,
    asked: Asked<'_>,
) -> Result<Result<Placed, Refusal>, DbError> {
    let (vcpu, memory_mb) = asked.size;
    let overcommit = sandboxes.overcommit();
    let wish = Wish {
        kind: Kind::Sandbox,
        vcpu,
        memory_mb,
        most: asked.most,
        // Layers grow as they are written, and are counted by what is free.
        disk_gb: asked.makes_disk.then_some(0),
        gpus: asked.gpus.map(|(wished, _)| wished),
        region: None,
        labels: None,
        needs: AtHand::Layers,
        tied: None,
        on: asked.on,
    };
    let now = Now {
        vcpu: None,
        memory_mb: offered_mb(capacity.memory_mb, overcommit.sandbox),
        most_sandboxes: asked.is_sandbox.then(|| sandboxes.config().max_sandboxes),
        disk: Disk { is_full: !capacity.has_room(0), sizes: None },
        gpus: asked.gpus.map_or(&[], |(_, found)| found),
        lacks_network: None,
        at_hand: AtHand::Layers,
    };
    // Layers are on the service's own host.
    let own = sandboxes.host();
    placement::place(tx, own, &wish, &[(own, now)].into(), overcommit).await
}
