use serde_json::{Value, json};

use super::Direction::{In, Out};
use super::RuleProtocol::{Icmp, Tcp, Udp};
use super::*;

fn set(rules: &Value) -> Result<Rules> {
    SetRules::try_from(&json!({ "rules": rules })).map(|set| set.rules)
}

fn message(rules: &Value) -> String {
    set(rules).unwrap_err().message
}

fn begins(direction: Direction, protocol: RuleProtocol, port: u16, other: &str) -> Beginning {
    let port = (protocol != RuleProtocol::Icmp).then_some(port);
    Beginning { direction, protocol, port, other: other.parse().unwrap(), within: true }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = set(&json!([
        {"direction": "in", "protocol": "tcp", "ports": [22, "8000-8100"], "source": "10.0.0.0/8", "action": "allow"},
        {"direction": "in", "protocol": "icmp", "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
        {"direction": "out", "protocol": "udp", "ports": [53], "source": "2001:db8::/32", "action": "deny"},
    ]))
    .unwrap();
    for (beginning, allowed) in [
        (begins(In, Tcp, 22, "10.1.2.3"), true),
        (begins(In, Tcp, 8000, "10.1.2.3"), true),
        (begins(In, Tcp, 8100, "10.1.2.3"), true),
        // A caller of IPv4 at a socket of IPv6 is the same caller.
        (begins(In, Tcp, 22, "::ffff:10.1.2.3"), true),
        (begins(In, Tcp, 7999, "10.1.2.3"), false),
        (begins(In, Tcp, 8101, "10.1.2.3"), false),
        (begins(In, Tcp, 22, "11.1.2.3"), false),
        (begins(In, Udp, 22, "10.1.2.3"), false),
        (begins(In, Icmp, 0, "11.1.2.3"), true),
        (begins(Out, Udp, 53, "2001:db8::1"), false),
        (begins(Out, Udp, 54, "2001:db8::1"), true),
        (begins(Out, Tcp, 53, "2001:db8::1"), true),
        (begins(Out, Udp, 53, "10.1.2.3"), true),
    ] {
        assert_eq!(rules.allow(&beginning), allowed, "{beginning:?}");
    }
    for direction in [In, Out] {
        let beginning = begins(direction, Icmp, 0, "10.0.0.1");
        assert!(Rules::default().allow(&beginning), "without rules everything passes");
        assert!(!Rules::nothing().allow(&beginning));
    }
}

#[test]
fn rules_are_read_as_they_are_written() {
    let rules = json!([
        {"direction": "in", "protocol": "tcp", "ports": [1, "2-65535"], "source": "10.0.0.0/8", "action": "allow"},
        {"direction": "out", "protocol": "any", "action": "deny"},
    ]);
    let read = set(&rules).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), rules);
    assert_eq!(serde_json::from_value::<Rules>(rules).unwrap(), read);
    // One spelling for one thing.
    let one = json!([{"direction": "in", "protocol": "udp", "ports": ["80", "81-81", 82.0], "source": "10.0.0.1/32", "action": "deny"}]);
    let whole =
        json!([{"direction": "in", "protocol": "udp", "ports": [80, 81, 82], "source": "10.0.0.1", "action": "deny"}]);
    assert_eq!(serde_json::to_value(set(&one).unwrap()).unwrap(), whole);
    assert_eq!(set(&json!([])).unwrap(), Rules::default());
}

#[test]
fn a_rule_of_a_group_matches_whoever_is_in_it() {
    let said = json!([
        {"direction": "in", "protocol": "tcp", "source": "label:role=web", "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
    ]);
    let rules = set(&said).unwrap();
    assert!(rules.has_groups() && !Rules::nothing().has_groups());
    assert!(!rules.allow(&begins(In, Tcp, 80, "10.128.0.2")), "as it is written nobody is in it");
    let members = |label: &Label| {
        assert_eq!((label.key(), label.value()), ("role", "web"));
        ["10.128.0.2", "fd00:20::2"].map(|address| address.parse().unwrap()).into()
    };
    let told = rules.with_groups(members);
    for (other, allowed) in [("10.128.0.2", true), ("fd00:20::2", true), ("10.128.0.3", false), ("fd00:20::3", false)] {
        assert_eq!(told.allow(&begins(In, Tcp, 80, other)), allowed, "{other}");
    }
    // Whoever applies them is told who that is; an owner says it not, nor sees it.
    let wire = serde_json::to_value(&told).unwrap();
    assert_eq!(wire[0]["members"], json!(["10.128.0.2", "fd00:20::2"]));
    assert_eq!(serde_json::from_value::<Rules>(wire.clone()).unwrap(), told);
    assert_eq!(set(&wire).unwrap_err().details[0].field, "rules[0].members");
    assert_eq!(serde_json::to_value(&rules).unwrap(), said);
    for (source, why) in
        [("label:role", "key=value"), ("label:=web", "keys"), ("label:a b=c", "keys"), ("Label:a=b", "label:KEY")]
    {
        let rule = json!([{"direction": "in", "protocol": "tcp", "source": source, "action": "deny"}]);
        assert!(message(&rule).contains(why), "{source}: {}", message(&rule));
    }
}

#[test]
fn every_mistake_is_named() {
    let error = set(&json!([
        {"direction": "up", "protocol": "sctp", "ports": [0, 65536, "a", "9-8", "1-", 1.5, "+22", "000022"], "source": "10.0.0.1/8", "action": "log"},
        {"protocol": "icmp", "ports": [80], "port": 80},
        7,
    ]))
    .unwrap_err();
    let fields: Vec<_> = error.details.iter().map(|detail| detail.field.as_str()).collect();
    let port = |index| format!("rules[0].ports[{index}]");
    let ports: Vec<_> = (0..8).map(port).collect();
    for field in ports.iter().map(String::as_str).chain([
        "rules[0].direction",
        "rules[0].protocol",
        "rules[0].source",
        "rules[0].action",
        "rules[1].direction",
        "rules[1].action",
        "rules[1].ports",
        "rules[1].port",
        "rules[2]",
    ]) {
        assert!(fields.contains(&field), "{field} in {fields:?}");
    }
    assert!(
        message(&json!([{"direction": "in", "protocol": "tcp", "ports": [], "action": "deny"}]))
            .contains("leave the field out")
    );
    let mapped = json!([{"direction": "in", "protocol": "tcp", "source": "::ffff:203.0.113.0/120", "action": "deny"}]);
    assert!(message(&mapped).contains("as IPv4"));
    assert!(SetRules::try_from(&json!({})).unwrap_err().message.contains("rules"));
}

#[test]
fn lists_are_bounded() {
    let rule = json!({"direction": "in", "protocol": "tcp", "action": "deny"});
    assert!(set(&Value::from(vec![rule.clone(); MAX_RULES])).is_ok());
    assert!(set(&Value::from(vec![rule.clone(); MAX_RULES + 1])).is_err());
    let with = |count: usize| {
        let mut rule = rule.clone();
        rule["ports"] = (1..=count).collect::<Vec<_>>().into();
        json!([rule])
    };
    assert!(set(&with(MAX_PORTS)).is_ok());
    assert!(set(&with(MAX_PORTS + 1)).is_err());
}

#[test]
fn a_group_is_nobody_outside_its_networks() {
    let rules = Rules::try_from(json!([
        {"direction": "in", "protocol": "tcp", "source": "label:role=web", "members": ["10.128.0.2"], "action": "allow"},
        {"direction": "in", "protocol": "tcp", "source": "10.128.0.3", "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
    ]));
    let rules = rules.unwrap();
    for (from, within, allowed) in [
        ("10.128.0.2", true, true),
        ("10.128.0.2", false, false),
        ("10.128.0.3", true, true),
        ("10.128.0.3", false, true),
    ] {
        let beginning = Beginning { within, ..begins(Direction::In, RuleProtocol::Tcp, 80, from) };
        assert_eq!(rules.allow(&beginning), allowed, "{from} {within}");
    }
}

#[test]
fn groups_have_so_many_addresses_together() {
    let group =
        |label: &str, action: &str| json!({"direction": "in", "protocol": "tcp", "source": label, "action": action});
    let rules =
        set(&json!([group("label:a=a", "allow"), group("label:b=b", "deny"), group("10.0.0.0/8", "allow")])).unwrap();
    let of =
        |count: usize| (0..u32::try_from(count).unwrap()).map(|number| IpAddr::from(number.to_be_bytes())).collect();
    let half = MAX_MEMBERS / 2;
    let most = |label: &Label| if label.key() == "a" { of(half + 1) } else { of(half - 1) };
    let told = rules.with_members(most).unwrap();
    assert_eq!(rules.with_groups(most), told);
    assert_eq!(Rules::try_from(serde_json::to_value(&told).unwrap()).unwrap(), told);
    // One more: what cannot be told passes nowhere.
    let more = |label: &Label| if label.key() == "a" { of(half + 1) } else { of(half) };
    assert_eq!(rules.with_members(more), None);
    let closed = json!([{"direction": "in", "protocol": "tcp", "action": "deny"}, group("10.0.0.0/8", "allow")]);
    assert_eq!(serde_json::to_value(rules.with_groups(more)).unwrap(), closed);
    let mut wire = serde_json::to_value(&told).unwrap();
    wire[1]["members"].as_array_mut().unwrap().push(json!("fd00::1"));
    assert!(Rules::try_from(wire).unwrap_err().message.contains("together"));
}
