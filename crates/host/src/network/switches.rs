//! Switches on this host: a program for each network of which a machine runs here (`berth_egress::program::switch`).
//!
//! A network has a folder with what it was last told and with its switch's note. A machine that runs has a program that
//! carries its network, in whichever folder its engine keeps it; that and the switch are given the two ends of a link.
//! All of it outlives the service, so what is told here is made by looking: a link that both sides have is theirs, any
//! other is made anew. A switch ends with its last link, and one that ended alone is found missing by whoever waits for
//! its end here.
//!
//! A network is changed by one at a time. Its machines are linked beside each other and within a time, so that one whose
//! program hangs keeps nobody else out; what could not be done is said in the log and tried again until it is done. A
//! machine's own start tells its memberships too ([`Switches::join`]), since it may come before the network is told of
//! the machine, and goes on without a link that it cannot have now; what the network was told last is what holds in the
//! end.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::firewall::Rules;
use berth_domain::ids::{MachineId, NetworkId};
use berth_egress::network::At;
use berth_egress::program::process::{self, Executable, Kind, Start};
use berth_egress::program::{Control, InNetwork, pair, switch};
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::local::{LocalNetwork, lock, names, roster, with_member};
use super::{Found, Member, Membership, NetworkEngine, NetworkSpec};
use crate::error::transient;
use crate::{EngineError, Finding, HostSettings, Machines, Result, fault};

/// The least time between two switches of a network: one that ends at once keeps nobody busy.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two looks whether a switch answers.
const LOOK: Duration = Duration::from_secs(30);
/// Between two tries to have a network whole.
const AGAIN: Duration = Duration::from_secs(5);
/// Machines that are linked at the same time, and networks that are looked at.
const BESIDE: usize = 16;
/// How long all machines of a network together may take to be linked. A program that hangs takes half of it.
const LINKING: Duration = Duration::from_secs(10);
/// How long a start waits for its links, which come later then.
const JOINING: Duration = Duration::from_secs(2);

/// The networks of this host.
pub struct Switches {
    folder: PathBuf,
    /// Where engines keep the folders of machines.
    machines: [PathBuf; 2],
    executable: Executable,
    settings: Machines,
    networks: Mutex<HashMap<NetworkId, Arc<LocalNetwork>>>,
    watched: Mutex<HashSet<NetworkId>>,
    /// Those that are tried again.
    tried: Mutex<HashSet<NetworkId>>,
    /// Machines whose program was replaced, since it knew of no networks.
    outdated: Mutex<HashSet<MachineId>>,
    this: Weak<Self>,
}

/// A conversation with a switch that knows what its network is, for all who are linked at the same time; none before
/// the first of them needs it.
type Shared = tokio::sync::Mutex<Option<Result<Reached>>>;

struct Reached {
    control: switch::Control,
    linked: Vec<switch::Linked>,
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
        let known = names(&folder).filter_map(|id| LocalNetwork::read(&folder.join(id.to_string()))).collect();
        Arc::new_cyclic(|this| Self {
            networks: Mutex::new(known),
            folder,
            machines,
            executable,
            settings: settings.machines,
            watched: Mutex::default(),
            tried: Mutex::default(),
            outdated: Mutex::default(),
            this: this.clone(),
        })
    }

    /// Has a machine belong to networks that it is started in, if its program runs. That knows of them once this
    /// returns. It waits a moment for the links; those that cannot be made now are made as soon as they can, and
    /// nobody's start fails for them.
    ///
    /// # Errors
    /// The machine's program cannot be told.
    pub async fn join(&self, machine: MachineId, memberships: &[Membership]) -> Result<()> {
        let Some(this) = self.this.upgrade().filter(|_| !memberships.is_empty()) else { return Ok(()) };
        if let Some(dir) = self.carried(machine)? {
            announce(&mut process::connect(&dir).await.map_err(transient)?, memberships).await?;
        }
        let memberships = memberships.to_vec();
        let joined = tokio::spawn(async move {
            let one = |membership| this.join_one(machine, membership);
            stream::iter(&memberships).for_each_concurrent(BESIDE, one).await;
        });
        if timeout(JOINING, joined).await.is_err() {
            tracing::warn!(%machine, "a machine is started before it is linked to its networks");
        }
        Ok(())
    }

    async fn join_one(&self, machine: MachineId, membership: &Membership) {
        let Membership { network: id, cidr, cidr6, .. } = *membership;
        // Until it is told the network's rules, nothing passes.
        let (name, members, rules) = (String::new(), Vec::new(), Rules::nothing());
        let known = self.enter(NetworkSpec { id, revision: 0, name, cidr, cidr6, members, rules });
        let turn = known.turn.lock().await;
        let mut spec = known.spec();
        let is_anothers = |member: &&Member| member.address == membership.address && member.machine != machine;
        let holder = spec.members.iter().find(is_anothers).map(|member| member.machine);
        // Who was told of before it was removed does not bring it back, nor takes what is another's by now.
        if !self.is_known(&known) || holder.is_some_and(|holder| self.carried(holder) != Ok(None)) {
            tracing::warn!(%machine, network = %id, ?holder, "a machine is not joined until its network is told of it");
            return;
        }
        if with_member(&mut spec, machine, membership) {
            // The machine runs, whatever can be noted; what the network is told next is noted, too.
            let noted = known.write(&self.dir(id), &spec).await;
            known.replace(spec);
            if let Err(error) = noted {
                tracing::warn!(%machine, network = %id, %error, "a machine's network is not noted");
            }
        }
        drop(turn);
        let _ = self.link_all(&known, Some(machine), None).await;
    }

    /// The networks that a machine belongs to, as they were last told.
    pub fn memberships(&self, machine: MachineId) -> Vec<Membership> {
        let all = lock(&self.networks);
        all.values()
            .flat_map(|known| known.members(Some(machine)).into_iter().map(|member| known.membership(&member)))
            .collect()
    }

    /// Has a machine whose program began anew linked to the networks that it belongs to, soon.
    pub fn rejoin(&self, machine: MachineId) {
        let Some(this) = self.this.upgrade() else { return };
        let known: Vec<_> = lock(&self.networks).values().filter(|known| known.has(machine)).cloned().collect();
        tokio::spawn(async move {
            let one = async |known: &Arc<LocalNetwork>| drop(this.link_all(known, Some(machine), None).await);
            stream::iter(&known).for_each_concurrent(BESIDE, one).await;
        });
    }

    /// Finds what an earlier service left, and makes whole what ended meanwhile.
    pub async fn adopt(&self) {
        let all: Vec<_> = lock(&self.networks).keys().copied().collect();
        stream::iter(all).for_each_concurrent(BESIDE, |id| self.make_whole(id)).await;
    }

    /// What an operator is to know: whether there is a program for switches.
    pub async fn findings(&self) -> Vec<Finding> {
        let dir = self.folder.join(format!(".tried-{}", std::process::id()));
        let tried = self.try_switch(&dir).await;
        let _ = tokio::fs::remove_dir_all(&dir).await;
        let text = match &tried {
            Ok(()) => "machines of a network are joined".to_owned(),
            Err(error) => format!(
                "machines do not reach each other in networks, since berth-egress is no switch ({error}); \
                 replace berth-egress beside berth by the one that came with it"
            ),
        };
        vec![Finding { good: tried.is_ok(), what: "networks".into(), text }]
    }

    /// Starts a switch that joins nobody, and has it answer.
    async fn try_switch(&self, dir: &Path) -> std::io::Result<()> {
        tokio::fs::create_dir_all(dir).await?;
        let user = self.settings.of_switch(u32::MAX);
        let start = Start { executable: &self.executable, kind: Kind::Switch, dir, id: "doctor", user };
        let mut control = process::spawn(start)?.note_switch(dir)?;
        // One of an earlier version knows no rules.
        let answered = control.set_firewall(Rules::default()).await;
        process::end(dir).await?;
        answered
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
    fn enter(&self, spec: NetworkSpec) -> Arc<LocalNetwork> {
        let mut all = lock(&self.networks);
        if let Some(known) = all.get(&spec.id) {
            return known.clone();
        }
        let taken: HashSet<u32> = all.values().map(|known| known.slot).collect();
        let slot = (0..=u32::MAX).find(|slot| !taken.contains(slot)).unwrap_or_default();
        let (id, known) = (spec.id, LocalNetwork::new(slot, spec));
        all.insert(id, known.clone());
        known
    }

    /// Whether a network is not removed.
    fn is_known(&self, known: &Arc<LocalNetwork>) -> bool {
        lock(&self.networks).get(&known.id()).is_some_and(|now| Arc::ptr_eq(now, known))
    }

    /// Links the members that run here and are not linked, or one of them, and starts the switch where there is none.
    /// What fails is tried again, whoever asked.
    async fn link_all(
        &self,
        known: &Arc<LocalNetwork>,
        only: Option<MachineId>,
        reached: Option<Reached>,
    ) -> Result<()> {
        let shared = Shared::new(reached.map(Ok));
        let until = Instant::now() + LINKING;
        let link = async |member: Member| {
            let linked = timeout_at(until, self.link(known, &shared, &member)).await;
            let linked = linked.unwrap_or_else(|_| Err(transient("it was not linked in time")));
            // One that is just ending is missed by nobody.
            let is_missed = linked.is_err() && self.carried(member.machine) != Ok(None);
            linked.or_else(|error| if is_missed { Err((member.machine, error)) } else { Ok(()) })
        };
        let members = known.members(only);
        let all: Vec<_> = stream::iter(members).map(link).buffer_unordered(BESIDE).collect().await;
        let failed = all.into_iter().filter_map(std::result::Result::err).min_by_key(|(machine, _)| *machine);
        let Some((machine, error)) = failed else {
            if only.is_none() {
                known.is_news(None);
            }
            return Ok(());
        };
        self.complain(known, machine, &error);
        self.again(known.id());
        Err(transient(format!("machine {machine}: {error}")))
    }

    /// Says once that a machine is not in its network, and where to look.
    fn complain(&self, known: &LocalNetwork, machine: MachineId, error: &EngineError) {
        let network = known.id();
        if known.is_news(Some(format!("{machine}: {error}"))) {
            let log = self.dir(network).join("egress.log");
            tracing::warn!(
                %network, %machine, %error, log = %log.display(),
                "a machine is not in its network yet, and is tried again; type: berth doctor"
            );
        }
    }

    /// Has a member of a network linked if it runs here, unless both sides have its link.
    async fn link(&self, known: &Arc<LocalNetwork>, shared: &Shared, member: &Member) -> Result<()> {
        let Some(dir) = self.carried(member.machine)? else { return Ok(()) };
        let _alone = known.alone.of(member.machine).await;
        let mut program = process::connect(&dir).await.map_err(transient)?;
        let status = program.status().await.map_err(transient)?;
        let spec = known.spec();
        if !spec.members.iter().any(|now| (now.machine, now.address) == (member.machine, member.address)) {
            return Ok(());
        }
        let is_theirs = |of: &InNetwork| (of.network, of.address, of.is_linked) == (spec.id, member.address, true);
        let has = status.networks.iter().any(is_theirs);
        announce(&mut program, &[known.membership(member)]).await?;
        let Some(link) = self.link_at_switch(known, shared, member, has).await? else { return Ok(()) };
        fault::point("switch.half_linked").await.map_err(transient)?;
        let joined = program.join(spec.id, place(&known.membership(member)), Some(&link)).await;
        if joined.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported) {
            self.outdated(member.machine, &dir).await?;
        }
        joined.map_err(transient)
    }

    /// Ends the program of a machine that an earlier Berth started and that knows of no networks: whoever keeps it
    /// carried starts another one. Once for each machine, since what is started may be as old.
    async fn outdated(&self, machine: MachineId, dir: &Path) -> Result<()> {
        if !lock(&self.outdated).insert(machine) {
            return Ok(());
        }
        tracing::warn!(%machine, "the program of a machine's network is of an earlier version and is replaced");
        process::end(dir).await.map_err(transient)
    }

    /// Gives the switch a link of a member; its other end, unless both sides have one.
    async fn link_at_switch(
        &self,
        known: &Arc<LocalNetwork>,
        shared: &Shared,
        member: &Member,
        has: bool,
    ) -> Result<Option<OwnedFd>> {
        let mut shared = shared.lock().await;
        if shared.is_none() {
            *shared = Some(self.reach(known).await);
        }
        let reached = match shared.as_mut() {
            Some(Ok(reached)) => reached,
            Some(Err(error)) => return Err(error.clone()),
            None => return Ok(None),
        };
        let is_theirs =
            |link: &switch::Linked| link.address == member.address && link.machine == member.machine.to_string();
        if has && reached.linked.iter().any(is_theirs) {
            return Ok(None);
        }
        let (ours, theirs) = pair().map_err(transient)?;
        reached.control.link(member.address, &ours).await.map_err(transient)?;
        Ok(Some(theirs))
    }

    /// The switch of a network, which knows what that is, and is watched.
    async fn reach(&self, known: &Arc<LocalNetwork>) -> Result<Reached> {
        let _turn = known.turn.lock().await;
        let spec = &known.spec();
        if !self.is_known(known) {
            return Err(transient("the network was removed"));
        }
        let reached = match self.tell(spec).await? {
            Some(reached) => reached,
            None => self.start(spec, known.slot).await?,
        };
        self.attend(spec.id);
        Ok(reached)
    }

    /// Tells the switch of a network what that is, if there is one. One that cannot be told is ended, so that there is
    /// none.
    async fn tell(&self, spec: &NetworkSpec) -> Result<Option<Reached>> {
        let dir = self.dir(spec.id);
        if process::find(&dir).map_err(transient)?.is_none() {
            return Ok(None);
        }
        let told = async {
            let mut control = process::connect_switch(&dir).await?;
            instruct(&mut control, spec).await?;
            let linked = control.status().await?.links;
            std::io::Result::Ok(Reached { control, linked })
        };
        match told.await {
            Ok(reached) => Ok(Some(reached)),
            // One that is just ending, or hangs, or speaks otherwise.
            Err(error) => {
                tracing::warn!(network = %spec.id, %error, "a switch is replaced");
                process::end(&dir).await.map_err(transient)?;
                Ok(None)
            }
        }
    }

    async fn start(&self, spec: &NetworkSpec, slot: u32) -> Result<Reached> {
        let dir = &self.dir(spec.id);
        tokio::fs::create_dir_all(dir).await.map_err(transient)?;
        let (id, user) = (spec.id.to_string(), self.settings.of_switch(slot));
        let start = Start { executable: &self.executable, kind: Kind::Switch, dir, id: &id, user };
        let spawned = process::spawn(start).map_err(transient)?;
        fault::point("switch.spawned").await.map_err(transient)?;
        let mut control = spawned.note_switch(dir).map_err(transient)?;
        fault::point("switch.noted").await.map_err(transient)?;
        let told = instruct(&mut control, spec).await;
        told.map_err(|error| transient(format!("no switch could be started: {error}")))?;
        Ok(Reached { control, linked: Vec::new() })
    }

    /// Watches a switch, once: where one that machines need ends or hangs, another one takes its place.
    fn attend(&self, id: NetworkId) {
        let dir = self.dir(id);
        let Ok(Some(program)) = process::find(&dir) else { return };
        if !lock(&self.watched).insert(id) {
            return;
        }
        let this = self.this.clone();
        tokio::spawn(async move {
            tokio::select! {
                // It ended, or cannot be waited for: both are looked at again.
                _ = program.ended() => {}
                () = hangs(&dir) => {
                    tracing::warn!(network = %id, "a switch that does not answer is replaced");
                    let _ = program.kill();
                    let _ = program.ended().await;
                }
            }
            tokio::time::sleep(PAUSE).await;
            if let Some(switches) = this.upgrade() {
                lock(&switches.watched).remove(&id);
                switches.make_whole(id).await;
            }
        });
    }

    /// Has all machines of a network linked, now and until it is so.
    async fn make_whole(&self, id: NetworkId) {
        let known = lock(&self.networks).get(&id).cloned();
        if let Some(known) = known {
            let _ = self.link_all(&known, None, None).await;
        }
    }

    /// Tries a network again after a while.
    fn again(&self, id: NetworkId) {
        if !lock(&self.tried).insert(id) {
            return;
        }
        let this = self.this.clone();
        let again = async move {
            tokio::time::sleep(AGAIN).await;
            if let Some(switches) = this.upgrade() {
                // What fails from here on is tried once more.
                lock(&switches.tried).remove(&id);
                switches.make_whole(id).await;
            }
        };
        tokio::spawn(Box::pin(again) as BoxFuture<'static, ()>);
    }

    /// Tells the programs of machines that they belong to a network no more. The switch knows, too, so that one that
    /// cannot be told reaches nobody either.
    async fn part(&self, known: &LocalNetwork, machines: Vec<MachineId>) {
        let (network, until) = (known.id(), Instant::now() + LINKING);
        let part = async |machine: MachineId| {
            let told = async {
                let Some(dir) = self.carried(machine)? else { return Ok(()) };
                let _alone = known.alone.of(machine).await;
                if known.has(machine) {
                    return Ok(());
                }
                let mut control = process::connect(&dir).await.map_err(transient)?;
                control.leave(network).await.map_err(transient)
            };
            let told = timeout_at(until, told).await;
            if let Err(error) = told.unwrap_or_else(|_| Err(transient("its program does not answer"))) {
                tracing::warn!(%machine, %network, %error, "a machine was not told that it left a network");
            }
        };
        stream::iter(machines).for_each_concurrent(BESIDE, part).await;
    }
}

/// Has a program know which networks its machine belongs to, before anything of the user runs there: what goes to an
/// address of a network is lost until there is a link, and never judged as what goes outside. A program that refuses, or
/// is of an earlier version, is no reason to keep the machine from its start: whoever links it says what is wrong.
///
/// # Errors
/// The program does not answer.
pub(crate) async fn announce(program: &mut Control, memberships: &[Membership]) -> Result<()> {
    for membership in memberships {
        match program.join(membership.network, place(membership), None).await {
            Err(error) if !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                return Err(transient(error));
            }
            _ => {}
        }
    }
    Ok(())
}

const fn place(membership: &Membership) -> At {
    let Membership { cidr, cidr6, address: own, .. } = *membership;
    At { cidr, cidr6, own }
}

/// Tells a switch what its network is, rules first. One of an earlier Berth, which knows of no rules, serves a network
/// that has none.
async fn instruct(control: &mut switch::Control, spec: &NetworkSpec) -> std::io::Result<()> {
    match control.set_firewall(spec.rules.clone()).await {
        Err(error) if error.kind() != ErrorKind::Unsupported || !spec.rules.is_empty() => return Err(error),
        _ => {}
    }
    control.set(roster(spec)).await
}

/// Waits until the switch in a folder does not answer in time.
async fn hangs(dir: &Path) {
    loop {
        tokio::time::sleep(LOOK).await;
        let asked = async { process::connect_switch(dir).await?.status().await };
        // Whatever else is wrong with it, as where no descriptor is free here, is no reason to end it.
        if asked.await.is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
            return;
        }
    }
}

#[async_trait]
impl NetworkEngine for Switches {
    async fn set(&self, network: &NetworkSpec) -> Result<()> {
        let known = self.enter(network.clone());
        let turn = known.turn.lock().await;
        if !self.is_known(&known) {
            return Err(transient("the network was removed meanwhile"));
        }
        let latest = known.spec().revision;
        if network.revision < latest {
            return Err(EngineError::Outdated(latest));
        }
        // In this order: what was not noted is told again, and whoever left it is parted then.
        known.write(&self.dir(network.id), network).await?;
        let before = known.replace(network.clone());
        // What it cannot be told, the next one is.
        let told = self.tell(network).await;
        drop(turn);
        let stays: HashSet<_> = network.members.iter().map(|member| member.machine).collect();
        let gone = before.members.into_iter().map(|member| member.machine).filter(|machine| !stays.contains(machine));
        self.part(&known, gone.collect()).await;
        self.link_all(&known, None, told?).await
    }

    async fn remove(&self, id: NetworkId) -> Result<()> {
        let known = lock(&self.networks).get(&id).cloned();
        if let Some(known) = &known {
            let turn = known.turn.lock().await;
            let before = known.spec();
            // Who waits for its turn finds nobody to link.
            known.replace(NetworkSpec { members: Vec::new(), ..before.clone() });
            lock(&self.networks).remove(&id);
            drop(turn);
            self.part(known, before.members.into_iter().map(|member| member.machine).collect()).await;
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
