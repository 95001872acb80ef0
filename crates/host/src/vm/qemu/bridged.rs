//! VMs on the host's bridge ([`Bridges`](crate::bridge::Bridges)).
//!
//! A machine's device and its rules stand before its process begins, and go after that has ended. The device is opened here,
//! by root, and its descriptor passed on: QEMU has a network of its own, in which it is not. Note and process say together
//! whether a machine is on the bridge: a note is there from before a start to the next one elsewhere, so that a memory that
//! is loaded finds the address that its guest has.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use berth_bridge::{Bridge, Mac, Machine, open_tap, open_vhost};
use berth_domain::ids::MachineId;
use berth_domain::vm::InboundPort;
use berth_process::folder;
use berth_qemu::machine::{Link, Tap, memory};
use berth_qemu::seed;
use serde::{Deserialize, Serialize};

use super::{QemuEngine, network};
use crate::bridge::{Beginning, failed};
use crate::error::transient;
use crate::vm::{MachineSpec, Started};
use crate::{EngineError, Result, fault};

/// What is noted of a machine on the bridge, in its folder.
const NOTE: &str = "bridge.json";
/// Longest such note, in bytes.
const LONGEST: u64 = 4096;

/// The addresses that a guest on the bridge was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    address: Ipv4Addr,
    address6: Option<Ipv6Addr>,
}

/// What a machine on the bridge is started with.
pub(super) struct Plugged<'a> {
    /// What its card ends in.
    pub(super) link: Link,
    /// The largest packet there, in bytes.
    pub(super) mtu: usize,
    /// What could not be opened.
    pub(super) started: Started,
    /// Until this is dropped, nobody takes its network away.
    pub(super) beginning: Beginning<'a>,
}

impl QemuEngine {
    /// The network of a machine that is about to start, where it is the bridge's.
    ///
    /// # Errors
    /// The bridge cannot have it now; or its memory knows a bridge that is not there any more.
    pub(super) async fn bridge_for(&self, spec: &MachineSpec) -> Result<Option<Plugged<'_>>> {
        let dir = self.machine(spec.id);
        let before = read(&dir)?;
        let goes_on = spec.goes_on && memory::is_saved(&dir);
        let bridge = self.bridges.open_to_all();
        let bridge = match (bridge, &before) {
            (Some(bridge), Some(_)) if goes_on => bridge,
            (None, Some(before)) if goes_on => return Err(elsewhere(before)),
            (Some(bridge), _) if spec.is_bridged && !goes_on => bridge,
            _ => {
                // A memory that is loaded beside a program was saved so.
                forget(&dir)?;
                return Ok(None);
            }
        };
        let card = card(spec);
        if bridge.wanted().await.iter().any(|(id, other)| *id != spec.id && other.mac == card) {
            tracing::warn!(vm = %spec.id, %card, "another machine's card has the same address, so it is not on the bridge");
            forget(&dir)?;
            return Ok(None);
        }
        let (machine, started) = self.on_bridge(bridge, spec, &[]).await?;
        let note = Note { address: machine.address, address6: machine.address6 };
        if let Some(before) = before.filter(|before| goes_on && *before != note) {
            return Err(elsewhere(&before));
        }
        self.plug_in(bridge, spec, (&machine, &note), started).await.map(Some)
    }

    async fn plug_in<'a>(
        &'a self,
        bridge: &Bridge,
        spec: &MachineSpec,
        (machine, note): (&Machine, &Note),
        started: Started,
    ) -> Result<Plugged<'a>> {
        let beginning = self.bridges.begin(spec.id);
        let text = serde_json::to_vec(note).map_err(transient)?;
        folder::write(&self.machine(spec.id).join(NOTE), &text).map_err(transient)?;
        fault::point("vm.bridge.noted").await.map_err(transient)?;
        self.bridges.set(spec.id, machine).await?;
        fault::point("vm.bridge.set").await.map_err(transient)?;
        let device = open_tap(&bridge.settings().tap(machine.slot)).map_err(failed)?;
        let vhost = open_vhost().map(Arc::new);
        let link = Link::Tap(Tap { device: Arc::new(device), vhost });
        Ok(Plugged { link, mtu: bridge.mtu().into(), started, beginning })
    }

    /// Changes the ports and rules of a machine that runs on the bridge. What is open stays open.
    pub(super) async fn set_bridged(&self, spec: &MachineSpec) -> Result<Started> {
        let bridge = self.bridges.of_those_on_it().ok_or_else(|| transient("this host has no bridge any more"))?;
        let before = self.bridges.get(spec.id).await.map(|machine| machine.ports).unwrap_or_default();
        // In the mode `user` it is to be reached by this host's loopback, which no rule leads elsewhere.
        let is_reached_as_before = spec.ports.iter().any(|port| port.at.ip().is_loopback());
        let spec = if is_reached_as_before { &MachineSpec { ports: before.clone(), ..spec.clone() } } else { spec };
        let (machine, started) = self.on_bridge(bridge, spec, &before).await?;
        // A machine that runs is not given up for its ports.
        self.bridges.set(spec.id, &machine).await.map_err(transient)?;
        Ok(Started { is_reached_as_before, ..started })
    }

    /// A machine as it is to be on the bridge, without ports that another program of the host has. Some it has open already.
    async fn on_bridge(&self, bridge: &Bridge, spec: &MachineSpec, open: &[InboundPort]) -> Result<(Machine, Started)> {
        let all_given = || {
            EngineError::NoCapacity("the addresses of network.subnet are all given out; an operator widens it".into())
        };
        let slot = u16::try_from(spec.slot).map_err(|_| all_given())?;
        let machine = Machine::of_slot(bridge.settings(), slot, card(spec)).ok_or_else(all_given)?;
        let (wanted, low_ports) = self.sort_ports(spec);
        let new: Vec<_> = wanted.iter().filter(|port| !open.contains(port)).copied().collect();
        // They are tried and not held: nobody listens at what the kernel leads elsewhere.
        let mut taken_ports = network::bind(&new)?.taken;
        let others = self.bridges.ports_but(spec.id).await;
        let is_others = |port: &&InboundPort| others.contains(&(port.at, port.to.protocol));
        taken_ports.extend(wanted.iter().filter(is_others).map(|port| port.to));
        let taken_ports = network::without_ssh(taken_ports)?;
        let ports = wanted.into_iter().filter(|port| !taken_ports.contains(&port.to)).collect();
        let machine = Machine { rules: spec.rules.clone(), ports, ..machine };
        Ok((machine, Started { low_ports, taken_ports, ..Started::default() }))
    }

    /// Whether the machine that was started last in a folder is on the bridge.
    pub(super) fn is_bridged(&self, id: MachineId) -> bool {
        // What cannot be told is taken for a machine of the bridge: nobody begins a program beside it.
        read(&self.machine(id)).map_or(true, |note| note.is_some())
    }
}

/// The link address of a machine's card.
fn card(spec: &MachineSpec) -> Mac {
    Mac(seed::Mac::of(spec.id.0).0)
}

/// Why a memory cannot be loaded that was saved on a bridge.
fn elsewhere(before: &Note) -> EngineError {
    EngineError::Permanent(format!(
        "its memory was saved on a bridge at {}, which it has no more: {}, or the operator sets network.mode = \"bridge\" \
         and network.subnet as they were",
        before.address,
        memory::GIVE_UP
    ))
}

/// What is noted of the machine that was started last in a folder; none of one that is not on a bridge.
fn read(dir: &Path) -> Result<Option<Note>> {
    match folder::read(&dir.join(NOTE), LONGEST) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(transient(error)),
        // Half of one was left by a host that died, and with it every process.
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
    }
}

fn forget(dir: &Path) -> Result<()> {
    match std::fs::remove_file(dir.join(NOTE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(transient(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_there_until_a_start_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert_eq!(read(dir).unwrap(), None);
        forget(dir).unwrap();
        let note = Note { address: Ipv4Addr::new(10, 127, 0, 2), address6: None };
        folder::write(&dir.join(NOTE), &serde_json::to_vec(&note).unwrap()).unwrap();
        assert_eq!(read(dir).unwrap(), Some(note));
        folder::write(&dir.join(NOTE), b"{\"addr").unwrap();
        assert_eq!(read(dir).unwrap(), None, "half of one");
        std::fs::remove_file(dir.join(NOTE)).unwrap();
        std::fs::create_dir(dir.join(NOTE)).unwrap();
        assert!(read(dir).is_err(), "what cannot be told is not none");
    }
}
