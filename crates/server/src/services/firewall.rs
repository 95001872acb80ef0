//! Firewall rules on the wire: those of a network and those of a VM look alike. The domain parses them; see
//! [`berth_domain::firewall`].

use berth_domain::error::FieldError;
use berth_domain::firewall::{MAX_MEMBERS, Rules};
use berth_domain::{Error, Result};
use serde::Serialize;
use utoipa::ToSchema;

use crate::db::network::{self, LabelledRow};

/// Firewall rules, in the order in which they apply.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FirewallRulesResponse)]
pub struct RulesView {
    /// The rules. Where there are none, nothing is narrowed.
    #[schema(value_type = Vec<RuleWire>)]
    rules: Rules,
}

impl From<&Rules> for RulesView {
    fn from(rules: &Rules) -> Self {
        Self { rules: rules.clone() }
    }
}

/// Refuses rules of groups that have too many addresses by now to be told to whoever applies them.
pub fn require_few(rules: &Rules, labelled: &[LabelledRow]) -> Result<()> {
    if rules.with_members(|label| network::group(labelled, label)).is_some() {
        return Ok(());
    }
    let message = format!(
        "have groups of more than {MAX_MEMBERS} addresses together, those of a group counted in each rule that names it: put \
         the ports of one group into one rule, or name a range of addresses as source"
    );
    Err(Error::invalid(vec![FieldError { field: "rules".into(), message }]))
}

/// Firewall rules to be set: these and no others.
#[derive(ToSchema)]
#[schema(as = FirewallRulesRequest)]
#[expect(dead_code, reason = "describes; the domain parses")]
pub struct RulesBody {
    /// The rules, in the order in which they apply: the first that matches decides, and what none matches passes.
    #[schema(max_items = 100)]
    rules: Vec<RuleWire>,
}

/// A firewall rule. Rules only narrow: from outside a VM is reached at its exposed ports alone, and what the platform
/// refuses to every guest no rule opens. They speak of who begins; answers pass.
#[derive(ToSchema)]
#[schema(as = FirewallRule)]
#[expect(dead_code, reason = "describes; the domain parses")]
pub struct RuleWire {
    /// Which way, as the VM sees it, or a member of the network.
    direction: FirewallDirection,
    /// Which protocol.
    protocol: FirewallProtocol,
    /// The ports that it goes to, for `tcp` and `udp`; all where absent.
    #[schema(min_items = 1, max_items = 32)]
    ports: Option<Vec<FirewallPorts>>,
    /// The other side, as an address or a range: where what comes `in` is from, where what goes `out` is to. Or a group, as
    /// `label:role=web`: the VMs of the network that have the label, by their addresses there. Anywhere where absent.
    #[schema(examples("10.20.0.0/24"))]
    source: Option<String>,
    /// What becomes of it.
    action: FirewallAction,
}

/// Which way.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum FirewallDirection {
    In,
    Out,
}

/// Which protocol.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum FirewallProtocol {
    Tcp,
    Udp,
    Icmp,
    Any,
}

/// What becomes of it.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum FirewallAction {
    Allow,
    Deny,
}

/// A port, or a range of them such as `8000-8100`, both ends included.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) enum FirewallPorts {
    Port(FirewallPort),
    Range(FirewallRange),
}

/// A port.
#[derive(ToSchema)]
#[schema(minimum = 1, maximum = 65535)]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) struct FirewallPort(u16);

/// A range of ports, both ends included.
#[derive(ToSchema)]
#[schema(pattern = "^[0-9]{1,5}(-[0-9]{1,5})?$")]
#[expect(dead_code, reason = "describes a word of the wire")]
pub(crate) struct FirewallRange(String);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_domain::firewall::SetRules;
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_of_more_than_can_be_told_are_refused_where_they_are_set() {
        let rule = json!({"direction": "in", "protocol": "tcp", "source": "label:role=web", "action": "allow"});
        let rules = SetRules::try_from(&json!({ "rules": vec![rule; 100] })).unwrap().rules;
        let vm = |number: usize| {
            let labels = BTreeMap::from([("role".to_owned(), "web".to_owned())]);
            let place = u32::from_be_bytes([10, 128, 0, 0]) + u32::try_from(number).unwrap();
            LabelledRow::new(labels, ("10.128.0.0/16".parse().unwrap(), "fd00:20::/64".parse().ok()), place.into())
        };
        let vms: Vec<_> = (2..330).map(vm).collect();
        assert!(require_few(&rules, &vms[1..]).is_ok(), "327 of two addresses in a hundred rules");
        let refused = require_few(&rules, &vms).unwrap_err();
        assert_eq!(refused.details[0].field, "rules");
        assert!(refused.message.contains("65536 addresses"), "{}", refused.message);
    }
}
