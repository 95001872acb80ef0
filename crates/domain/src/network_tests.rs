use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

fn cidr_of(text: &str) -> Result<CreateNetwork> {
    CreateNetwork::try_from(&json!({"name": "lan", "cidr": text}))
}

#[test]
fn every_mistake_of_a_request_is_named() {
    let error = CreateNetwork::try_from(&json!({"name": "A", "cidr": 7, "cidr6": "x", "cdir": 1})).unwrap_err();
    let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
    assert_eq!(fields, ["name", "cidr", "cidr6", "cdir"]);
    assert!(CreateNetwork::try_from(&json!({})).is_err());
    let whole = CreateNetwork::try_from(&json!({"name": "lan", "cidr": null, "cidr6": "fd00:20::/64"})).unwrap();
    let six = Wanted6::These("fd00:20::/64".parse().unwrap());
    assert_eq!((whole.name.as_str(), whole.cidr, whole.cidr6), ("lan", None, six));
}

#[test]
fn a_network_lies_within_its_bounds() {
    for good in ["10.0.0.0/23", "10.0.3.0/24", "10.255.0.0/16", "172.16.0.0/16", "172.31.255.240/28", "192.168.0.0/16"]
    {
        assert_eq!(cidr_of(good).unwrap().cidr, Some(net(good)), "{good}");
    }
    for (bad, why) in [
        ("10.0.0.0/15", "prefix"),
        ("10.20.0.0/29", "prefix"),
        ("10.20.0.1/24", "write 10.20.0.0/24"),
        ("172.15.0.0/16", "must lie in"),
        ("172.32.0.0/16", "must lie in"),
        ("192.169.0.0/24", "must lie in"),
        ("100.64.0.0/16", "must lie in"),
        ("8.8.8.0/24", "must lie in"),
        ("10.0.0.0/16", "10.0.2.0/24"),
        ("10.0.2.16/28", "10.0.2.0/24"),
        ("010.20.0.0/24", "10.20.0.0/24"),
        ("10.20.0.0", "IPv4 network"),
        ("fd00::/64", "IPv4 network"),
        ("", "IPv4 network"),
    ] {
        let error = cidr_of(bad).expect_err(bad);
        assert!(error.details[0].field == "cidr" && error.message.contains(why), "{bad}: {error}");
    }
}

#[test]
fn its_ipv6_addresses_lie_within_their_bounds() {
    let read = |text: &str| CreateNetwork::try_from(&json!({"name": "lan", "cidr6": text}));
    for good in ["fd00::/48", "fd00:20::/64", "fdff:ffff:ffff:ffff::/64", "fd62:6572:7467::/64", "fd62:6572:7469::/48"]
    {
        assert_eq!(read(good).unwrap().cidr6, Wanted6::These(good.parse().unwrap()), "{good}");
    }
    assert_eq!(read("none").unwrap().cidr6, Wanted6::Nothing);
    assert_eq!(CreateNetwork::try_from(&json!({"name": "lan"})).unwrap().cidr6, Wanted6::Any);
    for (bad, why) in [
        ("fd00::/47", "prefix"),
        ("fd00:20::/65", "prefix"),
        ("fd00:20::1/64", "write fd00:20::/64"),
        ("fc00::/64", "must lie in fd00::/8"),
        ("fe00::/64", "must lie in"),
        ("2001:db8::/64", "must lie in"),
        ("fd62:6572:7468::/64", "fd62:6572:7468::/48"),
        ("fd62:6572:7468:ffff::/64", "fd62:6572:7468::/48"),
        ("fd00:0020::/64", "write fd00:20::/64"),
        ("fd00:20::", "IPv6 network"),
        ("10.20.0.0/24", "IPv6 network"),
        ("None", "\"none\""),
        ("", "IPv6 network"),
    ] {
        let error = read(bad).expect_err(bad);
        assert!(error.details[0].field == "cidr6" && error.message.contains(why), "{bad}: {error}");
    }
}

#[test]
fn a_members_ipv6_address_is_at_the_same_place() {
    let (cidr, cidr6) = (net("10.128.0.0/16"), "fd00:20::/64".parse().unwrap());
    let at = |address: [u8; 4]| address6(cidr, address.into(), cidr6).to_string();
    assert_eq!(at([10, 128, 0, 1]), resolver6(cidr6).to_string());
    assert_eq!((at([10, 128, 0, 2]), at([10, 128, 255, 254])), ("fd00:20::2".into(), "fd00:20::fffe".into()));
    let (narrow, wide) = (net("192.168.7.16/28"), "fd00::/48".parse().unwrap());
    assert_eq!(address6(narrow, [192, 168, 7, 18].into(), wide).to_string(), "fd00::2");
}

#[test]
fn a_change_is_a_name() {
    assert_eq!(UpdateNetwork::try_from(&json!({})).unwrap(), UpdateNetwork::default());
    assert!(UpdateNetwork::try_from(&json!({"name": "a"})).unwrap().name.is_some());
    for bad in [json!({"name": "-"}), json!({"cidr": "10.20.0.0/24"})] {
        assert!(UpdateNetwork::try_from(&bad).is_err(), "{bad}");
    }
}

#[test]
fn a_machine_belongs_to_so_many_networks() {
    let read = |body: &Value| {
        let mut f = Fields::of(body);
        let ids = read_ids(&mut f);
        f.finish(Some(ids)).map(|ids| ids.map(|ids| ids.len()))
    };
    let ids = |count: u128| (0..count).map(|n| uuid::Uuid::from_u128(n).to_string()).collect::<Vec<_>>();
    for (body, expected) in
        [(json!({}), None), (json!({"network_ids": null}), None), (json!({"network_ids": []}), Some(0))]
    {
        assert_eq!(read(&body), Ok(expected), "{body}");
    }
    assert_eq!(read(&json!({"network_ids": ids(4)})), Ok(Some(4)));
    assert!(read(&json!({"network_ids": ids(5)})).is_err());
    let twice = [ids(1), ids(1)].concat();
    assert!(read(&json!({"network_ids": twice})).is_err());
    assert_eq!(read(&json!({"network_ids": ["lan"]})).unwrap_err().details[0].field, "network_ids[0]");
}

#[test]
fn who_names_no_addresses_gets_the_first_free_ones() {
    assert_eq!(free_cidr(&[]), Some(net("10.128.0.0/24")));
    assert_eq!(free_cidr(&[net("10.128.0.0/24"), net("10.128.1.16/28")]), Some(net("10.128.2.0/24")));
    assert_eq!(free_cidr(&[net("10.128.0.0/16"), net("10.0.0.0/16")]), Some(net("10.129.0.0/24")));
    let full: Vec<_> = POOL.subnets(16).unwrap().collect();
    assert_eq!(free_cidr(&full), None);
    assert_eq!(free_cidr(&full[..127]), Some(net("10.255.0.0/24")));
}

#[test]
fn the_ends_of_a_network_and_its_resolver_are_nobodys() {
    let cidr = net("192.168.7.16/28");
    assert_eq!(resolver(cidr), Ipv4Addr::new(192, 168, 7, 17));
    let all: Vec<_> = free_addresses(cidr, &BTreeSet::new()).collect();
    assert_eq!((all.len(), all[0], all[12]), (13, [192, 168, 7, 18].into(), [192, 168, 7, 30].into()));
    let taken: BTreeSet<_> = all[..12].iter().copied().collect();
    assert_eq!(places(&[cidr], std::slice::from_ref(&taken), 1), Ok(vec![vec![all[12]]]));
    assert_eq!(places(&[net("10.128.0.0/24"), cidr], &[BTreeSet::new(), taken], 2), Err(1));
}

#[test]
fn a_host_is_told_until_it_knows_all() {
    assert_eq!(next(false, 3, 2), Some(NetworkStep::Tell));
    assert_eq!(next(false, 3, 3), None);
    assert_eq!(next(true, 3, 3), Some(NetworkStep::Remove));
}

fn any_cidr() -> impl Strategy<Value = Ipv4Net> {
    (POOL.network().to_bits()..=POOL.broadcast().to_bits(), PREFIX.0..=PREFIX.1)
        .prop_map(|(bits, prefix)| Ipv4Net::new_assert(bits.into(), prefix).trunc())
}

proptest! {
    #[test]
    fn free_addresses_are_valid_and_meet_no_others(taken in prop::collection::vec(any_cidr(), 0..40)) {
        let free = free_cidr(&taken).unwrap();
        prop_assert!(cidr_of(&free.to_string()).is_ok());
        prop_assert!(taken.iter().all(|other| !overlap(free, *other)));
        // None before it was free.
        let before = POOL.subnets(24).unwrap().take_while(|candidate| *candidate < free);
        prop_assert!(before.into_iter().all(|candidate| taken.iter().any(|other| overlap(candidate, *other))));
    }

    #[test]
    fn chosen_ipv6_addresses_are_valid_and_meet_no_others(random: u128) {
        let first = chosen_cidr6(random, &[]).unwrap();
        let said = json!({"name": "lan", "cidr6": first.to_string()});
        prop_assert_eq!(CreateNetwork::try_from(&said).unwrap().cidr6, Wanted6::These(first));
        if let Some(next) = chosen_cidr6(random, &[first]) {
            prop_assert!(!overlap6(first, next));
        }
    }

    #[test]
    fn two_networks_overlap_where_they_share_an_address(one in any_cidr(), other in any_cidr()) {
        let shared = one.network() <= other.broadcast() && other.network() <= one.broadcast();
        prop_assert_eq!(overlap(one, other), shared);
    }

    #[test]
    fn no_two_members_have_one_address(cidr in any_cidr(), count in 1..40_usize, taken in prop::collection::hash_set(any::<u32>(), 0..20)) {
        let base = cidr.network().to_bits();
        let size = cidr.broadcast().to_bits() - base + 1;
        let taken: BTreeSet<_> = taken.into_iter().map(|bits| Ipv4Addr::from_bits(base + bits % size)).collect();
        let Ok(places) = places(&[cidr], std::slice::from_ref(&taken), count) else {
            let free = free_addresses(cidr, &taken).count();
            prop_assert!(free < count);
            return Ok(());
        };
        let given: BTreeSet<_> = places.iter().flatten().copied().collect();
        prop_assert_eq!(given.len(), count);
        prop_assert!(given.is_disjoint(&taken));
        for address in given {
            prop_assert!(cidr.contains(&address) && address > resolver(cidr) && address < cidr.broadcast());
        }
    }
}
