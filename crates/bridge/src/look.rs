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
    let chains = nft::list(&["chains"]).await?;
    let closed_tables: BTreeSet<_> = chains
        .iter()
        .map(|chain| &chain["chain"])
        .filter(|chain| chain["policy"] == "drop")
        .map(|chain| (text(chain, "family"), text(chain, "table")))
        .collect();
    let mut rules = Vec::new();
    for (family, table) in closed_tables {
        // One that is gone meanwhile has none.
        rules.extend(nft::list(&["table", family, table]).await.unwrap_or_default());
    }
    lacks.extend(closed(settings, &chains, &rules));
    Ok(lacks)
}

/// What others' chains drop of what machines need, and what to type: what is forwarded, and what guests ask the host for.
fn closed(settings: &Settings, chains: &[Value], rules: &[Value]) -> Vec<String> {
    let bridge = &settings.name;
    let chains: Vec<_> = chains.iter().map(|chain| &chain["chain"]).filter(|chain| chain.is_object()).collect();
    let has = |of: &Value, name: &str| {
        let is =
            |chain: &&Value| chain["name"] == name && chain["table"] == of["table"] && chain["family"] == of["family"];
        chains.iter().any(is)
    };
    let mut lacks = Vec::new();
    for chain in chains.iter().filter(|chain| chain["table"] != bridge.as_str() && chain["policy"] == "drop") {
        let is_forwarded = chain["hook"] == "forward";
        let is_needed = is_forwarded || chain["hook"] == "input";
        let is_spoken = match text(chain, "family") {
            "ip" | "inet" => true,
            "ip6" => settings.subnet6.is_some(),
            "bridge" => is_forwarded,
            _ => false,
        };
        if !is_needed || !is_spoken || knows(rules, chain, bridge) {
            continue;
        }
        let [family, table, name] = ["family", "table", "name"].map(|field| text(chain, field));
        let tables = if family == "ip6" { "ip6tables" } else { "iptables" };
        // Those who keep rules of their own there make them anew, and have a place for what others add.
        let (what, to_type) = if is_forwarded {
            let to_type = if has(chain, "DOCKER-USER") {
                format!("sudo {tables} -I DOCKER-USER -i {bridge} -j ACCEPT, and the same with -o")
            } else if has(chain, "ufw-before-forward") || has(chain, "ufw6-before-forward") {
                format!("sudo ufw route allow in on {bridge}, and sudo ufw route allow out on {bridge}")
            } else {
                format!(
                    "sudo nft insert rule {family} {table} {name} iifname {bridge} accept, and the same with oifname"
                )
            };
            ("packets of machines", to_type)
        } else {
            let to_type = if has(chain, "ufw-before-input") || has(chain, "ufw6-before-input") {
                format!("sudo ufw allow in on {bridge}")
            } else {
                format!("sudo nft insert rule {family} {table} {name} iifname {bridge} accept")
            };
            ("what machines ask for by DHCP and DNS", to_type)
        };
        lacks.push(format!(
            "the chain {name} of {family} {table} drops what it does not know, {what} among it; type: {to_type}"
        ));
    }
    lacks
}

/// Whether a chain, or one of its table that it leads to, accepts something by what it knows of the bridge.
fn knows(rules: &[Value], chain: &Value, bridge: &str) -> bool {
    let of_bridge = |expression: &Value| {
        let (key, right) = (&expression["match"]["left"]["meta"]["key"], &expression["match"]["right"]);
        let is_among = right["set"].as_array().is_some_and(|names| names.iter().any(|name| name == bridge));
        key == "iifname" && (right == bridge || is_among)
    };
    let mut reached = vec![text(chain, "name")];
    let mut next = 0;
    while let Some(name) = reached.get(next).copied() {
        next += 1;
        let is_of = |rule: &&Value| {
            rule["chain"] == name && rule["table"] == chain["table"] && rule["family"] == chain["family"]
        };
        for rule in rules.iter().map(|object| &object["rule"]).filter(is_of) {
            let expressions = rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default();
            if expressions.iter().any(of_bridge) && expressions.iter().any(|one| one.get("accept").is_some()) {
                return true;
            }
            let targets = expressions.iter().flat_map(|one| [&one["jump"]["target"], &one["goto"]["target"]]);
            for target in targets.filter_map(Value::as_str) {
                if !reached.contains(&target) {
                    reached.push(target);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn who_keeps_rules_has_a_command_of_its_own() {
        let chain = |family: &str, name: &str, hook: Option<&str>| {
            let mut chain = json!({"family": family, "table": "filter", "name": name});
            if let Some(hook) = hook {
                (chain["hook"], chain["policy"]) = (json!(hook), json!("drop"));
            }
            json!({ "chain": chain })
        };
        let (input, forward) = (chain("ip", "INPUT", Some("input")), chain("ip", "FORWARD", Some("forward")));
        let metainfo = json!({"metainfo": {}});
        let said = |more: &[(&str, &str)]| {
            let more = more.iter().map(|(family, name)| chain(family, name, None));
            let all: Vec<_> = [metainfo.clone(), input.clone(), forward.clone()].into_iter().chain(more).collect();
            closed(&Settings::default(), &all, &[])
        };
        for (more, of_input, of_forward) in [
            (
                vec![],
                "nft insert rule ip filter INPUT iifname berth0",
                "nft insert rule ip filter FORWARD iifname berth0",
            ),
            (
                vec![("ip", "ufw-before-input"), ("ip", "ufw-before-forward")],
                "sudo ufw allow in on berth0",
                "sudo ufw route allow in on berth0",
            ),
            (vec![("ip", "DOCKER-USER")], "nft insert rule", "sudo iptables -I DOCKER-USER -i berth0"),
            (vec![("ip6", "DOCKER-USER")], "nft insert rule", "nft insert rule"),
        ] {
            let said = said(&more);
            assert_eq!(said.len(), 2, "{said:?}");
            assert!(said[0].contains(of_input) && said[1].contains(of_forward), "{said:?}");
        }
        let six = [chain("ip6", "INPUT", Some("input"))];
        let without = Settings { subnet6: None, ..Settings::default() };
        assert_eq!((closed(&Settings::default(), &six, &[]).len(), closed(&without, &six, &[]).len()), (1, 0));
    }
}
