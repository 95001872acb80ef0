//! The bridge of this host, which carries the networks of VMs in the mode `bridge` ([`berth_bridge`]).
//!
//! What is on it lies in `bridge/` of the data folder. A service that begins makes the host equal to what lives: the
//! machines that have a process, or are just getting one. Which machine begins on it is decided at each start; until it ends
//! it is where it began, whatever the configuration says. So a bridge that the operator gave up, or described anew, stays as
//! it is for as long as a machine is on it, and the next service without one takes it down or makes the new one.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_bridge::{Bridge, Error, Machine, close, lacks, noted, program};
use berth_domain::host::{EngineError, Result};
use berth_domain::ids::MachineId;
use berth_domain::vm::Protocol;
use berth_qemu::machine;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

pub use berth_bridge::Settings;

use crate::error::{qemu_failed, transient};
use crate::{Finding, HostSettings, fault};

/// The folder of the bridge, in the data folder.
const FOLDER: &str = "bridge";

/// The bridge of this host, where it has one.
pub struct Bridges {
    machines: PathBuf,
    folder: PathBuf,
    /// The user that the program becomes which answers guests.
    user: Option<u32>,
    bridge: Option<Bridge>,
    /// Whether machines may begin on it.
    accepts: bool,
    /// Machines that are about to get a process.
    beginning: Mutex<HashSet<MachineId>>,
    /// Held while it is changed.
    changing: tokio::sync::Mutex<()>,
}

/// Until it is dropped, a machine counts as one that lives.
pub(crate) struct Beginning<'a> {
    id: MachineId,
    of: &'a Bridges,
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        lock(&self.of.beginning).remove(&self.id);
    }
}

impl Bridges {
    /// A host without one.
    pub fn none(data: &Path) -> Arc<Self> {
        Arc::new(Self::new(data, None, (None, false)))
    }

    fn new(data: &Path, user: Option<u32>, (bridge, accepts): (Option<Bridge>, bool)) -> Self {
        let (machines, folder) = (data.join("machines"), data.join(FOLDER));
        let (beginning, changing) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { machines, folder, user, bridge, accepts, beginning, changing }
    }

    /// Makes the bridge that the operator describes, or keeps the one that machines are on; with no description, takes down
    /// what no machine is on.
    ///
    /// # Errors
    /// The host lacks something, and the sentence says what to type; or the kernel refuses.
    pub async fn open(host: &HostSettings, wished: Option<Settings>) -> std::result::Result<Arc<Self>, Error> {
        let (data, folder) = (&host.data, host.data.join(FOLDER));
        if wished.is_some() && !rustix::process::geteuid().is_root() {
            return Err(Error::Missing(NOT_ROOT.into()));
        }
        let (mut living, mut settings) = (BTreeMap::new(), wished.clone());
        if let Some(before) = noted(&folder)? {
            living = self::living(&data.join("machines"), before.machines).await;
            // How large packets are is found out at each start.
            let before = Settings { mtu: None, ..before.settings };
            if living.is_empty() && wished.as_ref() != Some(&before) {
                program::end(&folder).await.map_err(unanswered)?;
                close(&folder).await?;
                // What is not there asks nobody for rights at the next start.
                let _ = std::fs::remove_dir_all(&folder);
            } else if !wished.as_ref().is_some_and(|wished| goes_with(wished, &before)) {
                let (bridge, machines) = (&before.name, living.len());
                tracing::warn!(bridge, machines, "the bridge stays as it was for as long as machines are on it");
                settings = Some(before);
            }
        }
        let Some(settings) = settings else { return Ok(Self::none(data)) };
        let device = number(&settings.name);
        let bridge = Bridge::open(settings, &folder).await?;
        bridge.reconcile(&living).await?;
        if device.is_none() || device != number(&bridge.settings().name) {
            // What listened on the one before hears nothing on this one.
            program::end(&folder).await.map_err(unanswered)?;
        }
        let bridges = Self::new(data, host.machines.of_bridge(), (Some(bridge), wished.is_some()));
        if let Err(error) = bridges.answer().await {
            // VMs that have their addresses do without; `tend` tries again.
            tracing::warn!(%error, "nobody answers guests of the bridge; trying again");
        }
        if let Some(bridge) = &bridges.bridge {
            for lack in lacks(bridge.settings()).await.unwrap_or_default() {
                tracing::warn!("{lack}");
            }
        }
        Ok(Arc::new(bridges))
    }

    /// Has guests answered: has the program run that does so.
    async fn answer(&self) -> std::io::Result<()> {
        program::start(None, &self.folder, self.user).await.map(drop)
    }

    /// The bridge, for machines that begin; none where none may begin on it.
    pub(crate) fn open_to_all(&self) -> Option<&Bridge> {
        self.bridge.as_ref().filter(|_| self.accepts)
    }

    /// The bridge, for machines that are on it.
    pub(crate) const fn of_those_on_it(&self) -> Option<&Bridge> {
        self.bridge.as_ref()
    }

    /// Whether a machine is on it.
    pub(crate) async fn has(&self, id: MachineId) -> bool {
        match &self.bridge {
            Some(bridge) => bridge.has(id).await,
            None => false,
        }
    }

    /// The machine as it is on the bridge.
    pub(crate) async fn get(&self, id: MachineId) -> Option<Machine> {
        self.bridge.as_ref()?.get(id).await
    }

    /// What leads to the machines on it but this one.
    pub(crate) async fn ports_but(&self, id: MachineId) -> HashSet<(SocketAddr, Protocol)> {
        let Some(bridge) = &self.bridge else { return HashSet::new() };
        let others = bridge.wanted().await.into_iter().filter(|(other, _)| *other != id);
        others.flat_map(|(_, machine)| machine.ports).map(|port| (port.at, port.to.protocol)).collect()
    }

    /// Whether one of so many ports, from this one on, leads to a machine on it.
    pub(crate) async fn leads_from(&self, first: SocketAddr, count: u16) -> bool {
        let Some(bridge) = &self.bridge else { return false };
        let all = bridge.wanted().await.into_values().flat_map(|machine| machine.ports);
        let is_among =
            |at: SocketAddr| at.ip() == first.ip() && at.port().checked_sub(first.port()).is_some_and(|n| n < count);
        all.into_iter().any(|port| is_among(port.at))
    }

    /// A machine is about to get a process.
    pub(crate) fn begin(&self, id: MachineId) -> Beginning<'_> {
        lock(&self.beginning).insert(id);
        Beginning { id, of: self }
    }

    /// Makes the network of a machine so.
    pub(crate) async fn set(&self, id: MachineId, machine: &Machine) -> Result<()> {
        let bridge = self.bridge.as_ref().ok_or_else(|| transient("this host has no bridge"))?;
        let _turn = self.changing.lock().await;
        bridge.set(id, machine).await.map_err(failed)
    }

    /// Takes the network of a machine away; fine where it has none.
    pub(crate) async fn remove(&self, id: MachineId) -> Result<()> {
        let Some(bridge) = self.bridge.as_ref() else { return Ok(()) };
        if !self.has(id).await {
            return Ok(());
        }
        fault::point("vm.bridge.remove").await.map_err(transient)?;
        {
            let _turn = self.changing.lock().await;
            bridge.remove(id).await.map_err(failed)?;
        }
        fault::point("vm.bridge.removed").await.map_err(transient)
    }

    /// Takes away the network of a machine that has no process and gets none.
    pub(crate) async fn let_go(&self, id: MachineId) -> Result<()> {
        if !self.has(id).await || lock(&self.beginning).contains(&id) {
            return Ok(());
        }
        let dir = self.machines.join(id.to_string());
        match machine::while_absent(&dir, id.0, self.remove(id)).await.map_err(qemu_failed)? {
            Some(removed) => removed,
            None => Ok(()),
        }
    }

    /// Takes away the networks of machines that ended, and makes up for what others changed.
    pub(crate) async fn tend(&self) {
        let Some(bridge) = &self.bridge else { return };
        for id in bridge.ids().await {
            if let Err(error) = self.let_go(id).await {
                tracing::warn!(vm = %id, %error, "the network of a machine that ended cannot be taken away; trying again");
            }
        }
        if let Err(error) = self.make_up(bridge).await {
            tracing::warn!(%error, "the bridge cannot be made as it is to be; trying again");
        }
    }

    async fn make_up(&self, bridge: &Bridge) -> std::result::Result<(), Error> {
        let name = &bridge.settings().name;
        let is_there = number(name).is_some();
        if is_there && bridge.stands().await? {
            bridge.refresh().await?;
        } else {
            tracing::warn!(
                bridge = name,
                "the bridge, its rules or its forwarding are gone, as after `nft flush ruleset` or `sysctl`; making them again"
            );
            let _turn = self.changing.lock().await;
            bridge.reconcile(&bridge.wanted().await).await?;
        }
        if !is_there {
            program::end(&self.folder).await.map_err(unanswered)?;
        }
        self.answer().await.map_err(unanswered)
    }
}

/// Whether machines of a bridge stay as they are on another one: it has the same gateway, and more addresses at most.
fn goes_with(wished: &Settings, before: &Settings) -> bool {
    (&wished.name, wished.subnet6, wished.gateway()) == (&before.name, before.subnet6, before.gateway())
        && wished.subnet.contains(&before.subnet)
}

/// The kernel's number of a network device; none where it has none of this name.
fn number(device: &str) -> Option<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    name_to_index(socket, device).ok()
}

/// Tells why guests are not answered.
fn unanswered(error: std::io::Error) -> Error {
    Error::Device { what: "the program that answers guests of the bridge".into(), why: error.to_string() }
}

/// Those that have a process, or are just getting one.
async fn living(machines: &Path, noted: BTreeMap<MachineId, Machine>) -> BTreeMap<MachineId, Machine> {
    let mut living = BTreeMap::new();
    for (id, machine) in noted {
        // What cannot be told is taken for alive: it is looked at again and again.
        let dir = machines.join(id.to_string());
        if !machine::while_absent(&dir, id.0, async {}).await.is_ok_and(|absent| absent.is_some()) {
            living.insert(id, machine);
        }
    }
    living
}

/// Tells an error of the bridge's. What only the operator may know stands in the log.
pub(crate) fn failed(error: Error) -> EngineError {
    match error {
        Error::Invalid(reason) => EngineError::Permanent(reason),
        error => {
            tracing::error!(%error, "the network of a machine cannot be made on the bridge");
            transient("the host cannot give it a network now; ask the operator to type: berth doctor")
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a host has of what the bridge needs, and what it lacks, with what to type.
pub async fn findings(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![
        finding(rustix::process::geteuid().is_root(), "root", "the service may make devices and rules", NOT_ROOT),
        finding(Path::new(TUN).exists(), "tun", TUN, NO_TUN),
        Finding {
            good: true,
            what: "vhost-net".into(),
            text: if Path::new(VHOST).exists() { VHOST.into() } else { NO_VHOST.into() },
        },
    ];
    if is_on(Path::new(CROSSES)) {
        findings.push(Finding { good: true, what: "bridged packets".into(), text: CROSS.into() });
    }
    let name = &settings.name;
    match lacks(settings).await {
        Err(error) => findings.push(Finding { good: false, what: "bridge".into(), text: error.to_string() }),
        Ok(lacks) => {
            let text = format!("{name} with {}, for VMs that are in no network of a project", settings.subnet);
            findings.push(Finding { good: true, what: "bridge".into(), text });
            findings.extend(lacks.into_iter().map(|text| Finding { good: false, what: "forwarding".into(), text }));
        }
    }
    findings
}

const TUN: &str = "/dev/net/tun";
const VHOST: &str = "/dev/vhost-net";
/// Whether what a bridge passes on goes through rules of IP, too (Linux, `Documentation/networking/ip-sysctl.rst`).
const CROSSES: &str = "/proc/sys/net/bridge/bridge-nf-call-iptables";
const NOT_ROOT: &str =
    "network.mode = \"bridge\" takes root; run the service as root, or set network.mode = \"shared\" or \"pool\"";
const NO_TUN: &str =
    "there is no /dev/net/tun; type: sudo modprobe tun, and put tun into /etc/modules-load.d/berth.conf";
const NO_VHOST: &str = "none, so QEMU moves packets itself, which takes more of the processor; type: sudo modprobe vhost_net, and restart the VMs";
const CROSS: &str = "they pass the host's rules of IP as well (bridge-nf-call-iptables is 1): rules of others that drop what \
     they do not know drop DHCP and answers for machines; to have them not, type: sudo sysctl -w \
     net.bridge.bridge-nf-call-iptables=0";

fn finding(good: bool, what: &str, yes: &str, no: &str) -> Finding {
    Finding { good, what: what.into(), text: if good { yes } else { no }.into() }
}

fn is_on(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_grows_under_its_machines_and_changes_in_nothing_else() {
        let with = |name: &str, subnet: &str| Settings {
            name: name.into(),
            subnet: subnet.parse().unwrap(),
            ..Settings::default()
        };
        let before = with("berth0", "10.127.0.0/24");
        for (wished, goes) in [
            (before.clone(), true),
            (with("berth0", "10.127.0.0/16"), true),
            (with("berth0", "10.126.0.0/15"), false),
            (with("berth0", "10.127.0.0/25"), false),
            (with("berth0", "10.127.1.0/24"), false),
            (with("vms", "10.127.0.0/24"), false),
            (Settings { subnet6: None, ..before.clone() }, false),
        ] {
            assert_eq!(goes_with(&wished, &before), goes, "{wished:?}");
        }
    }
}
