//! Onto which host machines of sandboxes and templates go; sums over rows are the only counters.
//!
//! What a machine begins with lies on one host, and ties the machine to it. What begins with nothing, a template that is built of
//! an image, goes where there is room.

use std::collections::HashMap;
use std::time::Duration;

use berth_domain::host::gpu::Gpu;
use berth_domain::host::overcommit::offered_mb;
use berth_domain::host::placement::{AtHand, Disk, Kind, Placed, Wish, WishedGpus};
use berth_domain::ids::HostId;
use berth_host::EngineError;
use berth_host::sandbox::{Capacity, SandboxEngine};
use futures::future::join_all;

use crate::db::{DbError, Tx};
use crate::services::placement::{self, Now, Refusal};
use crate::services::sandbox::Sandboxes;

/// How long a host may take to say what it has. The service's own is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a host has at this moment for machines of sandboxes.
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
}

impl Asked<'_> {
    /// Machines of a size that work for a template, or wait for an owner.
    pub const fn machines(size: (i64, i64), most: i64) -> Self {
        Self { size, most, makes_disk: false, is_sandbox: false, tied: None, on: None, gpus: None }
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
pub(super) async fn offers(sandboxes: &Sandboxes) -> Result<Offers, EngineError> {
    let (own, mut offers) = (sandboxes.host(), offer(sandboxes, sandboxes.host(), false).await?);
    let others = sandboxes.fleet().all().into_iter().filter(|(host, _)| *host != own);
    let asked = others.map(async |(host, engines)| {
        let engine = engines.sandbox;
        // What keeps it from running machines is in its row.
        engine.ready().ok()?;
        let offer = tokio::time::timeout(PATIENCE, said(&*engine, false)).await.ok()?;
        let offer = offer.inspect_err(|error| tracing::debug!(%host, %error, "a host does not say what it has"));
        Some((host, offer.ok()?))
    });
    offers.extend(join_all(asked).await.into_iter().flatten());
    Ok(offers)
}

async fn said(engine: &dyn SandboxEngine, with_gpus: bool) -> Result<Offer, EngineError> {
    let capacity = engine.capacity().await?;
    let gpus = if with_gpus { engine.gpus().await? } else { Vec::new() };
    Ok(Offer { capacity, gpus })
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
        needs: if is_tied { AtHand::Nothing } else { AtHand::Image },
        tied: asked.tied,
        on: asked.on,
    };
    let promised = if offers.keys().any(|host| *host != own) {
        placement::overcommits(&mut *tx, overcommit).await?
    } else {
        HashMap::new()
    };
    let now = offers.iter().map(|(host, Offer { capacity, gpus })| {
        // Whether the own host has what machines boot is told, in words that say what to type, by what needs it.
        let has_guest = *host == own || capacity.has_guest;
        let now = Now {
            vcpu: None,
            memory_mb: offered_mb(capacity.memory_mb, promised.get(host).unwrap_or(&overcommit).sandbox),
            most_sandboxes: asked.is_sandbox.then(|| sandboxes.config().max_sandboxes),
            disk: Disk { is_full: !capacity.has_room(0), sizes: None },
            gpus,
            lacks_network: None,
            at_hand: if has_guest { AtHand::Image } else { AtHand::Nothing },
        };
        (*host, now)
    });
    placement::place(tx, own, &wish, &now.collect(), overcommit).await
}
