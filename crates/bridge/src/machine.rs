//! What is wanted: the bridge and its machines. Pure.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use berth_domain::firewall::Rules;
use berth_domain::ids::MachineId;
use berth_domain::vm::inbound::InboundPort;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::mac::Mac;
use crate::settings::Settings;

/// A machine, as its bridge knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// A number from 1 on that no other machine of the host has. Its tap is named after it.
    pub slot: u16,
    /// The link address of its card. What comes from another one is dropped.
    pub mac: Mac,
    /// Its address ([`Settings::address`]), which it is told by DHCP. What comes from another one is dropped.
    pub address: Ipv4Addr,
    /// Its IPv6 address ([`Settings::address6`]); without, it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<Ipv6Addr>,
    /// Its firewall rules. What one of them says of a group says nothing here, since no member of a network comes this way.
    #[serde(default)]
    pub rules: Rules,
    /// Ports of addresses of the host that lead to ports of the guest, SSH's among them. To this host itself an address of
    /// loopback leads nowhere, so none may be one.
    #[serde(default)]
    pub ports: Vec<InboundPort>,
}

impl Machine {
    /// A machine of a slot, with a card of this address, without rules and ports: with all that follows from the slot; none
    /// where the subnet does not reach so far.
    pub fn of_slot(settings: &Settings, slot: u16, mac: Mac) -> Option<Self> {
        Some(Self {
            slot,
            mac,
            address: settings.address(slot)?,
            address6: settings.address6(slot),
            rules: Rules::default(),
            ports: Vec::new(),
        })
    }

    /// Whether it can be as it is described.
    fn check(&self, settings: &Settings) -> Result<()> {
        let wrong = |message: String| Err(Error::Invalid(format!("the machine of slot {}: {message}", self.slot)));
        if self.slot == 0 {
            return wrong("slots begin with 1".into());
        }
        if !self.mac.is_unicast() || self.mac == crate::GATEWAY_MAC {
            return wrong(format!("{} is no link address of a card", self.mac));
        }
        let is_nobodys =
            [settings.subnet.network(), settings.gateway(), settings.subnet.broadcast()].contains(&self.address);
        if is_nobodys || !settings.is_inside(self.address.into()) {
            return wrong(format!("{} is no address for a machine of {}", self.address, settings.subnet));
        }
        if let Some(address) = self.address6 {
            let is_nobodys = settings.gateway6() == Some(address) || address.segments()[4..] == [0; 4];
            if is_nobodys || !settings.is_inside(address.into()) {
                return wrong(format!("{address} is no IPv6 address for a machine of this bridge"));
            }
        }
        for port in &self.ports {
            let (ip, number) = (port.at.ip(), port.at.port());
            if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || settings.is_inside(ip) || number == 0 {
                return wrong(format!("a port leads to it from {}, which is no address that others reach", port.at));
            }
            // There is no IPv6 to lead to.
            if ip.is_ipv6() && self.address6.is_none() {
                return wrong(format!("a port leads to it from {}, and it has no IPv6 address", port.at));
            }
        }
        Ok(())
    }
}

/// The whole of it: what is written to the bridge's folder before anything is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// The bridge.
    pub settings: Settings,
    /// Its machines.
    pub machines: BTreeMap<MachineId, Machine>,
}

impl Wanted {
    /// Whether all machines can be at once, on a bridge that can be.
    ///
    /// # Errors
    /// It says what is wrong, or which machine is to have what another one has ([`Error::Taken`]).
    pub fn check(&self) -> Result<()> {
        let mut taken = HashSet::new();
        for (id, machine) in &self.machines {
            machine.check(&self.settings)?;
            let mut things =
                vec![format!("the slot {}", machine.slot), machine.mac.to_string(), machine.address.to_string()];
            things.extend(machine.address6.map(|address| address.to_string()));
            things.extend(machine.ports.iter().map(|port| format!("{} ({})", port.at, port.to.protocol)));
            for thing in things {
                if !taken.insert(thing.clone()) {
                    return Err(Error::Taken { machine: *id, thing });
                }
            }
        }
        Ok(())
    }

    /// The machine that has a link address.
    pub fn by_mac(&self, mac: Mac) -> Option<&Machine> {
        self.machines.values().find(|machine| machine.mac == mac)
    }
}

/// The addresses of a machine.
pub(crate) fn addresses(machine: &Machine) -> impl Iterator<Item = IpAddr> {
    let own = [Some(machine.address.into()), machine.address6.map(IpAddr::V6)];
    let on_link = machine.address6.map(|_| IpAddr::V6(machine.mac.link_local()));
    own.into_iter().chain([on_link]).flatten()
}
