//! The ledger against what happened: random histories, with transactions that did not commit.

use std::collections::HashMap;

use berth_domain::resource_usage::{By, Totals};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

const HOUR: i64 = 3600 * Timestamp::SECOND;
const ORG: OrgId = OrgId(Uuid::from_u128(1));

async fn database(dir: &tempfile::TempDir) -> Db {
    Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap()
}

fn project(n: u128) -> ProjectId {
    ProjectId(Uuid::from_u128(100 + n))
}

/// What a resource of a project takes in one of its sizes.
fn taken(resource: u128, size: i64) -> Use {
    let kind = if resource.is_multiple_of(2) { Kind::Vm } else { Kind::Disk };
    let (vcpu, bytes) = if kind == Kind::Vm { (size, 0) } else { (0, size << 30) };
    Use {
        org: ORG,
        project: project(resource / 2),
        kind,
        resource: Uuid::from_u128(resource),
        name: format!("resource {resource}"),
        size: (kind == Kind::Vm).then(|| format!("size {size}")),
        measure: Measure { vcpu, bytes, ..Measure::default() },
        tariff: if kind == Kind::Vm { plan_tariff("on-demand") } else { DISK.into() },
    }
}

fn prices(hour: i64) -> [(String, Price); 2] {
    let (vcpu, disk_gb) = (Nano(hour), Nano(hour));
    [
        (plan_tariff("on-demand"), Price { vcpu, ..Price::default() }),
        (DISK.into(), Price { disk_gb, ..Price::default() }),
    ]
}

/// A step of a history, some time after the step before.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A resource now takes nothing, or this size; and whether the transaction committed.
    Changes(u128, Option<i64>, bool),
    /// The service starts again, with another price.
    Starts(i64),
}

fn event() -> impl Strategy<Value = (Event, i64)> {
    let changes = (0..6_u128, prop::option::of(1..4_i64), prop::bool::weighted(0.8))
        .prop_map(|(resource, size, committed)| Event::Changes(resource, size, committed));
    let starts = (0..5_i64).prop_map(|price| Event::Starts(price * 3600));
    (prop_oneof![8 => changes, 1 => starts], 0..100 * HOUR)
}

/// What happened, kept in the plain way: a sum for each resource, updated at every step.
#[derive(Default)]
struct History {
    sizes: HashMap<u128, i64>,
    rates: HashMap<u128, i64>,
    micros: HashMap<u128, i128>,
    /// Billionths times microseconds.
    costs: HashMap<u128, i128>,
    lines: i64,
}

impl History {
    fn passes(&mut self, micros: i64) {
        for (resource, size) in &self.sizes {
            let weight = if resource.is_multiple_of(2) { 1 } else { i128::from(*size) };
            *self.micros.entry(*resource).or_default() += i128::from(micros) * weight;
            *self.costs.entry(*resource).or_default() += i128::from(micros) * i128::from(self.rates[resource]);
        }
    }

    fn takes(&mut self, resource: u128, size: Option<i64>, price: i64) {
        let rate = size.map(|size| size * price);
        if (self.sizes.get(&resource).copied(), self.rates.get(&resource).copied()) == (size, rate) {
            return;
        }
        self.lines += 1;
        self.sizes.remove(&resource);
        self.rates.remove(&resource);
        if let (Some(size), Some(rate)) = (size, rate) {
            self.sizes.insert(resource, size);
            self.rates.insert(resource, rate);
        }
    }
}

async fn happen(db: &Db, history: &mut History, price: &mut i64, event: Event, now: Timestamp) {
    let mut tx = db.begin().await.unwrap();
    match event {
        Event::Changes(resource, size, committed) => {
            let kind = taken(resource, 1).kind;
            let wanted = size.map(|size| taken(resource, size));
            settle(&mut tx, (kind, Uuid::from_u128(resource)), wanted.as_ref(), now).await.unwrap();
            if committed {
                tx.commit().await.unwrap();
                history.takes(resource, size, *price);
            }
        }
        Event::Starts(hour) => {
            *price = hour;
            let used: Vec<_> = history.sizes.iter().map(|(resource, size)| taken(*resource, *size)).collect();
            set_prices(&mut tx, &prices(hour)).await.unwrap();
            square(&mut tx, &used, now).await.unwrap();
            tx.commit().await.unwrap();
            for wanted in used {
                let resource = wanted.resource.as_u128();
                history.takes(resource, history.sizes.get(&resource).copied(), hour);
            }
        }
    }
}

/// Sums of a project by resource, according to the ledger.
async fn sums(db: &Db, whose: Whose, span: Span, by: &str) -> HashMap<u128, (i128, Nano)> {
    let by = By::parse(by, &["day", "resource"]).unwrap();
    let mut totals = Totals::new(span, by);
    read(db, whose, span, |line| {
        totals.add(line);
        Ok(())
    })
    .await
    .unwrap();
    let mut sums = HashMap::new();
    for (key, sum) in totals.into_sums() {
        let amount = sum.amount;
        let held = if key.kind == Kind::Vm { amount.micros } else { amount.byte_micros >> 30 };
        let entry: &mut (i128, Nano) = sums.entry(key.resource.map_or(0, |id| id.as_u128())).or_default();
        entry.0 += held;
        entry.1 += amount.cost;
    }
    sums
}

async fn holds(events: &[(Event, i64)]) {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let (mut history, mut price) = (History::default(), 0);
    let begin = Timestamp::parse("2030-01-01T00:00:00Z").unwrap();
    let mut now = begin;
    for &(event, pause) in events {
        happen(&db, &mut history, &mut price, event, now).await;
        now = Timestamp(now.0 + pause);
        history.passes(pause);
    }
    let span = Span { begin, end: now };
    let mut spent = Nano(0);
    for n in 0..3 {
        let whose = Whose::Project(project(n));
        let by_resource = sums(&db, whose, span, "resource").await;
        assert_eq!(sums(&db, whose, span, "day,resource").await, by_resource);
        for resource in [2 * n, 2 * n + 1] {
            let (micros, cost) = by_resource.get(&resource).copied().unwrap_or_default();
            assert_eq!(micros, history.micros.get(&resource).copied().unwrap_or_default(), "{resource}");
            let exact = history.costs.get(&resource).copied().unwrap_or_default() / i128::from(HOUR);
            // Each line rounds down by less than a billionth.
            assert!(
                (exact - i128::from(cost.0)).unsigned_abs() <= u128::from(history.lines.unsigned_abs()),
                "{resource}"
            );
            spent += cost;
        }
    }
    let whole: Nano = sums(&db, Whose::Org(ORG), span, "day").await.values().map(|(_, cost)| *cost).sum();
    assert_eq!(whole, spent);
    month_holds(&db, now).await;
}

/// The money spent this month is the cost of this month's usage.
async fn month_holds(db: &Db, now: Timestamp) {
    let month = Span { begin: Month::of(now).begin, end: now };
    for whose in [Whose::Project(project(0)), Whose::Project(project(1)), Whose::Org(ORG)] {
        let used: Nano = sums(db, whose, month, "resource").await.values().map(|(_, cost)| *cost).sum();
        assert_eq!(spent(db, whose, now).await.unwrap(), used);
        let mut tx = db.begin().await.unwrap();
        assert_eq!(spent_on_all(&mut tx, whose, now).await.unwrap(), used);
    }
}

#[test]
fn sums_are_what_happened_whatever_was_cut_off() {
    let mut runner = TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let histories = prop::collection::vec(event(), 0..40);
    runner
        .run(&histories, |events| {
            runtime.block_on(holds(&events));
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn what_was_there_before_the_ledger_counts_from_the_start_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let at = |hours: i64| Timestamp(hours * HOUR);
    let start = async |used: &[Use], now: Timestamp| {
        let mut tx = db.begin().await.unwrap();
        square(&mut tx, used, now).await.unwrap();
        tx.commit().await.unwrap();
    };
    start(&[taken(0, 1), taken(1, 1)], at(10)).await;
    // Another start changes nothing; the line of a resource that vanished ends there.
    start(&[taken(0, 1), taken(1, 1)], at(20)).await;
    start(&[taken(0, 1)], at(30)).await;
    let span = Span { begin: at(0), end: at(40) };
    let sums = sums(&db, Whose::Project(project(0)), span, "resource").await;
    let hours = |n: i64| i128::from(n * HOUR);
    assert_eq!(sums, HashMap::from([(0, (hours(30), Nano(0))), (1, (hours(20), Nano(0)))]));
}

#[tokio::test]
async fn another_name_is_the_open_line_s_and_no_new_line() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let names = ["one", "two", "three"];
    for (hours, name) in (0_i64..).zip(names) {
        let mut tx = db.begin().await.unwrap();
        let wanted = Use { name: name.into(), ..taken(0, 1 + hours / 2) };
        settle(&mut tx, (Kind::Vm, Uuid::nil()), Some(&wanted), Timestamp(hours * HOUR)).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut lines = Vec::new();
    let span = Span { begin: Timestamp(0), end: Timestamp(3 * HOUR) };
    read(&db, Whose::Project(project(0)), span, |line| {
        lines.push((line.name.clone(), line.size.clone(), line.interval.since, line.interval.until));
        Ok(())
    })
    .await
    .unwrap();
    let (size, at) = (|n: i64| Some(format!("size {n}")), |hours: i64| Timestamp(hours * HOUR));
    assert_eq!(lines, [("two".into(), size(1), at(0), Some(at(2))), ("three".into(), size(2), at(2), None)]);
}

#[tokio::test]
async fn more_lines_than_are_read_at_once_are_all_read() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let mut tx = db.begin().await.unwrap();
    // Many end at the same moment: more than one query reads.
    for resource in 0..u128::try_from(PAGE).unwrap() + 100 {
        let wanted = Use { project: project(0), ..taken(2 * resource, 1) };
        let key = (Kind::Vm, wanted.resource);
        settle(&mut tx, key, Some(&wanted), Timestamp(0)).await.unwrap();
        if resource % 3 > 0 {
            settle(&mut tx, key, None, Timestamp(HOUR)).await.unwrap();
        }
    }
    tx.commit().await.unwrap();
    let mut count = 0;
    let span = Span { begin: Timestamp(0), end: Timestamp(2 * HOUR) };
    read(&db, Whose::Project(project(0)), span, |_| {
        count += 1;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(count, PAGE + 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_closes_while_others_are_read_is_read_once() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let mut tx = db.begin().await.unwrap();
    for resource in 0..=u128::try_from(PAGE).unwrap() {
        let wanted = Use { project: project(0), ..taken(2 * resource, 1) };
        settle(&mut tx, (Kind::Vm, wanted.resource), Some(&wanted), Timestamp(0)).await.unwrap();
    }
    tx.commit().await.unwrap();
    let (here, closing) = (tokio::runtime::Handle::current(), db.clone());
    let close_all = async || {
        let mut tx = closing.begin().await.unwrap();
        sql(format!("UPDATE resource_usage SET until = {HOUR}")).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
    };
    let mut resources = Vec::new();
    let span = Span { begin: Timestamp(0), end: Timestamp(2 * HOUR) };
    read(&db, Whose::Project(project(0)), span, |line| {
        if resources.is_empty() {
            tokio::task::block_in_place(|| here.block_on(close_all()));
        }
        resources.push(line.resource);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(i64::try_from(resources.len()).unwrap(), PAGE + 1);
    resources.sort();
    resources.dedup();
    assert_eq!(i64::try_from(resources.len()).unwrap(), PAGE + 1);
}

#[tokio::test]
async fn a_clock_that_was_set_back_makes_a_line_empty() {
    let dir = tempfile::tempdir().unwrap();
    let db = database(&dir).await;
    let mut tx = db.begin().await.unwrap();
    let key = (Kind::Vm, Uuid::nil());
    settle(&mut tx, key, Some(&taken(0, 1)), Timestamp(5 * HOUR)).await.unwrap();
    settle(&mut tx, key, Some(&taken(0, 2)), Timestamp(4 * HOUR)).await.unwrap();
    settle(&mut tx, key, None, Timestamp(6 * HOUR)).await.unwrap();
    tx.commit().await.unwrap();
    let span = Span { begin: Timestamp(0), end: Timestamp(9 * HOUR) };
    let sums = sums(&db, Whose::Project(project(0)), span, "resource").await;
    assert_eq!(sums, HashMap::from([(0, (i128::from(HOUR), Nano(0)))]));
}
