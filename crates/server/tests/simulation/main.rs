//! Replicas, hosts and their database in a world in which everything breaks, simulated from a seed.
//!
//! Each schedule is two or three replicas, hosts with machines, the wires between them and the database that they share, over
//! a virtual clock; what breaks when is drawn from the seed, and nothing else decides anything.
//!
//! These rules of Berth's are called as they are: when the database is free and how long a lease holds
//! ([`berth_domain::replica`], and `KeeperRow` of the server), in which terms a host answers
//! ([`Hearing`](berth_domain::replica::Hearing)), what it does for which generation of a machine
//! ([`Aim`](berth_domain::host::Aim)), what comes next for a VM ([`plan::next`](berth_domain::vm::plan::next)), what a verb
//! does to a status ([`on_verb`](berth_domain::vm::state::on_verb)), and when a host is lost
//! ([`is_lost`](berth_domain::host::join::is_lost)).
//!
//! Everything else is modelled by hand, and follows what it names: the transactions of `db::keeper` (`claim`, `begin_term`,
//! `note`), `app::standby` and `app::folder`; the driver of `work::lifecycle`; `is_still_wanted`, `apply` and the steps of
//! `services::vm::reconcile`; what requests do to rows; adoption and the search of `work::host`; rows, the lock of writers,
//! processes, folders and wires. A change there is made here, too, or this goes on to check what was.
//!
//! Left out are migration, drains, suspension, disks but for a VM's own, sandboxes, a database that is restored from a copy
//! (`outdo`) and what a former leader still answers.
//!
//! Simulators of the network below programs as they are (turmoil, madsim) were considered. They would bring the driver of
//! PostgreSQL, TLS and the processes of machines into each schedule, so this simulates around what decides.
//!
//! A schedule that breaks a rule, or panics, is done again by its seed, `BERTH_TEST_SCHEDULE`. `BERTH_TEST_SCHEDULES` asks for
//! more of them.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test")]

mod broken;
mod check;
mod database;
mod fault;
mod host;
mod life;
mod replica;
mod run;
mod service;
mod user;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use broken::Rule;
use check::SETTLES;
use run::{Run, Sim};
use world::World;

/// Schedules of a usual run.
const SCHEDULES: u64 = 2_000;
/// How many of the last things are told that happened.
const TOLD: usize = 80;

/// How a schedule went.
struct Outcome {
    /// What is wrong with it, if anything is.
    wrong: Option<String>,
    /// What it came to.
    reached: BTreeSet<&'static str>,
}

fn run(seed: u64, broken: Option<Rule>, is_told: bool) -> Outcome {
    let sim = Sim::new(World::new(seed, broken), is_told);
    let outcome = catch_unwind(AssertUnwindSafe(|| goes(&sim)));
    let is_whole = outcome.is_ok();
    let wrong = outcome.unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        Some(format!("it panics: {}", said.unwrap_or_default()))
    });
    let wrong = wrong.map(|wrong| if is_told { format!("{}\n{wrong}", sim.told(TOLD)) } else { wrong });
    // What is left of it may be in the middle of something.
    if !is_whole {
        return Outcome { wrong, reached: BTreeSet::new() };
    }
    let reached = std::mem::take(&mut sim.world.borrow_mut().checker.reached);
    sim.end();
    Outcome { wrong, reached }
}

fn goes(sim: &Run) -> Option<String> {
    for machine in 0..sim.world.borrow().machines.len() {
        sim.at(0, move |sim| replica::begin(sim, machine));
    }
    fault::draw(sim);
    user::begin(sim);
    let end = sim.world.borrow().heals + SETTLES;
    while sim.step(end) {
        if let Some(wrong) = sim.world.borrow_mut().checker.wrong.take() {
            return Some(wrong);
        }
    }
    check::at_rest(sim)
}

/// The number of a variable.
fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// A failure as a person reads it.
fn story(seed: u64) -> String {
    let wrong = run(seed, None, true).wrong.expect("the same seed is the same schedule");
    let again = "cargo test -p berth-server --test simulation every_schedule -- --nocapture";
    format!("{wrong}\nThe same again: BERTH_TEST_SCHEDULE={seed} {again}")
}

/// Runs schedules until one goes wrong; its seed, and what the others came to.
fn search(next: &AtomicU64, count: u64) -> (Option<u64>, BTreeMap<&'static str, u64>) {
    let mut reached = BTreeMap::new();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= count {
            return (None, reached);
        }
        let outcome = run(seed, None, false);
        for what in outcome.reached {
            *reached.entry(what).or_default() += 1;
        }
        if outcome.wrong.is_some() {
            next.fetch_max(count, Ordering::Relaxed);
            return (Some(seed), reached);
        }
    }
}

#[test]
fn every_schedule_keeps_every_rule() {
    if let Some(seed) = setting("BERTH_TEST_SCHEDULE") {
        return assert!(run(seed, None, false).wrong.is_none(), "{}", story(seed));
    }
    let count = setting("BERTH_TEST_SCHEDULES").unwrap_or(SCHEDULES);
    let (next, began) = (AtomicU64::new(0), Instant::now());
    // Each schedule is of one thread; so many run beside each other.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let all: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| search(&next, count))).collect();
        all.into_iter().map(|one| one.join().expect("a search")).collect()
    });
    if let Some(seed) = all.iter().filter_map(|(wrong, _)| *wrong).min() {
        panic!("{}", story(seed));
    }
    for what in check::REACHED {
        let times: u64 = all.iter().filter_map(|(_, reached)| reached.get(what)).sum();
        println!("  in {times}, {what}");
        // Terms leave little to generations, which are for a database that is an older copy.
        let enough = if what == check::OUTDATED { 20 * SCHEDULES } else { SCHEDULES };
        assert!(times > 0 || count < enough, "in no schedule, {what}");
    }
    println!("{count} schedules in {} s: every rule was kept", began.elapsed().as_secs());
}

/// Without a rule the checker finds something wrong, in words like these, and with it nothing in the same schedule.
fn is_seen(broken: Rule, wrong: &str) {
    let first = (0..SCHEDULES).find_map(|seed| Some((seed, run(seed, Some(broken), false).wrong?)));
    let (seed, found) = first.expect("something is wrong without this rule");
    println!("{broken:?}: after {} schedules, {found}", seed + 1);
    assert!(found.contains(wrong), "{found}");
    let kept = run(seed, None, false).wrong;
    assert!(kept.is_none(), "with all rules, schedule {seed} is wrong, too: {kept:?}");
}

#[test]
fn hosts_that_forget_terms_are_seen() {
    is_seen(Rule::HostsKeepTerms, "and was asked in term");
}

#[test]
fn hosts_that_forget_generations_are_seen() {
    is_seen(Rule::HostsKeepGenerations, "is said to be deleted, and host");
}

#[test]
fn a_database_without_terms_is_seen() {
    is_seen(Rule::DatabaseKeepsTerms, "the database is written to in term");
}

#[test]
fn a_lease_that_holds_for_too_long_is_seen() {
    is_seen(Rule::LeasesEnd, "has a lease that holds");
}

#[test]
fn a_key_that_is_forgotten_is_seen() {
    is_seen(Rule::KeysAreKept, "was applied 2 times");
}

#[test]
fn a_commit_that_waits_for_nobody_is_seen() {
    is_seen(Rule::CommitsAreSynchronous, "was acknowledged, and the database does not have it");
}

#[test]
fn a_record_onto_another_row_than_it_was_decided_for_is_seen() {
    is_seen(Rule::RowsAreCompared, "is taken back by a step that was decided before");
}

#[test]
fn a_stop_that_leaves_a_start_under_way_is_seen() {
    is_seen(Rule::StopsCallOff, "is said to be stopped, and host");
}

#[test]
fn a_deletion_that_leaves_a_start_under_way_is_seen() {
    is_seen(Rule::DeletionsEnd, "is said to be deleted, and host");
}

#[test]
fn a_failure_that_leaves_a_start_under_way_is_seen() {
    is_seen(Rule::FailuresEnd, "is said to be failed, and host");
}

#[test]
fn machines_that_are_left_without_a_row_are_seen() {
    is_seen(Rule::UnownedMachinesEnd, "status: Deleted");
}
