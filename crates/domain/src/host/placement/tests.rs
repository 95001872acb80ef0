use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::properties_tests::{Owned, wish};
use super::*;
use crate::host::State;

fn fleet(names: &[&str]) -> Vec<Owned> {
    names.iter().zip(1_u128..).map(|(name, id)| Owned::new(name, id)).collect()
}

fn decide(wish: &Wish<'_>, fleet: &[Owned], policy: Policy) -> Result<Placed, Refused> {
    let hosts: Vec<_> = fleet.iter().map(Owned::host).collect();
    place(wish, &hosts, policy, Uuid::nil)
}

fn chosen(wish: &Wish<'_>, fleet: &[Owned], policy: Policy) -> String {
    decide(wish, fleet, policy).unwrap_or_else(|refused| unreachable!("{refused:?}")).reason
}

/// The same where there is one host alone.
fn alone(wish: &Wish<'_>, host: &Owned) -> Result<Placed, Refused> {
    decide(wish, std::slice::from_ref(host), Policy::Spread)
}

/// What refuses the one host, for its owner and for an operator.
fn refusal(wish: &Wish<'_>, host: &Owned) -> (String, String) {
    let refused = alone(wish, host).unwrap_err();
    (refused.for_owner(), refused.for_operator().join("; "))
}

#[test]
fn memory_and_processors_are_had_to_the_last_and_no_further() {
    let mut alpha = Owned { memory_mb: 2048, vcpu: Some(4), ..Owned::new("alpha", 1) };
    alpha.promised.vms = Sum { machines: 1, vcpu: 2, memory_mb: 1536 };
    let fits = Wish { vcpu: 2, memory_mb: 512, ..wish(Kind::Vm) };
    assert_eq!(
        alone(&fits, &alpha).unwrap().reason,
        "host alpha: no other host that said what it has can take it; 512 of 2048 MiB left"
    );
    let (owner, operator) = refusal(&Wish { memory_mb: 1024, ..fits }, &alpha);
    assert_eq!(operator, "host alpha: 512 of 2048 MiB left, 1024 wanted");
    assert_eq!(owner, "this region has 2048 MiB of memory, and 2560 MiB would be needed");
    assert!(alone(&Wish { memory_mb: 513, ..fits }, &alpha).is_err());
    let (owner, operator) = refusal(&Wish { vcpu: 3, ..fits }, &alpha);
    assert_eq!(operator, "host alpha: 2 of 4 virtual CPUs left, 3 wanted");
    assert_eq!(owner, "this region has 4 of virtual CPUs, and 5 would be needed");
}

#[test]
fn vms_and_sandboxes_have_of_the_same_memory() {
    let mut alpha = Owned { memory_mb: 4 * 1024, ..Owned::new("alpha", 1) };
    alpha.promised.vms.memory_mb = 512;
    let each = Wish { memory_mb: 512, most: 9, ..wish(Kind::Sandbox) };
    let placed = alone(&each, &alpha).unwrap();
    assert_eq!((placed.count, placed.room), (4, Room::Beside), "a VM's MiB are four of sandboxes");
    alpha.promised.templates.memory_mb = 1024;
    alpha.promised.sandboxes.memory_mb = 512;
    alpha.promised.warm.memory_mb = 256;
    let one = Wish { most: 1, ..each };
    assert_eq!(alone(&one, &alpha).unwrap().room, Room::Instead);
    alpha.promised.sandboxes.memory_mb += 1;
    let (owner, operator) = refusal(&one, &alpha);
    assert_eq!(owner, "this host offers 2048 MiB of memory to sandboxes, and 2049 MiB would be needed");
    assert_eq!(operator, "host alpha: 511 of 2048 MiB left, 512 wanted");
}

#[test]
fn the_last_sandbox_is_taken_and_no_more() {
    let mut alpha = Owned { most_sandboxes: Some(2), ..Owned::new("alpha", 1) };
    alpha.promised.sandboxes.machines = 1;
    assert!(alone(&wish(Kind::Sandbox), &alpha).is_ok());
    alpha.promised.sandboxes.machines = 2;
    assert_eq!(refusal(&wish(Kind::Sandbox), &alpha).0, "this host runs at most 2 sandboxes");
}

#[test]
fn a_disk_that_is_to_be_made_needs_room_and_one_that_is_there_none() {
    let mut alpha = Owned::new("alpha", 1);
    alpha.disk = Disk { is_full: false, sizes: Some((40, 30)) };
    let making = |gb| Wish { disk_gb: Some(gb), ..wish(Kind::Vm) };
    assert!(alone(&making(10), &alpha).is_ok());
    let (owner, operator) = refusal(&making(11), &alpha);
    assert_eq!(owner, "this region has 40 GiB of disk, and 41 GiB would be needed");
    assert_eq!(operator, "host alpha: 10 of 40 GiB of disk left, 11 wanted");
    alpha.disk.is_full = true;
    assert_eq!(refusal(&making(1), &alpha).0, "the host's disk is almost full");
    assert!(alone(&wish(Kind::Vm), &alpha).is_ok());
}

#[test]
fn a_host_that_takes_no_more_starts_again_what_is_there() {
    let lift = "cordoned; to lift it: berth admin host uncordon alpha";
    for (state, words) in [(State::Cordoned, lift), (State::Draining, "draining")] {
        let alpha = Owned { state, ..Owned::new("alpha", 1) };
        let (owner, operator) = refusal(&wish(Kind::Vm), &alpha);
        assert_eq!(operator, format!("host alpha: {words}"));
        assert!(owner.starts_with("no host takes new machines now") && !owner.contains("alpha"), "{owner}");
        let again = Wish { on: Some(alpha.id), ..wish(Kind::Vm) };
        assert_eq!(alone(&again, &alpha).unwrap().reason, "host alpha: its disk is there");
    }
    let lost = Owned { state: State::Lost, says: false, ..Owned::new("alpha", 1) };
    assert_eq!(refusal(&Wish { on: Some(lost.id), ..wish(Kind::Vm) }, &lost).1, "host alpha: lost");
    let returned = Owned { state: State::Lost, ..Owned::new("alpha", 1) };
    assert_eq!(refusal(&wish(Kind::Vm), &returned).1, "host alpha: lost");
    let again = Wish { on: Some(returned.id), ..wish(Kind::Vm) };
    assert_eq!(alone(&again, &returned).unwrap().reason, "host alpha: its disk is there");
    assert_eq!(refusal(&Wish { on: Some(returned.id), ..wish(Kind::Sandbox) }, &returned).1, "host alpha: lost");
    let joining = Owned { state: State::Joining, ..Owned::new("alpha", 1) };
    assert_eq!(refusal(&wish(Kind::Vm), &joining).1, "host alpha: has not joined yet");
    let beta = Owned::new("beta", 2);
    let elsewhere = Wish { on: Some(lost.id), ..wish(Kind::Vm) };
    assert_eq!(refusal(&elsewhere, &beta).1, "host beta: the machine's disk is on another host");
}

#[test]
fn a_name_that_a_shell_would_take_apart_is_quoted() {
    for (name, argument) in [("north-1.example_2", "north-1.example_2"), ("north 1", "'north 1'"), ("a'b", r"'a'\''b'")]
    {
        let host = Owned { state: State::Cordoned, ..Owned::new(name, 1) };
        let told = refusal(&wish(Kind::Vm), &host).1;
        assert_eq!(told, format!("host {name}: cordoned; to lift it: berth admin host uncordon {argument}"));
    }
}

#[test]
fn a_refusal_passes_where_the_nearest_host_takes_no_more_for_now() {
    let passes = |hosts: &[Owned]| decide(&wish(Kind::Vm), hosts, Policy::Spread).unwrap_err().passes();
    let in_state = |state, id| Owned { state, ..Owned::new("some", id) };
    assert!(passes(&[in_state(State::Cordoned, 1)]));
    assert!(passes(&[in_state(State::Draining, 1), in_state(State::Lost, 2)]));
    assert!(!passes(&[in_state(State::Lost, 1)]));
    let full = Owned { memory_mb: 1, ..Owned::new("full", 2) };
    assert!(!passes(&[in_state(State::Cordoned, 1), full]), "an owner reads of the lack of room");
    assert!(!passes(&[]));
}

#[test]
fn region_labels_layers_and_network_are_asked_for() {
    let label = |value: &str| BTreeMap::from([("disk".to_owned(), value.to_owned())]);
    let alpha = Owned { regions: vec!["north".into()], labels: label("ssd"), ..Owned::new("alpha", 1) };
    let north = Wish { region: Some("north"), ..wish(Kind::Sandbox) };
    assert!(alone(&north, &alpha).is_ok());
    assert_eq!(refusal(&Wish { region: Some("south"), ..north }, &alpha).1, "host alpha: not in the region south");
    let (ssd, tape) = (label("ssd"), label("tape"));
    assert!(alone(&Wish { labels: Some(&ssd), ..north }, &alpha).is_ok());
    assert_eq!(refusal(&Wish { labels: Some(&tape), ..north }, &alpha).1, "host alpha: without the label disk=tape");
    let fork = Wish { needs: AtHand::Layers, ..north };
    for (at_hand, is_able) in [(AtHand::Image, false), (AtHand::Layers, true), (AtHand::Warm, true)] {
        let host = Owned { at_hand, ..alpha.clone() };
        assert_eq!(alone(&fork, &host).is_ok(), is_able, "{at_hand:?}");
    }
    let without = Owned { lacks: Some("the ports 1-2 are given out"), ..alpha };
    assert_eq!(
        refusal(&north, &without),
        ("the ports 1-2 are given out".into(), "host alpha: the ports 1-2 are given out".into())
    );
}

#[test]
fn a_host_takes_disks_of_a_store_that_it_reaches() {
    let away = || Stores::from([("pool".to_owned(), Some("no monitor answers".to_owned()))]);
    let alpha = Owned { stores: Stores::from([("pool".to_owned(), None)]), ..Owned::new("alpha", 1) };
    let shared = Wish { store: Some("pool"), ..wish(Kind::Vm) };
    assert!(alone(&shared, &alpha).is_ok());
    let owner = "no host reaches the store pool now, in which its disks lie; try again later, or ask an operator";
    for (stores, why) in [(away(), "no monitor answers"), (Stores::new(), "it was not asked yet")] {
        let beta = Owned { stores, ..Owned::new("beta", 2) };
        let operator = format!("host beta: it does not reach the store pool: {why}");
        assert_eq!(refusal(&shared, &beta), (owner.to_owned(), operator));
        let is_unasked = beta.stores.is_empty();
        assert_eq!(alone(&shared, &beta).expect_err("a refusal").is_early, is_unasked);
        // What is nowhere but on hosts does not ask, and one that has its machine there starts it again.
        assert!(alone(&wish(Kind::Vm), &beta).is_ok());
        assert!(alone(&Wish { on: Some(beta.id), ..shared }, &beta).is_ok());
        assert_eq!(decide(&shared, &[beta, alpha.clone()], Policy::Spread).map(|placed| placed.host), Ok(alpha.id));
    }
}

#[test]
fn spread_takes_the_emptiest_and_pack_the_fullest_that_has_room() {
    let mut hosts = fleet(&["alpha", "beta", "gamma"]);
    for (host, held) in hosts.iter_mut().zip([512, 0, 1024]) {
        host.promised.vms.memory_mb = held;
    }
    let small = Wish { memory_mb: 256, ..wish(Kind::Vm) };
    let told = "host beta: more stays free there, 87.5 % of its memory, than on host alpha, the next best of 3 \
                (62.5 % of its memory)";
    assert_eq!(chosen(&small, &hosts, Policy::Spread), told);
    let told = "host gamma: less stays free there, 37.5 % of its memory, than on host alpha, the next best of 3 \
                (62.5 % of its memory)";
    assert_eq!(chosen(&small, &hosts, Policy::Pack), told);
    let large = Wish { memory_mb: 1536, ..small };
    assert!(chosen(&large, &hosts, Policy::Pack).starts_with("host alpha: "), "gamma has no room for it");
    // The scarcer of processors and memory counts.
    hosts[1].vcpu = Some(2);
    let told = "host alpha: more stays free there, 62.5 % of its memory, than on host beta, the next best of 3 \
                (50.0 % of its processors)";
    assert_eq!(chosen(&small, &hosts, Policy::Spread), told);
}

#[test]
fn more_of_what_is_wished_wins_over_what_stays_free() {
    let mut hosts = fleet(&["alpha", "beta"]);
    hosts[0].promised.sandboxes.memory_mb = 1024;
    let several = Wish { most: 9, ..wish(Kind::Sandbox) };
    let told = "host beta: there is room for 8 there, and for 4 on host alpha, the next best of 2";
    assert_eq!(chosen(&several, &hosts, Policy::Pack), told);
}

#[test]
fn what_is_at_hand_wins_then_what_needs_nobody_to_give_way_then_the_smaller_id() {
    let mut hosts = fleet(&["alpha", "beta", "gamma"]);
    let told = "host alpha: it is as good as host beta, the next best of 3, and first by its id";
    assert_eq!(chosen(&wish(Kind::Sandbox), &hosts, Policy::Spread), told);
    hosts.reverse();
    assert_eq!(chosen(&wish(Kind::Sandbox), &hosts, Policy::Spread), told, "whatever the order");
    hosts[2].promised.warm.memory_mb = hosts[2].memory_mb;
    let told = "host beta: it is as good as host gamma, the next best of 3, and first by its id";
    assert_eq!(chosen(&wish(Kind::Sandbox), &hosts, Policy::Spread), told);
    let told = "host beta: no warm machine has to give way there, as one would on host alpha, the next best of 2";
    assert_eq!(chosen(&wish(Kind::Sandbox), &hosts[1..], Policy::Spread), told);
    hosts[0].at_hand = AtHand::Layers;
    hosts[0].promised.sandboxes.memory_mb = 1024;
    let told = "host gamma: it has the layers that it begins with, which host beta, the next best of 3, has not";
    assert_eq!(chosen(&wish(Kind::Sandbox), &hosts, Policy::Spread), told);
}

#[test]
fn of_many_hosts_the_nearest_are_told() {
    let mut hosts: Vec<_> = (1..=MOST_TOLD as u128 + 2).map(|id| Owned::new(&format!("h{id}"), id)).collect();
    for host in &mut hosts {
        host.state = State::Cordoned;
    }
    hosts[17].state = State::Ready;
    hosts[17].memory_mb = 1;
    let refused = decide(&wish(Kind::Vm), &hosts, Policy::Spread).unwrap_err();
    let told = refused.for_operator();
    assert_eq!((told.len(), refused.others), (MOST_TOLD + 1, 2));
    assert_eq!(
        (&*told[0], &*told[1]),
        ("host h18: 1 of 1 MiB left, 256 wanted", "host h1: cordoned; to lift it: berth admin host uncordon h1")
    );
    assert_eq!(told.last().map(String::as_str), Some("and 2 others"));
    assert_eq!(refused.for_owner(), "this region has 1 MiB of memory, and 256 MiB would be needed");
    let few = decide(&wish(Kind::Vm), &hosts[..MOST_TOLD], Policy::Spread).unwrap_err();
    assert_eq!((few.for_operator().len(), few.others), (MOST_TOLD, 0));
    let none = place(&wish(Kind::Vm), &[], Policy::Spread, Uuid::nil).unwrap_err();
    assert_eq!((none.for_owner(), none.for_operator()), ("there is no host; ask an operator".into(), Vec::new()));
}

#[test]
fn gpus_are_had_where_enough_of_them_are_free() {
    let mut alpha = Owned::new("alpha", 1).with_gpus(2);
    let two = Wish { gpus: Some(WishedGpus { model: "example-9000", count: 2 }), ..wish(Kind::Vm) };
    let hosts = [Owned::new("beta", 2), alpha.clone()];
    let placed = decide(&two, &hosts, Policy::Spread).unwrap();
    assert_eq!((placed.host, placed.devices.len()), (alpha.id, 2));
    alpha.held_gpus = BTreeSet::from([placed.devices[0].clone()]);
    let (owner, operator) = refusal(&two, &alpha);
    assert_eq!(owner, "this region has 1 free GPUs of the model example-9000, and 2 would be needed");
    assert_eq!(operator, format!("host alpha: {owner}"));
}
