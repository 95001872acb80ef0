//! Tests of who comes next.

use proptest::prelude::*;

use super::*;

type Owner = (u16, u16);
type Shared = Line<u16, u16, ()>;

fn join(line: &mut Shared, owner: Owner) -> Spot<u16, u16> {
    line.join(owner, Shares::default(), Priority::Normal, ())
}

/// The next one takes a place; returns its owner.
fn serve(line: &mut Shared) -> Option<Owner> {
    let first = line.first()?;
    let (group, owner) = first.owner;
    let shares = Shares { group: line.groups.all[&group].share, owner: line.owners[&group].all[&owner].share };
    line.leave(first).unwrap();
    line.took(first.owner, shares);
    Some(first.owner)
}

/// The same share for a group and its owner.
fn both(share: u32) -> Shares {
    Shares { group: Share(share), owner: Share(share) }
}

/// Properties hold for owners of one group, and for groups of one owner each.
const KINDS: [fn(u16) -> Owner; 2] = [|owner| (0, owner), |group| (group, 0)];

#[test]
fn urgency_counts_among_ones_own() {
    for kind in KINDS {
        urgency(kind);
    }
}

fn urgency(kind: fn(u16) -> Owner) {
    let mut line = Line::default();
    let words = [(1, "low"), (1, "?"), (2, "low"), (1, "high"), (2, "normal"), (1, "normal")];
    for (number, (owner, word)) in words.into_iter().enumerate() {
        line.join(kind(owner), Shares::default(), Priority::of(Some(word)), number);
    }
    let mut order = Vec::new();
    while let Some(spot) = line.first() {
        order.push(line.leave(spot).unwrap());
        // One place, which it gives back at once.
        line.took(spot.owner, Shares::default());
        line.gave(spot.owner);
    }
    assert_eq!(order, [3, 4, 1, 2, 5, 0]);
}

#[test]
fn who_holds_fewest_comes_next() {
    for kind in KINDS {
        let mut line = Line::default();
        for _ in 0..3 {
            line.took(kind(1), Shares::default());
        }
        line.took(kind(2), Shares::default());
        for owner in [1, 1, 2, 2, 2, 3] {
            join(&mut line, kind(owner));
        }
        let order: Vec<_> = std::iter::from_fn(|| serve(&mut line)).collect();
        assert_eq!(order, [3, 2, 2, 1, 2, 1].map(kind));
    }
}

#[test]
fn many_owners_get_their_group_no_more() {
    let mut line = Line::default();
    for owner in 0..13 {
        line.took((1, owner), Shares::default());
        join(&mut line, (1, owner));
    }
    line.took((2, 0), Shares::default());
    let mine = join(&mut line, (2, 0));
    assert_eq!(line.first(), Some(mine), "each owner of the other group holds as many, and the group more");
    join(&mut line, (2, 1));
    assert_eq!((serve(&mut line), serve(&mut line)), (Some((2, 1)), Some((2, 0))), "within a group as between them");
    assert_eq!(serve(&mut line), Some((1, 0)));
}

#[test]
fn a_group_with_most_makes_room_however_many_owners_it_has() {
    let mut line = Line::default();
    let spots: Vec<_> = (0..3).map(|owner| join(&mut line, (1, owner))).collect();
    assert_eq!(line.yields((1, 3), Shares::default()), None, "one of each owner is fair among them");
    let out = line.yields((2, 0), Shares::default()).unwrap();
    assert!(spots.contains(&out));
    line.leave(out).unwrap();
    join(&mut line, (2, 0));
    assert_eq!(line.yields((2, 1), Shares::default()), None, "two and two would be no fairer than two and one");
    // Among themselves the owners of a group share what it has.
    let second = join(&mut line, (2, 0));
    assert_eq!(line.yields((2, 1), Shares::default()), Some(second));
}

#[test]
fn who_is_asked_if_another_does_not_want() {
    let mut line = Line::default();
    let [a, b, c, d, e] = [(1, 0), (2, 0), (1, 0), (3, 0), (1, 5)].map(|owner| join(&mut line, owner));
    assert_eq!(line.first(), Some(a));
    assert_eq!((line.after(a), line.after(c)), (Some(c), Some(e)), "what else its owner has, and its group");
    assert_eq!((line.after(e), line.after(b), line.after(d)), (Some(b), Some(d), None));
    line.leave(a);
    assert_eq!((line.first(), line.after(a)), (Some(c), Some(c)));
}

#[test]
fn the_one_with_most_makes_room() {
    for kind in KINDS {
        room(kind);
    }
}

fn room(kind: fn(u16) -> Owner) {
    let mut line = Line::default();
    let first = join(&mut line, kind(1));
    assert_eq!(
        (line.yields(kind(2), Shares::default()), line.yields(kind(1), Shares::default())),
        (None, None),
        "one each is fair"
    );
    let urgent = line.join(kind(1), Shares::default(), Priority::High, ());
    assert_eq!(line.yields(kind(2), Shares::default()), Some(first), "the least urgent goes");
    let last = join(&mut line, kind(1));
    assert_eq!((line.yields(kind(2), Shares::default()), line.yields(kind(1), Shares::default())), (Some(last), None));
    line.leave(last).unwrap();
    join(&mut line, kind(2));
    assert_eq!((line.yields(kind(2), Shares::default()), line.yields(kind(3), Shares::default())), (None, Some(first)));
    assert_eq!((line.leave(first), line.leave(first), line.leave(urgent)), (Some(()), None, Some(())));
    assert_eq!(line.len(), 1);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Join(Owner),
    Leave(usize),
    Serve,
    End(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u16..4, 0_u16..3).prop_map(Step::Join),
        1 => (0_usize..50).prop_map(Step::Leave),
        3 => Just(Step::Serve),
        2 => (0_usize..50).prop_map(Step::End),
    ]
}

proptest! {
    #[test]
    fn the_next_place_is_theirs_who_hold_fewest(steps in prop::collection::vec(step(), 1..300)) {
        let mut line = Shared::default();
        let (mut waiting, mut holding) = (Vec::<Spot<u16, u16>>::new(), Vec::<Owner>::new());
        for step in steps {
            match step {
                Step::Join(owner) => waiting.push(join(&mut line, owner)),
                Step::Leave(which) if !waiting.is_empty() => {
                    let gone = waiting.remove(which % waiting.len());
                    prop_assert!(line.leave(gone).is_some());
                }
                Step::Serve if !waiting.is_empty() => {
                    let of_group = |group: u16| holding.iter().filter(|held| held.0 == group).count();
                    let held = |owner: Owner| holding.iter().filter(|held| **held == owner).count();
                    let next = line.first().unwrap();
                    let fewest = waiting.iter().map(|spot| of_group(spot.owner.0)).min();
                    prop_assert_eq!(Some(of_group(next.owner.0)), fewest);
                    let siblings = waiting.iter().filter(|spot| spot.owner.0 == next.owner.0);
                    prop_assert_eq!(Some(held(next.owner)), siblings.map(|spot| held(spot.owner)).min());
                    prop_assert_eq!(serve(&mut line), Some(next.owner));
                    waiting.retain(|spot| *spot != next);
                    holding.push(next.owner);
                }
                Step::End(which) if !holding.is_empty() => {
                    let owner = holding.swap_remove(which % holding.len());
                    line.gave(owner);
                }
                _ => prop_assert_eq!(line.is_empty(), waiting.is_empty()),
            }
            prop_assert_eq!(line.len(), waiting.len());
            // Walking from one to the next finds each exactly once.
            let mut walk: Vec<_> = std::iter::successors(line.first(), |spot| line.after(*spot)).collect();
            prop_assert_eq!(walk.len(), waiting.len());
            walk.retain(|spot| !waiting.contains(spot));
            prop_assert!(walk.is_empty());
            let known: BTreeSet<_> =
                line.owners.iter().flat_map(|(group, owners)| owners.all.keys().map(|owner| (*group, *owner))).collect();
            let real: BTreeSet<_> = holding.iter().copied().chain(waiting.iter().map(|spot| spot.owner)).collect();
            let groups: BTreeSet<_> = real.iter().map(|(group, _)| *group).collect();
            prop_assert_eq!(line.groups.all.len(), groups.len());
            prop_assert_eq!(known, real, "who neither holds nor waits is forgotten");
        }
    }

    #[test]
    fn who_always_wants_more_gets_as_much_as_others(
        places in 1_usize..20, owners in 1_u16..6, kind in prop::sample::select(KINDS.to_vec()),
        ends in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let mut line = Shared::default();
        for owner in (0..owners).cycle().take(300 * usize::from(owners)) {
            join(&mut line, kind(owner));
        }
        let mut holding: Vec<_> = (0..places).map(|_| serve(&mut line).unwrap()).collect();
        let mut order = Vec::<Owner>::new();
        for end in ends {
            let counts = (0..owners).map(|owner| holding.iter().filter(|held| **held == kind(owner)).count());
            let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", holding);
            line.gave(holding.swap_remove(end.index(holding.len())));
            holding.push(serve(&mut line).unwrap());
            order.extend(holding.last().copied());
        }
        if places == 1 {
            for round in order.chunks_exact(usize::from(owners)) {
                let served: BTreeSet<_> = round.iter().collect();
                prop_assert_eq!(served.len(), round.len(), "they take turns");
            }
        }
    }

    #[test]
    fn who_always_wants_more_gets_places_for_its_share(
        places in 1_usize..30, shares in prop::collection::vec(1_u32..=Share::MOST, 1..6),
        kind in prop::sample::select(KINDS.to_vec()), ends in prop::collection::vec(any::<prop::sample::Index>(), 1..200),
    ) {
        let mut line = Shared::default();
        let owners = u16::try_from(shares.len()).unwrap();
        for _ in 0..300 {
            for (owner, share) in (0..owners).zip(&shares) {
                line.join(kind(owner), both(*share), Priority::Normal, ());
            }
        }
        let mut holding: Vec<_> = (0..places).map(|_| serve(&mut line).unwrap()).collect();
        for end in ends {
            let held: Vec<u64> = (0..owners).map(|o| holding.iter().filter(|held| **held == kind(o)).count() as u64).collect();
            for (mine, my_share) in std::iter::zip(&held, &shares) {
                for (other, its_share) in std::iter::zip(&held, &shares) {
                    // No owner has a place that another should have: (mine - 1) / my share <= other / its share.
                    let fair = mine.saturating_sub(1) * u64::from(*its_share) <= other * u64::from(*my_share);
                    prop_assert!(fair, "{held:?} {shares:?}");
                }
            }
            line.gave(holding.swap_remove(end.index(holding.len())));
            holding.push(serve(&mut line).unwrap());
        }
    }

    #[test]
    fn different_ratios_are_different(
        a in 0_usize..5000, of_a in 1_u32..=Share::MOST, b in 0_usize..5000, of_b in 1_u32..=Share::MOST,
    ) {
        let exact = (a as u64 * u64::from(of_b)).cmp(&(b as u64 * u64::from(of_a)));
        prop_assert_eq!(Share(of_a).load(a).cmp(&Share(of_b).load(b)), exact);
    }
}

#[test]
fn a_share_follows_the_smaller_limit_and_has_two_ends() {
    let share = |tokens, requests| Share::of(tokens, requests).0;
    assert_eq!((share(None, None), share(Some(i64::MAX), None), share(None, Some(i64::MAX))), (1000, 1000, 1000));
    assert_eq!((share(Some(1_000_000), None), share(Some(999_999), None)), (1000, 999));
    assert_eq!((share(Some(0), None), share(Some(1999), None), share(Some(2000), None)), (1, 1, 2));
    assert_eq!((share(None, Some(60)), share(Some(50_000), Some(60)), share(Some(70_000), Some(60))), (60, 50, 60));
}

#[test]
fn who_holds_nothing_comes_next_however_small_its_share() {
    for kind in KINDS {
        let mut line = Shared::default();
        line.took(kind(1), both(1000));
        line.join(kind(1), both(1000), Priority::High, ());
        line.join(kind(2), both(1), Priority::Low, ());
        assert_eq!(serve(&mut line), Some(kind(2)));
        assert_eq!((serve(&mut line), serve(&mut line)), (Some(kind(1)), None));
    }
}

#[test]
fn a_larger_share_may_wait_with_more() {
    for kind in KINDS {
        let mut line = Shared::default();
        for _ in 0..4 {
            line.join(kind(1), both(400), Priority::Normal, ());
        }
        assert_eq!(line.yields(kind(2), both(100)), None, "four and one are as their shares");
        assert!(line.yields(kind(2), both(101)).is_some());
    }
}
