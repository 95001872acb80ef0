//! Onto which host machines of sandboxes and templates go; sums over rows are the only counters.
//!
//! What a machine begins with lies on one host, and ties the machine to it, unless that are layers that may be brought to
//! others. What begins with nothing, a template that is built of an image, goes where there is room.

use std::collections::HashMap;
use std::time::Duration;

use berth_domain::host::gpu::Gpu;
use berth_domain::host::overcommit::offered_mb;
use berth_domain::host::placement::{AtHand, Disk, Kind, Placed, Wish, WishedGpus};
use berth_domain::ids::HostId;
use berth_domain::sandbox::layer_copy::{Lying, lacking_bytes};
use berth_host::EngineError;
use berth_host::sandbox::{Capacity, SandboxEngine};
use futures::future::{join, join_all};

use crate::db::{DbError, Tx};
use crate::services::placement::{Now, Refusal, Standings};
use crate::services::sandbox::Sandboxes;

/// How long a host may take to say what it has. The service's own is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a host has at this moment for machines of sandboxes.
#[derive(Clone)]
pub(super) struct Offer {
    /// What it has in all.
    pub capacity: Capacity,
    /// Its GPUs, where some are wished.
    gpus: Vec<Gpu>,
}

/// What hosts have at this moment. Those that do not say are not among them.
pub(super) type Offers = HashMap<HostId, Offer>;

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
    /// The host that has what it begins with.
    pub tied: Option<HostId>,
    /// The host that it is on already.
    pub on: Option<HostId>,
    /// GPUs that it is to have.
    pub gpus: Option<WishedGpus<'a>>,
    /// The layers that it begins with, where those may be brought to any host.
    pub ground: Option<&'a [Lying]>,
}

impl Asked<'_> {
    /// Machines of a size that work for a template, or wait for an owner.
    pub const fn machines(size: (i64, i64), most: i64) -> Self {
        Self { size, most, makes_disk: false, is_sandbox: false, tied: None, on: None, gpus: None, ground: None }
    }
}

/// Asks the one host that machines can be on what it has.
///
/// # Errors
/// It cannot be asked now.
pub(super) async fn offer(sandboxes: &Sandboxes, host: HostId, with_gpus: bool) -> Result<Offers, EngineError> {
    let engine = sandboxes.engine_of(Some(host))?;
    Ok([(host, said(&*engine, with_gpus).await?)].into())
}

/// Asks all hosts at once what they have for machines that begin with nothing.
///
/// # Errors
/// The service's own host does not answer.
pub(super) async fn offers(sandboxes: &Sandboxes, with_gpus: bool) -> Result<Offers, EngineError> {
    let mut offers = offer(sandboxes, sandboxes.host(), with_gpus).await?;
    let others = sandboxes.fleet().ids().into_iter().filter(|host| *host != sandboxes.host());
    offers.extend(said_by(sandboxes, others, with_gpus).await);
    Ok(offers)
}

/// Asks the hosts at once that have what machines begin with, the first of which is its home.
///
/// # Errors
/// None of them answers.
pub(super) async fn offers_of(sandboxes: &Sandboxes, hosts: &[HostId], with_gpus: bool) -> Result<Offers, EngineError> {
    let home = hosts.first().copied().unwrap_or_else(|| sandboxes.host());
    let others = hosts.iter().copied().skip(1);
    let (home, mut offers) = join(offer(sandboxes, home, with_gpus), said_by(sandboxes, others, with_gpus)).await;
    match home {
        Ok(home) => offers.extend(home),
        Err(error) if offers.is_empty() => return Err(error),
        Err(error) => tracing::debug!(%error, "a host does not say what it has"),
    }
    Ok(offers)
}

/// What other hosts say.
async fn said_by(sandboxes: &Sandboxes, hosts: impl Iterator<Item = HostId>, with_gpus: bool) -> Offers {
    let asked = hosts.map(async |host| {
        let engine = sandboxes.engine_of(Some(host)).ok()?;
        // What keeps it from running machines is in its row.
        engine.ready().ok()?;
        let offer = said(&*engine, with_gpus).await;
        let offer = offer.inspect_err(|error| tracing::debug!(%host, %error, "a host does not say what it has"));
        Some((host, offer.ok()?))
    });
    join_all(asked).await.into_iter().flatten().collect()
}

/// What a host says within seconds.
async fn said(engine: &dyn SandboxEngine, with_gpus: bool) -> Result<Offer, EngineError> {
    let said = async {
        let capacity = engine.capacity().await?;
        let gpus = if with_gpus { engine.gpus().await? } else { Vec::new() };
        Ok(Offer { capacity, gpus })
    };
    let late = || EngineError::Transient("the host does not say what it has".into());
    tokio::time::timeout(PATIENCE, said).await.unwrap_or_else(|_| Err(late()))
}

/// The host for machines, or why none takes them.
pub(super) async fn place(
    tx: &mut Tx,
    sandboxes: &Sandboxes,
    offers: &Offers,
    asked: Asked<'_>,
) -> Result<Result<Placed, Refusal>, DbError> {
    let ((vcpu, memory_mb), overcommit, own) = (asked.size, sandboxes.overcommit(), sandboxes.host());
    let is_tied = asked.tied.or(asked.on).is_some();
    let wish = Wish {
        kind: Kind::Sandbox,
        vcpu,
        memory_mb,
        most: asked.most,
        // Layers grow as they are written, and are counted by what is free.
        disk_gb: asked.makes_disk.then_some(0),
        gpus: asked.gpus,
        region: None,
        labels: None,
        needs: if is_tied && asked.ground.is_none() { AtHand::Nothing } else { AtHand::Image },
        tied: asked.tied,
        on: asked.on,
        store: None,
    };
    let with_gpus = wish.gpus.is_some();
    let standings = Standings::of(&mut *tx, own, offers.keys().copied(), with_gpus).await?;
    let now = offers.iter().map(|(host, Offer { capacity, gpus })| {
        let lacking_mb = asked.ground.map_or(0, |ground| lacking_bytes(ground, *host, own) >> 20);
        let now = Now {
            vcpu: None,
            memory_mb: offered_mb(capacity.memory_mb, standings.overcommit(*host, overcommit).sandbox),
            most_sandboxes: asked.is_sandbox.then(|| sandboxes.config().max_sandboxes),
            disk: Disk { is_full: !capacity.has_room(lacking_mb), sizes: None },
            gpus,
            lacks: None,
            at_hand: at_hand(*host, own, capacity, asked.ground),
        };
        (*host, now)
    });
    let now = now.collect();
    if let Ok(placed) = standings.place(&wish, &now, overcommit) {
        return Ok(Ok(placed));
    }
    // None that was asked takes them: the refusal tells of all.
    Ok(Standings::all(tx, own, with_gpus).await?.place(&wish, &now, overcommit))
}

/// What a host has of what machines begin with.
fn at_hand(host: HostId, own: HostId, capacity: &Capacity, ground: Option<&[Lying]>) -> AtHand {
    let has_layers = ground.is_some_and(|ground| ground.iter().all(|layer| layer.is_on(host, own)));
    match capacity.has_guest {
        false => AtHand::Nothing,
        true if has_layers => AtHand::Layers,
        true => AtHand::Image,
    }
}
