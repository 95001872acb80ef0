//! Firewall rules, as people type them and read them.
//!
//! ```text
//!   allow in tcp 22,8000-8100 from 10.20.0.0/24
//!   deny in any
//!   deny out udp 53 to 192.0.2.0/24
//! ```

use anyhow::{Result, bail};
use berth_client::{FirewallPorts, FirewallRule, FirewallRules};
use clap::Args;

use crate::context::Context;
use crate::output::{self, Table};
use crate::typed::Words;

/// The option for each field.
pub const WORDS: Words = &[("rules", "--set")];

/// How a rule is typed.
const FORM: &str = "allow|deny in|out tcp|udp|icmp|any [PORTS] [from|to ADDRESS|label:KEY=VALUE]";

#[derive(Args)]
pub struct RulesArgs {
    /// All the rules from now on, in this order, repeated: "allow in tcp 22 from 10.20.0.0/24", "allow in
    /// tcp 5432 from label:role=web" for the VMs with that label, "deny in any". The first
    /// that matches decides, what none matches passes
    #[arg(long = "set", value_name = "RULE")]
    set: Vec<String>,
    /// No rules from now on
    #[arg(long, conflicts_with = "set")]
    clear: bool,
}

impl RulesArgs {
    /// The rules to be set; none where they are only to be shown.
    ///
    /// # Errors
    /// A rule is typed otherwise.
    pub fn wanted(&self) -> Result<Option<FirewallRules>> {
        let rules = self.set.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
        Ok((self.clear || !rules.is_empty()).then_some(FirewallRules { rules }))
    }
}

/// Shows rules.
pub fn show(context: &Context, rules: &FirewallRules) -> Result<()> {
    let table = |rules: &FirewallRules| {
        let row = |(number, rule): (usize, &FirewallRule)| [(number + 1).to_string(), text(rule)];
        let none = "No rules: what is exposed is open to everybody. Set some: --set \"deny in any\"";
        Table::new(["#", "RULE"], rules.rules.iter().enumerate().map(row), none)
    };
    output::rows(context.look, rules, table)
}

fn parse(text: &str) -> Result<FirewallRule> {
    let words: Vec<_> = text.split_whitespace().collect();
    let [action, direction, protocol, rest @ ..] = words.as_slice() else {
        bail!("'{text}' is no rule. Type: {FORM}");
    };
    let (ports, source) = match rest {
        [] => (None, None),
        [ports] => (Some(*ports), None),
        ["from" | "to", source] => (None, Some(*source)),
        [ports, "from" | "to", source] => (Some(*ports), Some(*source)),
        _ => bail!("'{text}' is no rule. Type: {FORM}"),
    };
    let port = |port: &str| port.parse().map_or_else(|_| FirewallPorts::Range(port.to_owned()), FirewallPorts::Port);
    Ok(FirewallRule {
        direction: (*direction).to_owned(),
        protocol: (*protocol).to_owned(),
        ports: ports.map(|ports| ports.split(',').map(port).collect()).unwrap_or_default(),
        source: source.map(str::to_owned),
        action: (*action).to_owned(),
    })
}

fn text(rule: &FirewallRule) -> String {
    let port = |port: &FirewallPorts| match port {
        FirewallPorts::Port(port) => port.to_string(),
        FirewallPorts::Range(range) => range.clone(),
    };
    let ports = rule.ports.iter().map(port).collect::<Vec<_>>().join(",");
    let other = rule.source.as_ref().map(|source| {
        let word = if rule.direction == "in" { "from" } else { "to" };
        format!("{word} {source}")
    });
    let words = [rule.action.clone(), rule.direction.clone(), rule.protocol.clone(), ports, other.unwrap_or_default()];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_typed_as_they_are_shown() {
        for rule in [
            "allow in tcp 22,8000-8100 from 10.20.0.0/24",
            "deny in any",
            "deny out udp 53 to 192.0.2.0/24",
            "allow in icmp from ::/0",
            "deny out tcp 25",
            "allow in tcp 5432 from label:role=web",
        ] {
            assert_eq!(text(&parse(rule).unwrap()), rule);
        }
        let read = parse("allow in tcp 22,8000-8100").unwrap();
        assert_eq!(read.ports, [FirewallPorts::Port(22), FirewallPorts::Range("8000-8100".into())]);
        for wrong in
            ["", "allow", "allow in", "allow in tcp 22 from", "allow in tcp 22 by 10.0.0.1", "allow in tcp 22 23"]
        {
            assert!(parse(wrong).unwrap_err().to_string().contains("Type: allow|deny"), "{wrong}");
        }
    }
}
