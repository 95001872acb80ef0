//! What a sandbox may reach, by E2B's words.
//!
//! E2B lets what is allowed win over what is denied, Berth the other way round. Both say the same where everything is denied
//! but what is named, which is what people write; a range that is denied inside of one that is allowed, or the other way
//! round, is judged by Berth's rule.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// All of IPv4, by which SDKs say everything.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];
/// What is asked for under `network` and changes nothing here: servers inside are private whatever it says.
const PASSED_OVER: [&str; 1] = ["allowPublicTraffic"];

/// The rules of a request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Network {
    /// The same, with the internet denied where `allowed` is false.
    #[must_use]
    pub fn with_internet(self, allowed: Option<bool>) -> Self {
        Self { allow_internet_access: allowed.or(self.allow_internet_access), ..self }
    }

    /// Berth's rules; all of them, so that they replace those of before.
    ///
    /// # Errors
    /// It names something that cannot be had here, in a sentence.
    pub fn rules(&self) -> Result<Value, String> {
        for (name, value) in &self.more {
            // An empty list of servers restricts, too.
            let counts = is_wanted(value) || name == "dnsServers" && !value.is_null();
            if counts && !PASSED_OVER.contains(&name.as_str()) {
                return Err(format!("network.{name} is not supported here. Leave it out."));
            }
        }
        let denied = self.deny_out.clone().unwrap_or_default();
        let (all, denied): (Vec<_>, Vec<_>) = denied.into_iter().partition(|rule| ALL.contains(&rule.as_str()));
        let allowed = self.allow_out.clone().unwrap_or_default();
        let is_closed = !all.is_empty() || self.allow_internet_access == Some(false);
        let egress = if is_closed { "deny" } else { "allow" };
        let allowed: Vec<_> = allowed.into_iter().filter(|rule| !ALL.contains(&rule.as_str())).collect();
        Ok(json!({"egress": egress, "allow": allowed, "deny": denied}))
    }

    /// Whether it says anything.
    pub const fn is_given(&self) -> bool {
        self.allow_out.is_some() || self.deny_out.is_some() || self.allow_internet_access.is_some()
    }
}

fn is_wanted(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(network: Value) -> Result<Value, String> {
        Network::deserialize(network).unwrap().rules()
    }

    #[test]
    fn everything_denied_but_what_is_named() {
        let asked =
            json!({"denyOut": ["0.0.0.0/0", "10.0.0.0/8"], "allowOut": ["1.1.1.1"], "allowPublicTraffic": true});
        assert_eq!(rules(asked).unwrap(), json!({"egress": "deny", "allow": ["1.1.1.1"], "deny": ["10.0.0.0/8"]}));
        assert_eq!(rules(json!({})).unwrap(), json!({"egress": "allow", "allow": [], "deny": []}));
        assert_eq!(rules(json!({"allow_internet_access": false})).unwrap()["egress"], "deny");
        assert_eq!(rules(json!({"allowOut": ["0.0.0.0/0"]})).unwrap()["allow"], json!([]));
        let closed = Network::default().with_internet(Some(false));
        assert!(closed.is_given() && !Network::default().is_given());
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        for name in ["egressProxy", "httpsPorts", "maskRequestHost", "rules", "later"] {
            assert!(rules(json!({name: ["x"]})).unwrap_err().contains(name));
            assert!(rules(json!({name: null})).is_ok() && rules(json!({name: []})).is_ok());
        }
        assert!(rules(json!({"dnsServers": []})).is_err() && rules(json!({"dnsServers": null})).is_ok());
    }
}
