//! `[network]`: what the networks of machines may reach.

use berth_domain::sandbox::network_policy::Rule;
use ipnet::IpNet;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// What the operator lets machines reach beyond the outside world.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Local networks and addresses of the host that owners of sandboxes may unlock by a rule of `allow`; none by default.
    #[serde(deserialize_with = "networks")]
    pub unlock: Vec<IpNet>,
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let network = |text: &String| {
        let rule = text.parse::<Rule>().ok();
        let network = rule.as_ref().and_then(Rule::network).copied();
        network.ok_or_else(|| D::Error::custom(format!("'{text}' is no address and no network like 10.0.0.0/8")))
    };
    Vec::<String>::deserialize(deserializer)?.iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_networks_are_unlocked() {
        let read = |text: &str| toml::from_str::<Network>(text).map(|network| network.unlock);
        assert_eq!(read(""), Ok(Vec::new()));
        let some = vec!["10.1.0.0/16".parse().unwrap(), "192.0.2.1/32".parse().unwrap(), "fd00::/8".parse().unwrap()];
        assert_eq!(read("unlock = [\"10.1.0.0/16\", \"192.0.2.1\", \"fd00::/8\"]"), Ok(some));
        for wrong in ["example.org", "10.0.0.1/8", "10.0.0.0/33", ""] {
            let refused = read(&format!("unlock = [{wrong:?}]")).unwrap_err().to_string();
            assert!(refused.contains("no network like"), "{refused}");
        }
    }
}
