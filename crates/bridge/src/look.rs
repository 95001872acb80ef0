//! What is there, for tests and for the doctor; and what the host lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use crate::bridge::{Bridge, NO_IPV6};
use crate::error::Result;
use crate::link::{Device, Links};
use crate::mac::Mac;
use crate::settings::Settings;
use crate::{host, nft};

/// What the host has of a bridge. Two of the same that is wanted are equal, however they came to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// The bridge and its taps.
    pub devices: BTreeMap<String, Device>,
    /// The taps that are ports of the bridge.
    pub ports: BTreeSet<String>,
    /// The bridge's own addresses, and the bits of their networks.
    pub addresses: BTreeSet<(IpAddr, u8)>,
    /// Where addresses are.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// Behind which taps link addresses are.
    pub places: BTreeSet<(String, Mac)>,
    /// Chains, maps and sets with what is in them, by family, kind and name.
    pub rules: BTreeMap<String, BTreeSet<String>>,
}

impl Bridge {
    /// What is there of it.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub async fn look(&self) -> Result<Present> {
        look(self.links(), self.settings()).await
    }
}

/// What the host has of a bridge of this name, whoever made it.
///
/// # Errors
/// The kernel cannot be asked, or `nft` is not there.
pub async fn present(settings: &Settings) -> Result<Present> {
    look(&Links::open()?, settings).await
}

async fn look(links: &Links, settings: &Settings) -> Result<Present> {
    let mut all = links.all().await?;
    all.retain(|name, _| *name == settings.name || settings.slot(name).is_some());
    let mut present = Present { rules: rules(&settings.name).await?, ..Present::default() };
    let names: BTreeMap<u32, String> = all.iter().map(|(name, device)| (device.index, name.clone())).collect();
    if let Some(index) = all.get(&settings.name).map(|bridge| bridge.index) {
        present.ports = all.iter().filter(|(_, d)| d.controller == Some(index)).map(|(name, _)| name.clone()).collect();
        present.addresses = links.addresses(index).await?.into_iter().collect();
        present.neighbours = links.neighbours(index).await?;
        // What the kernel makes up itself: groups, and the broadcast address.
        present.neighbours.retain(|address, _| settings.is_inside(*address) || !address.is_multicast());
        let places = links.places(index).await?;
        present.places = places.into_iter().filter_map(|(port, mac)| Some((names.get(&port)?.clone(), mac))).collect();
    }
    let plain = |(name, device): (String, Device)| {
        let mac = device.mac.filter(|_| name == settings.name);
        (name, Device { index: 0, alias: None, controller: None, mac, ..device })
    };
    present.devices = all.into_iter().map(plain).collect();
    Ok(present)
}

/// The rules of both tables without what differs between two that say the same: numbers, and the order of what has none.
async fn rules(name: &str) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for family in ["bridge", "inet"] {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for object in nft::table(family, name).await? {
            let Value::Object(object) = object else { continue };
            for (kind, mut value) in object {
                if let Value::Object(fields) = &mut value {
                    fields.remove("handle");
                }
                if kind == "rule" {
                    let chain = format!("{family} chain {}", text(&value, "chain"));
                    let number = numbers.entry(chain.clone()).or_default();
                    *number += 1;
                    found.entry(chain).or_default().insert(format!("{number:05} {}", value["expr"]));
                } else if kind != "metainfo" {
                    let elements = value.as_object_mut().and_then(|fields| fields.remove("elem"));
                    let entry = found.entry(format!("{family} {kind} {}", text(&value, "name"))).or_default();
                    entry.insert(value.to_string());
                    entry.extend(elements.iter().filter_map(Value::as_array).flatten().map(ToString::to_string));
                }
            }
        }
    }
    Ok(found)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What a host lacks for machines of a bridge to be reached and to reach the outside, each with what to type. Nothing of it
/// is changed by the service, since it is the whole host's.
///
/// # Errors
/// The kernel cannot be asked, or `nft` is not there: [`Error::Missing`](crate::Error::Missing) says what to type.
pub async fn lacks(settings: &Settings) -> Result<Vec<String>> {
    let mut lacks = Vec::new();
    if settings.subnet6.is_some() && !host::has_ipv6() {
        lacks.push(NO_IPV6.into());
    }
    let [uplink, uplink6] = host::uplinks();
    if let Some(device) = uplink.filter(|device| host::setting("ipv4", device, "forwarding").is_ok_and(|is| is == "0"))
    {
        lacks.push(format!(
            "{device} forwards no packets of IPv4, so answers do not reach machines; type: sudo sysctl -w \
             net/ipv4/conf/{device}/forwarding=1, and put that line into /etc/sysctl.d/60-berth.conf"
        ));
    }
    // IPv6 is forwarded by all devices, or, since Linux 6.17, by one that is forced to.
    let is_off = |device: &String| {
        let is_forced = host::setting("ipv6", device, "force_forwarding").is_ok_and(|is| is == "1");
        !is_forced && host::setting("ipv6", "all", "forwarding").is_ok_and(|is| is == "0")
    };
    if let Some(device) = uplink6.filter(|device| settings.subnet6.is_some() && is_off(device)) {
        lacks.push(format!(
            "this host forwards no packets of IPv6, so machines have none; type: sudo sysctl -w \
             net/ipv6/conf/{device}/accept_ra=2 net/ipv6/conf/all/forwarding=1, and put both into /etc/sysctl.d/60-berth.conf"
        ));
    }
    for chain in nft::list(&["chains"]).await? {
        let chain = &chain["chain"];
        let is_others = chain["table"] != settings.name.as_str();
        if is_others && chain["hook"] == "forward" && chain["policy"] == "drop" {
            let [family, table, name] =
                ["family", "table", "name"].map(|field| chain[field].as_str().unwrap_or_default());
            lacks.push(format!(
                "the chain {name} of {family} {table} drops what it does not know, packets of machines among it; type: sudo nft \
                 insert rule {family} {table} {name} iifname {bridge} accept, and the same with oifname",
                bridge = settings.name
            ));
        }
    }
    Ok(lacks)
}
