use proptest::prelude::*;
use serde_json::json;

use super::*;

fn network(egress: &str, allow: &[&str], deny: &[&str]) -> NetworkPolicy {
    let said = NetworkPolicy::try_from(&json!({"egress": egress, "allow": allow, "deny": deny})).unwrap();
    NetworkPolicy { unlock: vec!["0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap()], ..said }
}

#[test]
fn rules_unlock_what_the_operator_lets_them() {
    let rules = network("allow", &["10.0.0.0/8", "fd00::/8", "8.8.8.1"], &[]);
    let with = |unlock: &[&str]| NetworkPolicy {
        unlock: unlock.iter().map(|network| network.parse().unwrap()).collect(),
        ..rules.clone()
    };
    let closed = with(&[]);
    let locked = |network: &NetworkPolicy, to: &Destination| network.decide(to) != Verdict::Allow;
    assert!(locked(&closed, &to("10.1.0.1")) && locked(&closed, &to("fd00::1")) && locked(&closed, &host("8.8.8.1")));
    assert_eq!(closed.decide(&to("8.8.8.1")), Verdict::Allow, "the outside world needs no key");
    let some = with(&["10.1.0.0/16", "8.8.8.0/24"]);
    for (address, is_locked) in [("10.1.0.1", false), ("10.2.0.1", true), ("fd00::1", true), ("192.168.0.1", true)] {
        assert_eq!(locked(&some, &to(address)), is_locked, "{address}");
    }
    assert!(!locked(&some, &host("8.8.8.1")) && locked(&some, &host("8.8.8.2")));
    // What nobody asked for stays locked.
    let nothing = NetworkPolicy { unlock: some.unlock.clone(), ..NetworkPolicy::default() };
    assert!(locked(&nothing, &to("10.1.0.1")));
    // An owner cannot say it, and it is not written down with what they say.
    assert!(NetworkPolicy::try_from(&json!({"egress": "allow", "unlock": ["10.0.0.0/8"]})).is_err());
    assert_eq!(serde_json::to_value(&some).unwrap(), serde_json::to_value(&rules).unwrap());
}

fn to(address: &str) -> Destination {
    Destination { address: address.parse().unwrap(), names: Vec::new(), host: false }
}

fn named(address: &str, name: &str) -> Destination {
    Destination { names: vec![name.into()], ..to(address) }
}

fn host(address: &str) -> Destination {
    Destination { host: true, ..to(address) }
}

/// One address of each special range.
const SPECIAL: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "169.254.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.251",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b:1::1",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:2::1",
    "2001:1ff::1",
    "2001:db8::1",
    "2002:a00:1::1",
    "3fff::1",
    "5f00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
];

/// Neighbours of the special ranges, which are the outside world.
const OUTSIDE: &[&str] = &[
    "1.0.0.0",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "168.63.129.15",
    "172.15.255.255",
    "172.32.0.0",
    "191.255.255.255",
    "192.0.1.0",
    "192.0.3.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "8.8.8.8",
    "2000::1",
    "2001:200::1",
    "2001:db9::1",
    "2003::1",
    "2606:4700::1111",
    "4000::1",
];

#[test]
fn the_default_is_the_outside_world() {
    let open = NetworkPolicy::default();
    for address in OUTSIDE {
        assert_eq!(open.decide(&to(address)), Verdict::Allow, "{address}");
        assert_eq!(open.decide(&host(address)), Verdict::Deny(Reason::Host), "{address}");
    }
    for address in SPECIAL {
        assert!(matches!(open.decide(&to(address)), Verdict::Deny(Reason::Special(_))), "{address}");
    }
    for mapped in ["::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:127.0.0.1"] {
        assert!(matches!(open.decide(&to(mapped)), Verdict::Deny(Reason::Special(_))), "{mapped}");
    }
}

#[test]
fn special_addresses_are_unlocked_by_addresses_alone() {
    for address in SPECIAL {
        for egress in ["allow", "deny"] {
            assert_eq!(network(egress, &[address], &[]).decide(&to(address)), Verdict::Allow, "{address}");
            let wide = network(egress, &["0.0.0.0/0", "::/0", "example.org"], &[]);
            let verdict = wide.decide(&named(address, "example.org"));
            assert!(matches!(verdict, Verdict::Deny(Reason::Special(_))), "{address}");
        }
    }
    let lan = network("allow", &["192.168.0.0/16", "10.0.0.0/24"], &[]);
    assert_eq!(lan.decide(&to("192.168.7.7")), Verdict::Allow);
    assert_eq!(lan.decide(&to("10.0.0.255")), Verdict::Allow);
    assert_eq!(lan.decide(&to("::ffff:10.0.0.255")), Verdict::Allow);
    assert_eq!(lan.decide(&to("10.0.1.0")), Verdict::Deny(Reason::Special(Special::Private)));
    assert_eq!(
        network("allow", &["192.0.0.0/8"], &[]).decide(&to("192.168.7.7")),
        Verdict::Deny(Reason::Special(Special::Private)),
        "a network wider than the range does not name it"
    );
}

#[test]
fn the_host_is_unlocked_address_by_address() {
    let rules = network("allow", &["10.0.0.0/8", "8.8.0.0/16", "127.0.0.1"], &[]);
    assert_eq!(rules.decide(&host("10.0.0.1")), Verdict::Deny(Reason::Host));
    assert_eq!(rules.decide(&host("8.8.8.8")), Verdict::Deny(Reason::Host));
    assert_eq!(rules.decide(&host("127.0.0.1")), Verdict::Allow);
    assert_eq!(network("deny", &["8.8.8.8"], &[]).decide(&host("8.8.8.8")), Verdict::Allow);
}

#[test]
fn egress_deny_lets_out_what_is_allowed() {
    let rules = network("deny", &["8.8.8.0/24", "*.example.org", "a.test"], &["8.8.8.9", "bad.example.org"]);
    assert_eq!(rules.decide(&to("8.8.8.8")), Verdict::Allow);
    assert_eq!(rules.decide(&to("8.8.8.9")), Verdict::Deny(Reason::Rule));
    assert_eq!(rules.decide(&to("8.8.9.8")), Verdict::Deny(Reason::Egress));
    assert_eq!(rules.decide(&named("9.9.9.9", "x.y.example.org")), Verdict::Allow);
    assert_eq!(rules.decide(&named("9.9.9.9", "example.org")), Verdict::Deny(Reason::Egress));
    assert_eq!(rules.decide(&named("9.9.9.9", "A.Test.")), Verdict::Allow);
    assert_eq!(rules.decide(&named("8.8.8.8", "bad.example.org")), Verdict::Deny(Reason::Rule));
}

#[test]
fn names_are_looked_up_by_the_rules() {
    let open = network("allow", &["a.test"], &["*.bad.test"]);
    assert!(open.resolves("anything.test") && open.resolves("bad.test"));
    assert!(!open.resolves("x.bad.test") && !open.resolves("X.Y.BAD.test."));
    let closed = network("deny", &["a.test", "*.b.test", "8.8.8.8"], &["x.b.test"]);
    assert!(closed.resolves("A.test.") && closed.resolves("y.b.test") && closed.resolves("z.y.b.test"));
    for refused in ["b.test", "xb.test", "x.b.test", ".b.test", "other.test", "", ".", "a.test.evil.test"] {
        assert!(!closed.resolves(refused), "{refused}");
    }
    assert!(!network("deny", &["0.0.0.0/0"], &[]).resolves("a.test"));
}

#[test]
fn rules_are_read_and_written() {
    for (text, canonical) in [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3/32", "10.1.2.3"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:DB8::/32", "2001:db8::/32"),
        ("::1", "::1"),
        ("Example.ORG.", "example.org"),
        ("*.Example.org", "*.example.org"),
        ("localhost", "localhost"),
        ("_dmarc.example.org", "_dmarc.example.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ] {
        assert_eq!(text.parse::<Rule>().unwrap().to_string(), canonical);
    }
    for (text, hint) in [
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("::ffff:10.0.0.0/104", "write 10.0.0.0/8"),
        ("::ffff:10.0.0.1", "write 10.0.0.1/32"),
        ("bücher.example", "punycode"),
        ("*", "wildcard"),
        ("a.*.example", "wildcard"),
        ("*.*.example", "wildcard"),
        ("*foo.example", "wildcard"),
        ("", "must be a network"),
        (".", "must be a network"),
        ("*.", "wildcard"),
        ("a..b", "must be a network"),
        ("-a.test", "must be a network"),
        ("a b.test", "must be a network"),
        ("1.2.3", "must be a network"),
        ("1.2.3.256", "must be a network"),
        ("10.0.0.0/33", "must be a network"),
        ("https://example.org", "must be a network"),
        ("example.org:443", "must be a network"),
        ("example.org/path", "must be a network"),
    ] {
        let error = text.parse::<Rule>().unwrap_err();
        assert!(error.contains(hint), "{text:?}: {error}");
    }
    assert!(format!("{}.test", "a".repeat(63)).parse::<Rule>().is_ok());
    assert!(format!("{}.test", "a".repeat(64)).parse::<Rule>().is_err());
    let long = "a.".repeat(126);
    assert!(format!("{long}a").parse::<Rule>().is_ok());
    assert!(format!("{long}ab").parse::<Rule>().is_err());
}

#[test]
fn every_mistake_names_its_index() {
    let body = json!({"egress": "open", "allow": ["a.test", "10.0.0.1/8", 5], "deny": "a.test"});
    let error = NetworkPolicy::try_from(&body).unwrap_err();
    let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
    assert_eq!(fields, ["egress", "allow[1]", "allow[2]", "deny"]);
    assert_eq!(NetworkPolicy::try_from(&json!({})).unwrap(), NetworkPolicy::default());
    let full =
        |count: usize| NetworkPolicy::try_from(&json!({"allow": vec!["a.test"; count], "deny": vec!["::1"; count]}));
    assert!(full(MAX_RULES).is_ok());
    assert_eq!(full(MAX_RULES + 1).unwrap_err().details.len(), 2);
}

fn rules() -> impl Strategy<Value = Vec<String>> {
    let v4 = (any::<u32>(), 0_u8..=32)
        .prop_map(|(bits, prefix)| ipnet::Ipv4Net::new_assert(bits.into(), prefix).trunc().to_string());
    let address = prop::sample::select(SPECIAL).prop_map(str::to_owned);
    let name = "(\\*\\.)?[abAB]\\.(test|org)\\.?";
    prop::collection::vec(prop_oneof![v4, address, name], 0..6)
}

fn networks() -> impl Strategy<Value = NetworkPolicy> {
    let egress = prop::sample::select(Egress::ALL);
    (egress, rules(), rules()).prop_map(|(egress, allow, deny)| {
        NetworkPolicy::try_from(&json!({"egress": egress.as_str(), "allow": allow, "deny": deny})).unwrap()
    })
}

fn destinations() -> impl Strategy<Value = Destination> {
    let any_v4 = any::<u32>().prop_map(|bits| IpAddr::V4(bits.into()));
    let any_v6 = any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()));
    let known = prop::sample::select([SPECIAL, OUTSIDE].concat()).prop_map(|text| text.parse().unwrap());
    let names = prop::collection::vec("([xab]\\.){1,2}(test|org)", 0..3);
    (prop_oneof![any_v4, any_v6, known], names, any::<bool>()).prop_map(|(address, names, host)| Destination {
        address,
        names: names.into_iter().map(Into::into).collect(),
        host,
    })
}

proptest! {
    #[test]
    fn what_was_written_is_read_again(network in networks()) {
        let value = serde_json::to_value(&network).unwrap();
        prop_assert!(value["allow"].as_array().unwrap().iter().all(Value::is_string));
        prop_assert_eq!(serde_json::from_value::<NetworkPolicy>(value).unwrap(), network);
    }

    #[test]
    fn any_text_is_a_rule_or_an_error(text in "\\PC{0,40}") {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
    }

    #[test]
    fn deny_wins_whatever_is_allowed(network in networks(), to in destinations(), more in rules()) {
        let mut wider = network.clone();
        wider.egress = Egress::Allow;
        wider.allow.extend(more.iter().map(|rule| rule.parse::<Rule>().unwrap()));
        if network.decide(&to) == Verdict::Deny(Reason::Rule) {
            prop_assert_eq!(wider.decide(&to), Verdict::Deny(Reason::Rule));
        }
        // More allowance never takes away, more denial never gives.
        if network.decide(&to) == Verdict::Allow {
            prop_assert_eq!(wider.decide(&to), Verdict::Allow);
        }
        let mut stricter = network.clone();
        stricter.deny.extend(more.iter().map(|rule| rule.parse::<Rule>().unwrap()));
        if stricter.decide(&to) == Verdict::Allow {
            prop_assert_eq!(network.decide(&to), Verdict::Allow);
        }
    }

    #[test]
    fn names_never_unlock_what_is_special_or_the_host(mut network in networks(), to in destinations()) {
        network.allow.retain(|rule| rule.pattern().is_some());
        if to.host || Special::of(to.address.to_canonical()).is_some() {
            prop_assert!(network.decide(&to) != Verdict::Allow);
        }
    }

    #[test]
    fn a_denied_name_is_neither_resolved_nor_reached(network in networks(), to in destinations()) {
        for name in &to.names {
            if network.deny.iter().filter_map(Rule::pattern).any(|pattern| pattern.matches(name)) {
                prop_assert!(!network.resolves(name));
                prop_assert_eq!(network.decide(&to), Verdict::Deny(Reason::Rule));
            }
        }
    }
}
