//! Makes the host so as it is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use berth_domain::ids::MachineId;
use tokio::sync::Mutex;

use crate::claim;
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::link::{Device, Links};
use crate::machine::{Machine, Wanted, addresses};
use crate::ruleset::{self, Surroundings};
use crate::settings::Settings;
use crate::{GATEWAY_MAC, conntrack, host, nft, tap};

/// The gateway's address on the link, which routers say they are at.
pub(crate) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ON_LINK: u8 = 64;
/// What packets are where nothing says how large they may be.
const ETHERNET: u16 = 1500;

/// What is said where the bridge is to have IPv6 and the kernel has none.
pub(crate) const NO_IPV6: &str = "this host has no IPv6, as with ipv6.disable=1; set network.subnet6 = \"none\"";

/// Told before each step; a test ends the process there.
pub type Watch = Box<dyn Fn(&'static str) + Send + Sync>;

/// The bridge of a host. Clones of an [`Arc`](std::sync::Arc) of it may be used at once: one change is made after the other.
pub struct Bridge {
    settings: Settings,
    mtu: u16,
    links: Links,
    folder: Folder,
    watch: Watch,
    state: Mutex<State>,
}

struct State {
    wanted: Wanted,
    /// What the kernel's rules were last made for; none where that is not known, as after it refused some.
    applied: Option<(BTreeMap<MachineId, Machine>, Surroundings)>,
    /// Addresses that were a machine's and are not any more, whose connections the kernel may still remember.
    left: BTreeSet<IpAddr>,
}

impl Bridge {
    /// Makes the bridge with its gateway, and everything so as its folder says that it was wanted last: after a crash and
    /// after the host started anew. What runs goes on. The folder is made where it is not there; only one process at a time
    /// has it, and another one waits for a while.
    ///
    /// # Errors
    /// The settings are wrong or do not go with machines that are there, the host lacks something ([`Error::Missing`] says
    /// what to type), or the kernel refuses a step. It may be tried again.
    pub async fn open(settings: Settings, folder: &Path) -> Result<Self> {
        Self::open_watched(settings, folder, Box::new(|_| ())).await
    }

    /// The same, which says before each step which one it is.
    #[doc(hidden)]
    pub async fn open_watched(settings: Settings, folder: &Path, watch: Watch) -> Result<Self> {
        settings.check()?;
        if settings.subnet6.is_some() && !host::has_ipv6() {
            return Err(Error::Missing(NO_IPV6.into()));
        }
        let folder = Folder::open(folder).await?;
        let links = Links::open()?;
        let before = folder.read()?;
        let has_noted = before.as_ref().is_some_and(|before| before.settings.name == settings.name);
        claim::of(&links.all().await?, &settings, &claim::mark(&folder))?.allow(&settings, has_noted)?;
        if let Some(before) = before.as_ref().filter(|before| before.settings.name != settings.name) {
            take_down(&links, &folder, &before.settings).await?;
        }
        // Who gave the host an address since takes no machine its network away.
        let is_as_noted = before.as_ref().is_some_and(|before| before.settings.has_addresses_of(&settings));
        match overlap(&settings)? {
            Some(overlap) if is_as_noted => tracing::warn!("{overlap} once no VM is on it"),
            Some(overlap) => return Err(Error::Invalid(overlap)),
            None => {}
        }
        let machines = before.map(|before| before.machines).unwrap_or_default();
        let mtu = match settings.mtu {
            Some(mtu) => mtu,
            None => mtu_of_uplink(&links, settings.subnet6.is_some()).await?,
        };
        let settings = Settings { mtu: Some(mtu), ..settings };
        let wanted = Wanted { settings: settings.clone(), machines: BTreeMap::new() };
        let state = Mutex::new(State { wanted, applied: None, left: BTreeSet::new() });
        let bridge = Self { settings, mtu, links, folder, watch, state };
        bridge.reconcile(&machines).await?;
        Ok(bridge)
    }

    /// The settings that it was opened with, and the MTU that it found.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Largest packet of its links, in bytes: what a machine's card is told, as QEMU's `host_mtu`.
    pub const fn mtu(&self) -> u16 {
        self.mtu
    }

    /// What is wanted now: what it was told last, by whichever process.
    pub async fn wanted(&self) -> BTreeMap<MachineId, Machine> {
        self.state.lock().await.wanted.machines.clone()
    }

    /// Whether a machine is on it.
    pub async fn has(&self, id: MachineId) -> bool {
        self.state.lock().await.wanted.machines.contains_key(&id)
    }

    /// A machine as it is on it.
    pub async fn get(&self, id: MachineId) -> Option<Machine> {
        self.state.lock().await.wanted.machines.get(&id).cloned()
    }

    /// The machines that are on it.
    pub async fn ids(&self) -> Vec<MachineId> {
        self.state.lock().await.wanted.machines.keys().copied().collect()
    }

    /// Makes a machine's network so: its tap, rules and ports. Connections that are still allowed go on. It may be repeated.
    ///
    /// # Errors
    /// It cannot be so, and nothing was changed ([`Error::Invalid`]); or a step failed, and is made up by the next call that
    /// succeeds, or when the bridge is opened again.
    pub async fn set(&self, id: MachineId, machine: &Machine) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut wanted = state.wanted.clone();
        wanted.machines.insert(id, machine.clone());
        self.note(&mut state, wanted)?;
        if let Some(before) = state.applied.as_ref().and_then(|(machines, _)| machines.get(&id)).cloned() {
            self.clear(&before, Some(machine)).await?;
        }
        self.apply(&mut state).await?;
        let bridge = self.device(&self.settings.name).await?;
        self.connect(&bridge, machine).await
    }

    /// Takes a machine's network away: its tap, rules and ports. Fine where it has none.
    ///
    /// # Errors
    /// A step failed, and is made up as with [`Bridge::set`].
    pub async fn remove(&self, id: MachineId) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut wanted = state.wanted.clone();
        let gone = wanted.machines.remove(&id);
        let applied = state.applied.as_ref().and_then(|(machines, _)| machines.get(&id)).cloned();
        if gone.is_some() {
            self.note(&mut state, wanted)?;
        }
        for machine in [gone, applied].into_iter().flatten() {
            self.clear(&machine, None).await?;
        }
        self.apply(&mut state).await
    }

    /// Makes everything so: these machines and no others. Taps, rules, and what is known of where addresses are come out
    /// equal to what they would be on a host that knew nothing; of what is so already nothing is cut.
    ///
    /// # Errors
    /// As with [`Bridge::set`].
    pub async fn reconcile(&self, machines: &BTreeMap<MachineId, Machine>) -> Result<()> {
        let mut state = self.state.lock().await;
        let wanted = Wanted { settings: self.settings.clone(), machines: machines.clone() };
        self.note(&mut state, wanted)?;
        let bridge = self.make_bridge().await?;
        self.clear_others(&bridge, machines).await?;
        // Whatever the kernel has: somebody else may have changed it.
        state.applied = None;
        self.apply(&mut state).await?;
        for machine in machines.values() {
            self.connect(&bridge, machine).await?;
        }
        Ok(())
    }

    /// Looks again at which networks of IPv6 the host shares with others, who are refused: to be called now and then, as
    /// they come and go. Every other change does it, too.
    ///
    /// # Errors
    /// As with [`Bridge::set`].
    pub async fn refresh(&self) -> Result<()> {
        let mut state = self.state.lock().await;
        self.apply(&mut state).await
    }

    fn step(&self, name: &'static str) {
        (self.watch)(name);
    }

    fn note(&self, state: &mut State, wanted: Wanted) -> Result<()> {
        wanted.check()?;
        self.step("note");
        self.folder.write(&wanted)?;
        for (id, machine) in &state.wanted.machines {
            let stay: Vec<_> = wanted.machines.get(id).into_iter().flat_map(addresses).collect();
            state.left.extend(addresses(machine).filter(|address| !stay.contains(address)));
        }
        state.wanted = wanted;
        Ok(())
    }

    /// Makes the rules so, by the difference where it is known what they are.
    async fn apply(&self, state: &mut State) -> Result<()> {
        let surroundings = Surroundings::of(host::networks6(&self.settings.name)?);
        let wanted = state.wanted.machines.clone();
        let applied = state.applied.take();
        let is_whole = applied.is_none();
        let text = match applied {
            None => ruleset::whole(&state.wanted, &surroundings),
            Some((before, around)) => {
                let near =
                    if around == surroundings { String::new() } else { ruleset::near(&self.settings, &surroundings) };
                difference(&self.settings, &before, &wanted) + &near
            }
        };
        self.step("rules");
        nft::apply(&text, &self.folder.lock).await?;
        self.forget_connections(state, is_whole).await?;
        state.applied = Some((wanted, surroundings));
        Ok(())
    }

    /// Has the kernel forget the connections of addresses that were left, before they are anybody else's; and, where it is
    /// not known which ones were, those of all that no machine has.
    async fn forget_connections(&self, state: &mut State, of_all: bool) -> Result<()> {
        if state.left.is_empty() && !of_all {
            return Ok(());
        }
        self.step("connections");
        let (left, settings) = (state.left.clone(), self.settings.clone());
        let mut known: BTreeSet<IpAddr> = state.wanted.machines.values().flat_map(addresses).collect();
        known.insert(settings.gateway().into());
        known.extend(settings.gateway6().map(IpAddr::V6));
        let is_gone = move |ip| left.contains(&ip) || of_all && settings.is_inside(ip) && !known.contains(&ip);
        conntrack::forget(is_gone).await?;
        state.left.clear();
        Ok(())
    }

    /// Makes the bridge itself, its addresses and what the kernel does with its packets.
    async fn make_bridge(&self) -> Result<Device> {
        let name = &self.settings.name;
        self.step("bridge");
        self.links.make_bridge(name, GATEWAY_MAC).await.map_err(privileged)?;
        self.claim().await?;
        let bridge = self.device(name).await?;
        self.step("settings");
        for (family, setting, value) in [
            ("ipv6", "accept_ra", "0"),
            ("ipv6", "addr_gen_mode", "1"),
            ("ipv4", "forwarding", "1"),
            ("ipv4", "rp_filter", "1"),
            ("ipv4", "accept_redirects", "0"),
            ("ipv4", "send_redirects", "0"),
        ] {
            host::set(family, name, setting, value)?;
        }
        let mut own = vec![(IpAddr::V4(self.settings.gateway()), self.settings.subnet.prefix_len())];
        match self.settings.subnet6.zip(self.settings.gateway6()) {
            Some((subnet, gateway)) => {
                host::set("ipv6", name, "disable_ipv6", "0")?;
                host::set("ipv6", name, "forwarding", "1")?;
                // Older kernels forward by all devices or by none.
                host::set("ipv6", name, "force_forwarding", "1")?;
                own.extend([(IpAddr::V6(gateway), subnet.prefix_len()), (IpAddr::V6(ROUTER), ON_LINK)]);
            }
            None => host::set("ipv6", name, "disable_ipv6", "1")?,
        }
        self.step("up");
        self.links.bring_up(bridge.index, GATEWAY_MAC, self.mtu.into()).await?;
        self.step("addresses");
        let there = self.links.addresses(bridge.index).await?;
        for (address, prefix) in there.iter().filter(|address| !own.contains(address)) {
            self.links.remove_address(bridge.index, *address, *prefix).await?;
        }
        for (address, prefix) in own.into_iter().filter(|address| !there.contains(address)) {
            self.links.add_address(bridge.index, address, prefix).await?;
        }
        Ok(bridge)
    }

    /// Has the bridge say that it is this folder's; refuses one that is another's.
    async fn claim(&self) -> Result<()> {
        let mark = claim::mark(&self.folder);
        let devices = self.links.all().await?;
        let claim = claim::of(&devices, &self.settings, &mark)?;
        let is_marked = claim == claim::Claim::Own;
        claim.allow(&self.settings, true)?;
        match devices.get(&self.settings.name).filter(|_| !is_marked) {
            Some(device) => {
                self.step("mark");
                self.links.mark(device.index, &mark).await
            }
            None => Ok(()),
        }
    }

    /// Makes a machine's tap a port of the bridge, behind which its addresses are.
    async fn connect(&self, bridge: &Device, machine: &Machine) -> Result<()> {
        let name = self.settings.tap(machine.slot);
        self.step("tap");
        tap::make(&name)?;
        let port = self.device(&name).await?;
        if port.kind != "tun" {
            return Err(Error::Missing(format!(
                "{name} is a {} of this host; remove it: sudo ip link delete {name}",
                port.kind
            )));
        }
        // The host neither says nor takes anything on its own by it.
        for (family, setting, value) in
            [("ipv6", "disable_ipv6", "1"), ("ipv4", "forwarding", "0"), ("ipv4", "rp_filter", "1")]
        {
            host::set(family, &name, setting, value)?;
        }
        self.step("port");
        let is_so = port.controller == Some(bridge.index) && port.is_isolated && port.is_up;
        let is_quiet = !port.learns && !port.floods && !port.speaks_arp;
        if !is_so || !is_quiet || port.mtu != u32::from(self.mtu) {
            self.links.enslave(port.index, bridge.index, self.mtu.into()).await?;
        }
        self.step("place");
        self.links.add_place(port.index, machine.mac).await?;
        self.step("neighbours");
        for address in addresses(machine) {
            self.links.add_neighbour(bridge.index, address, machine.mac).await?;
        }
        Ok(())
    }

    /// Takes away what a machine has and is not to have: all, or what differs.
    async fn clear(&self, machine: &Machine, after: Option<&Machine>) -> Result<()> {
        if let Some(port) = self.links.find(&self.settings.tap(machine.slot)).await? {
            if after.is_none_or(|after| after.slot != machine.slot) {
                self.step("no tap");
                self.links.remove(port.index).await?;
            } else if after.is_some_and(|after| after.mac != machine.mac) {
                self.step("no place");
                self.links.remove_place(port.index, machine.mac).await?;
            }
        }
        let Some(bridge) = self.links.find(&self.settings.name).await? else { return Ok(()) };
        let stay: Vec<_> = after.into_iter().flat_map(addresses).collect();
        for address in addresses(machine).filter(|address| !stay.contains(address)) {
            self.step("no neighbour");
            self.links.remove_neighbour(bridge.index, address).await?;
        }
        Ok(())
    }

    /// Takes away whatever no machine has: taps, and what is known of where addresses are.
    async fn clear_others(&self, bridge: &Device, machines: &BTreeMap<MachineId, Machine>) -> Result<()> {
        let devices = self.links.all().await?;
        let taps: BTreeMap<String, &Machine> =
            machines.values().map(|machine| (self.settings.tap(machine.slot), machine)).collect();
        for (name, device) in &devices {
            if self.settings.slot(name).is_some() && !taps.contains_key(name) {
                self.step("no tap");
                self.links.remove(device.index).await?;
            }
        }
        let name_of: BTreeMap<u32, &String> = devices.iter().map(|(name, device)| (device.index, name)).collect();
        for (port, mac) in self.links.places(bridge.index).await? {
            let machine = name_of.get(&port).and_then(|name| taps.get(*name));
            if machine.is_none_or(|machine| machine.mac != mac) {
                self.step("no place");
                self.links.remove_place(port, mac).await?;
            }
        }
        let known: BTreeMap<IpAddr, _> =
            machines.values().flat_map(|machine| addresses(machine).map(|address| (address, machine.mac))).collect();
        for (address, _) in self.links.neighbours(bridge.index).await? {
            if !known.contains_key(&address) {
                self.step("no neighbour");
                self.links.remove_neighbour(bridge.index, address).await?;
            }
        }
        Ok(())
    }

    async fn device(&self, name: &str) -> Result<Device> {
        let gone = || Error::Device { what: format!("the device {name}"), why: "it is gone; try again".into() };
        self.links.find(name).await?.ok_or_else(gone)
    }

    pub(crate) const fn links(&self) -> &Links {
        &self.links
    }
}

/// Takes a bridge down that its folder tells of: its device, taps and rules. For an operator who changes to another mode;
/// machines of it must have ended, and so must its [program](crate::program::end), whose sockets are of that device. Fine where
/// there is none.
///
/// # Errors
/// A step failed; it may be repeated.
pub async fn close(folder: &Path) -> Result<()> {
    let folder = Folder::open(folder).await?;
    let Some(wanted) = folder.read()? else { return Ok(()) };
    take_down(&Links::open()?, &folder, &wanted.settings).await?;
    folder.write(&Wanted { machines: BTreeMap::new(), ..wanted })
}

async fn take_down(links: &Links, folder: &Folder, settings: &Settings) -> Result<()> {
    let devices = links.all().await?;
    let claim = claim::of(&devices, settings, &claim::mark(folder));
    if claim.and_then(|claim| claim.allow(settings, true)).is_err() {
        // Another service has had the name since; all of it is that one's.
        return Ok(());
    }
    for (name, device) in devices {
        if settings.slot(&name).is_some() || name == settings.name && device.kind == "bridge" {
            links.remove(device.index).await?;
        }
    }
    nft::apply(&ruleset::nothing(settings), &folder.lock).await
}

/// The changes of all machines that differ, one after the other: who is gone first, so that what they had can be another's.
fn difference(
    settings: &Settings,
    before: &BTreeMap<MachineId, Machine>,
    after: &BTreeMap<MachineId, Machine>,
) -> String {
    let gone = before.iter().filter(|(id, _)| !after.contains_key(*id));
    let gone = gone.map(|(_, machine)| ruleset::change(settings, Some(machine), None));
    let changed = after.iter().filter(|(id, machine)| before.get(*id) != Some(*machine));
    let changed = changed.map(|(id, machine)| ruleset::change(settings, before.get(id), Some(machine)));
    gone.chain(changed).collect()
}

/// The subnet must be nobody else's: what goes there would go to machines. Says whose it is.
fn overlap(settings: &Settings) -> Result<Option<String>> {
    for address in host::addresses()?.into_iter().filter(|address| address.device != settings.name) {
        let is_inside = match address.ip {
            IpAddr::V4(ip) => {
                let net = ipnet::Ipv4Net::new(ip, address.prefix).map(|net| net.trunc());
                net.is_ok_and(|net| net.contains(&settings.subnet) || settings.subnet.contains(&net))
            }
            IpAddr::V6(ip) => settings.is_inside(ip.into()),
        };
        if is_inside {
            let (device, ip, prefix) = (address.device, address.ip, address.prefix);
            return Ok(Some(format!(
                "{device} of this host has {ip}/{prefix}, of the same addresses as the bridge; give the bridge another subnet"
            )));
        }
    }
    Ok(None)
}

async fn mtu_of_uplink(links: &Links, has6: bool) -> Result<u16> {
    let devices = links.all().await?;
    let mtus = host::uplinks().into_iter().flatten().filter_map(|name| u16::try_from(devices.get(&name)?.mtu).ok());
    let least = if has6 { 1280 } else { 576 };
    Ok(mtus.min().unwrap_or(ETHERNET).clamp(least, 65_520))
}

fn privileged(error: Error) -> Error {
    if rustix::process::geteuid().is_root() {
        return error;
    }
    Error::Missing(
        "network.mode = \"bridge\" changes the network of this host, which only root may; start the service as root"
            .into(),
    )
}
