//! Switches on this host: a program for each network of which a machine runs here (`berth_egress::program::switch`).
//!
//! A network has a folder with what it was last told and with its switch's note. A machine that runs has a program that
//! carries its network, in whichever folder its engine keeps it; that and the switch are given the two ends of a link.
//! All of it outlives the service, so what is told here is made by looking: a link that both sides have is theirs, any
//! other is made anew. A switch ends with its last link, and one that ended alone is found missing by whoever waits for
//! its end here.
//!
//! One thing at a time is done to a network. A machine's own start tells its memberships too ([`Switches::join`]),
//! since it may come before the network is told of the machine; what the network was told last is what holds in the
//! end.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::ids::{MachineId, NetworkId};
use berth_egress::network::{self, Roster};
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{pair, switch};
use berth_process::folder;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Found, Member, Membership, NetworkEngine, NetworkSpec};
use crate::error::transient;
use crate::{EngineError, HostSettings, Machines, Result, fault};

/// What a network was told, in its folder.
const NOTE: &str = "network.json";
/// Longest such note, in bytes: that of the largest question.
const LONGEST: u64 = 16 << 20;
/// The least time between two switches of a network: one that ends at once keeps nobody busy.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two tries to have a switch in the place of one that ended.
const AGAIN: Duration = Duration::from_secs(5);

/// The networks of this host.
pub struct Switches {
    folder: PathBuf,
    /// Where engines keep the folders of machines.
    machines: [PathBuf; 2],
    executable: Executable,
    settings: Machines,
    known: Mutex<HashMap<NetworkId, Arc<Known>>>,
    watched: Mutex<HashSet<NetworkId>>,
    this: Weak<Self>,
}

/// A network that this host was told of.
struct Known {
    /// Held while something is done to it.
    turn: tokio::sync::Mutex<()>,
    /// A small number that no other network of the host has: its switch's user there.
    slot: u32,
    spec: Mutex<NetworkSpec>,
}

/// What is noted of a network.
#[derive(Serialize, Deserialize)]
struct Note {
    slot: u32,
    spec: NetworkSpec,
}

impl Known {
    fn new(slot: u32, spec: NetworkSpec) -> Arc<Self> {
        Arc::new(Self { turn: tokio::sync::Mutex::default(), slot, spec: Mutex::new(spec) })
    }

    fn spec(&self) -> NetworkSpec {
        lock(&self.spec).clone()
    }
}

impl Switches {
    /// The networks of a data folder, as they were last told.
    pub fn open(settings: &HostSettings) -> Arc<Self> {
        Self::open_with(settings, Executable::installed())
    }

    /// The same with another program for switches.
    pub fn open_with(settings: &HostSettings, executable: Executable) -> Arc<Self> {
        let folder = settings.data.join("networks");
        let machines = [settings.data.join("machines"), settings.data.join("sandbox").join("machines")];
        let notes = names(&folder).filter_map(|id| read(&folder.join(id.to_string())));
        let known = notes.map(|Note { slot, spec }| (spec.id, Known::new(slot, spec))).collect();
        Arc::new_cyclic(|this| Self {
            known: Mutex::new(known),
            folder,
            machines,
            executable,
            settings: settings.machines,
            watched: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Has a machine belong to networks that it is started in, if its program runs.
    ///
    /// # Errors
    /// A switch cannot be started, or one of both sides does not take its link.
    pub async fn join(&self, machine: MachineId, memberships: &[Membership]) -> Result<()> {
        for membership in memberships {
            let (id, cidr) = (membership.network, membership.cidr);
            let known = self.enter(NetworkSpec { id, revision: 0, name: String::new(), cidr, members: Vec::new() });
            let _turn = known.turn.lock().await;
            if with_member(&mut lock(&known.spec), machine, membership) {
                self.write(&known).await?;
            }
            self.link_all(&known, Some(machine)).await?;
        }
        Ok(())
    }

    /// Links a machine whose program began anew to the networks that it belongs to.
    ///
    /// # Errors
    /// As of [`Self::join`].
    pub async fn rejoin(&self, machine: MachineId) -> Result<()> {
        let belongs = |known: &&Arc<Known>| lock(&known.spec).members.iter().any(|member| member.machine == machine);
        let known: Vec<_> = lock(&self.known).values().filter(belongs).cloned().collect();
        for known in known {
            let _turn = known.turn.lock().await;
            self.link_all(&known, Some(machine)).await?;
        }
        Ok(())
    }

    /// Finds what an earlier service left, and makes whole what ended meanwhile.
    pub async fn adopt(&self) {
        let all: Vec<_> = lock(&self.known).values().cloned().collect();
        for known in all {
            let _turn = known.turn.lock().await;
            if let Err(error) = self.make_so(&known).await {
                tracing::warn!(network = %known.spec().id, %error, "a network is not whole; its next change tries again");
            }
        }
    }

    fn dir(&self, id: NetworkId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    /// The folder of a machine whose network is carried by a program.
    fn carried(&self, machine: MachineId) -> Result<Option<PathBuf>> {
        for folder in &self.machines {
            let dir = folder.join(machine.to_string());
            if process::find(&dir).map_err(transient)?.is_some() {
                return Ok(Some(dir));
            }
        }
        Ok(None)
    }

    /// A network that this host was told of before, or is now.
    fn enter(&self, spec: NetworkSpec) -> Arc<Known> {
        let mut all = lock(&self.known);
        if let Some(known) = all.get(&spec.id) {
            return known.clone();
        }
        let taken: HashSet<u32> = all.values().map(|known| known.slot).collect();
        let slot = (0..=u32::MAX).find(|slot| !taken.contains(slot)).unwrap_or_default();
        let (id, known) = (spec.id, Known::new(slot, spec));
        all.insert(id, known.clone());
        known
    }

    async fn write(&self, known: &Known) -> Result<()> {
        let (slot, spec) = (known.slot, known.spec());
        let dir = self.dir(spec.id);
        tokio::fs::create_dir_all(&dir).await.map_err(transient)?;
        folder::write(&dir.join(NOTE), &serde_json::to_vec(&Note { slot, spec }).map_err(transient)?).map_err(transient)
    }

    /// Makes a network what it was told to be.
    async fn make_so(&self, known: &Known) -> Result<()> {
        let spec = &known.spec();
        let dir = self.dir(spec.id);
        if process::find(&dir).map_err(transient)?.is_some() {
            // What it cannot be told, the next one is.
            if let Err(error) = tell(&dir, spec).await {
                tracing::warn!(network = %spec.id, %error, "a switch is replaced");
                process::end(&dir).await.map_err(transient)?;
            }
        }
        self.link_all(known, None).await
    }

    /// Links the members that run here, or one of them, and starts the switch where there is none.
    async fn link_all(&self, known: &Known, only: Option<MachineId>) -> Result<()> {
        let spec = &known.spec();
        let dir = self.dir(spec.id);
        let mut here = Vec::new();
        for member in spec.members.iter().filter(|member| only.is_none_or(|id| id == member.machine)) {
            if let Some(machine) = self.carried(member.machine)? {
                here.push((member, machine));
            }
        }
        if here.is_empty() {
            return Ok(());
        }
        let mut control = self.switch(&dir, spec, known.slot).await?;
        let linked = control.status().await.map_err(transient)?.links;
        let mut outcome = Ok(());
        for (member, machine) in here {
            let is_theirs =
                |link: &switch::Linked| link.address == member.address && link.machine == member.machine.to_string();
            let made = link(&mut control, spec, member, &machine, linked.iter().any(is_theirs)).await;
            // One that is just ending keeps nobody else from being linked, and is missed by nobody.
            if made.is_err() && self.carried(member.machine)?.is_some() {
                outcome = made;
            }
        }
        self.attend(spec.id);
        outcome
    }

    /// The switch of a network, which is told what the network is where it was not there.
    async fn switch(&self, dir: &Path, spec: &NetworkSpec, slot: u32) -> Result<switch::Control> {
        if process::find(dir).map_err(transient)?.is_some() {
            match tell(dir, spec).await {
                Ok(control) => return Ok(control),
                // One that is just ending, or that speaks otherwise.
                Err(error) => tracing::debug!(network = %spec.id, %error, "a switch is replaced"),
            }
            process::end(dir).await.map_err(transient)?;
        }
        tokio::fs::create_dir_all(dir).await.map_err(transient)?;
        let (id, user) = (spec.id.to_string(), self.settings.of_switch(slot));
        let start = Start { executable: &self.executable, kind: Kind::Switch, dir, id: &id, user };
        let spawned = process::spawn(start).map_err(transient)?;
        fault::point("switch.spawned").await.map_err(transient)?;
        let mut control = spawned.note_switch(dir).map_err(transient)?;
        fault::point("switch.noted").await.map_err(transient)?;
        control.set(roster(spec)).await.map_err(transient)?;
        Ok(control)
    }

    /// Watches a switch, once: where one ends that machines need, another one takes its place.
    fn attend(&self, id: NetworkId) {
        let Ok(Some(program)) = process::find(&self.dir(id)) else { return };
        if !lock(&self.watched).insert(id) {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            // It ended, or cannot be waited for: both are looked at again.
            let _ = program.ended().await;
            tokio::time::sleep(PAUSE).await;
            while let Some(switches) = this.upgrade() {
                lock(&switches.watched).remove(&id);
                if switches.replace(id).await {
                    return;
                }
                drop(switches);
                tokio::time::sleep(AGAIN).await;
            }
        });
    }

    /// Has a network a switch again, if a machine needs it; whether all is well.
    async fn replace(&self, id: NetworkId) -> bool {
        let Some(known) = lock(&self.known).get(&id).cloned() else { return true };
        let _turn = known.turn.lock().await;
        let replaced = self.link_all(&known, None).await;
        if let Err(error) = &replaced {
            tracing::warn!(network = %id, %error, "a network's switch ended, and another one is not there yet");
        }
        replaced.is_ok()
    }

    /// Tells the program of a machine that it belongs to a network no more. The switch knows, too, so that one that
    /// cannot be told reaches nobody either.
    async fn part(&self, machine: MachineId, network: NetworkId) {
        let told = async {
            let Some(dir) = self.carried(machine)? else { return Ok(()) };
            let mut control = process::connect(&dir).await.map_err(transient)?;
            control.leave(network).await.map_err(transient)
        };
        let told: Result<()> = told.await;
        if let Err(error) = told {
            tracing::warn!(%machine, %network, %error, "a machine was not told that it left a network");
        }
    }
}

/// Has a member of a network linked, unless both sides have its link.
async fn link(
    switch: &mut switch::Control,
    spec: &NetworkSpec,
    member: &Member,
    machine: &Path,
    has: bool,
) -> Result<()> {
    let mut program = process::connect(machine).await.map_err(transient)?;
    let status = program.status().await.map_err(transient)?;
    let linked = |of: &berth_egress::program::InNetwork| {
        (of.network, of.address, of.is_linked) == (spec.id, member.address, true)
    };
    if has && status.networks.iter().any(linked) {
        return Ok(());
    }
    let (ours, theirs) = pair().map_err(transient)?;
    switch.link(member.address, &ours).await.map_err(transient)?;
    fault::point("switch.half_linked").await.map_err(transient)?;
    program.join(spec.id, (spec.cidr, member.address), &theirs).await.map_err(transient)
}

/// Tells a switch what its network is.
async fn tell(dir: &Path, spec: &NetworkSpec) -> std::io::Result<switch::Control> {
    let mut control = process::connect_switch(dir).await?;
    control.set(roster(spec)).await?;
    Ok(control)
}

fn roster(spec: &NetworkSpec) -> Roster {
    let member = |member: &Member| network::Member {
        machine: member.machine.to_string(),
        address: member.address,
        names: member.names.clone(),
    };
    Roster { name: spec.name.clone(), cidr: spec.cidr, members: spec.members.iter().map(member).collect() }
}

/// Adds a machine to a network that was not told of it, or not of it there; whether that changed anything.
fn with_member(spec: &mut NetworkSpec, machine: MachineId, membership: &Membership) -> bool {
    let address = membership.address;
    if spec.cidr == membership.cidr && spec.members.iter().any(|m| (m.machine, m.address) == (machine, address)) {
        return false;
    }
    spec.cidr = membership.cidr;
    let before = spec.members.iter().find(|member| member.machine == machine);
    let names = before.map(|member| member.names.clone()).unwrap_or_default();
    spec.members.retain(|member| member.machine != machine && member.address != address);
    spec.members.push(Member { machine, address, names });
    true
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The networks that have a folder.
fn names(folder: &Path) -> impl Iterator<Item = NetworkId> + use<> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn read(dir: &Path) -> Option<Note> {
    serde_json::from_slice(&folder::read(&dir.join(NOTE), LONGEST).ok()?).ok()
}

#[async_trait]
impl NetworkEngine for Switches {
    async fn set(&self, network: &NetworkSpec) -> Result<()> {
        let known = self.enter(network.clone());
        let _turn = known.turn.lock().await;
        let latest = known.spec().revision;
        if network.revision < latest {
            return Err(EngineError::Outdated(latest));
        }
        let before = std::mem::replace(&mut *lock(&known.spec), network.clone());
        self.write(&known).await?;
        let stays = |gone: &Member| network.members.iter().any(|member| member.machine == gone.machine);
        for gone in before.members.iter().filter(|gone| !stays(gone)) {
            self.part(gone.machine, network.id).await;
        }
        self.make_so(&known).await
    }

    async fn remove(&self, id: NetworkId) -> Result<()> {
        let known = lock(&self.known).get(&id).cloned();
        if let Some(known) = &known {
            let _turn = known.turn.lock().await;
            // Who waits for its turn finds nobody to link.
            let members = std::mem::take(&mut lock(&known.spec).members);
            for member in members {
                self.part(member.machine, id).await;
            }
            lock(&self.known).remove(&id);
        }
        process::end(&self.dir(id)).await.map_err(transient)?;
        match tokio::fs::remove_dir_all(self.dir(id)).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(transient(error)),
            _ => Ok(()),
        }
    }

    async fn scan(&self) -> Result<Found> {
        Ok(Found { networks: names(&self.folder).collect() })
    }

    async fn tend(&self, stop: CancellationToken) {
        stop.run_until_cancelled(self.adopt()).await;
        stop.cancelled().await;
    }
}
