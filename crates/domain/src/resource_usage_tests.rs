use proptest::prelude::*;

use super::*;

const SECOND: i64 = Timestamp::SECOND;

fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).unwrap()
}

fn span(begin: &str, end: &str) -> Span {
    Span { begin: at(begin), end: at(end) }
}

fn line(resource: u128, kind: Kind, interval: Interval) -> Line {
    let name = format!("of {}", interval.since.0);
    let size = (kind.unit() == Unit::Seconds).then(|| "small".to_owned());
    Line { project: ProjectId(Uuid::nil()), kind, resource: Uuid::from_u128(resource), name, size, interval }
}

fn interval(begin: &str, end: Option<&str>, rate: i64, gib: i64) -> Interval {
    Interval { since: at(begin), until: end.map(at), rate: Nano(rate), bytes: gib << 30 }
}

#[test]
fn an_hour_costs_what_its_parts_do() {
    let price = Price { vcpu: Nano(100), memory_gb: Nano(1000), gpu: Nano(7), disk_gb: Nano(10) };
    let of = |vcpu, memory_mb, gpus, bytes| price.of(Measure { vcpu, memory_mb, gpus, bytes });
    assert_eq!(of(2, 512, 3, 0), Nano(200 + 500 + 21));
    assert_eq!(of(0, 0, 0, 20 << 30), Nano(200));
    // Half a billionth is rounded up, less is not.
    assert_eq!((of(0, 0, 0, (1 << 30) / 20), of(0, 0, 0, (1 << 30) / 20 - 100)), (Nano(0), Nano(0)));
    assert_eq!(of(0, 0, 0, (1 << 30) / 20 + 1), Nano(1));
    assert_eq!(of(-1, -1, -1, -1), Nano(0));
    let dear = Price { vcpu: Nano(i64::MAX), memory_gb: Nano(i64::MAX), gpu: Nano(0), disk_gb: Nano(0) };
    assert_eq!(dear.of(Measure { vcpu: 256, memory_mb: 4_194_304, ..Measure::default() }), Nano(i64::MAX));
}

#[test]
fn days_are_those_of_utc() {
    let days: Vec<_> = span("2028-02-28T23:00:00Z", "2028-03-01T00:00:00.000001Z").days().collect();
    assert_eq!(
        days,
        [
            span("2028-02-28T23:00:00Z", "2028-02-29T00:00:00Z"),
            span("2028-02-29T00:00:00Z", "2028-03-01T00:00:00Z"),
            span("2028-03-01T00:00:00Z", "2028-03-01T00:00:00.000001Z"),
        ]
    );
    assert_eq!(span("2028-02-28T23:00:00Z", "2028-02-28T23:00:00Z").days().count(), 0);
    assert_eq!(span("1969-12-31T12:00:00Z", "1970-01-01T12:00:00Z").days().count(), 2);
}

#[test]
fn what_goes_on_lasts_to_the_end_of_the_span() {
    let open = interval("2030-01-01T00:00:00Z", None, 3600, 0);
    let part = open.part(span("2029-01-01T00:00:00Z", "2030-01-01T00:00:10Z"));
    assert_eq!(part, Amount { micros: 10 * i128::from(SECOND), byte_micros: 0, cost: Nano(10) });
    assert_eq!(open.part(span("2029-01-01T00:00:00Z", "2030-01-01T00:00:00Z")), Amount::default());
    let closed = Interval { until: Some(at("2030-01-01T00:00:04Z")), ..open };
    assert_eq!(closed.part(span("2030-01-01T00:00:01Z", "2031-01-01T00:00:00Z")).cost, Nano(3));
    assert_eq!(closed.part(span("2030-01-01T00:00:04Z", "2031-01-01T00:00:00Z")), Amount::default());
}

#[test]
fn quantities_have_their_units() {
    let disk = interval("2030-01-01T00:00:00Z", None, 0, 20).part(span("2030-01-01T00:00:00Z", "2030-01-01T01:30:00Z"));
    assert_eq!((disk.quantity(Unit::GibHours), disk.quantity(Unit::Seconds)), (30.0, 5400.0));
    let moment = Amount { micros: 1, ..Amount::default() };
    assert!((moment.quantity(Unit::Seconds) - 1e-6).abs() < 1e-12);
}

#[test]
fn by_takes_each_word_once() {
    let allowed = ["day", "resource"];
    let by = |day, resource| Ok(By { day, resource, project: false });
    assert_eq!(By::parse("day", &allowed), by(true, false));
    assert_eq!(By::parse("resource", &allowed), by(false, true));
    assert_eq!(By::parse("resource,day", &allowed), by(true, true));
    assert!(By::parse("project", &["project"]).is_ok_and(|by| by.project));
    for bad in ["", ",", "day,", "day,day", "project", "hour", "day, resource"] {
        let error = By::parse(bad, &allowed).unwrap_err();
        assert!(error.contains("day resource"), "{bad}: {error}");
    }
}

#[test]
fn sums_are_told_apart_by_what_is_asked() {
    let vm = |begin, end| line(1, Kind::Vm, interval(begin, end, 3600, 0));
    let lines = [
        vm("2030-01-01T23:00:00Z", Some("2030-01-02T01:00:00Z")),
        vm("2030-01-02T02:00:00Z", None),
        line(2, Kind::Disk, interval("2030-01-02T00:00:00Z", None, 7200, 2)),
    ];
    let sums = |by: By| {
        let mut totals = Totals::new(span("2030-01-01T00:00:00Z", "2030-01-02T03:00:00Z"), by);
        for line in &lines {
            totals.add(line);
        }
        assert_eq!(totals.cost(), Nano(3 * 3600 + 3 * 7200));
        let row = |(key, sum): (Key, Sum)| {
            (
                key.day.map(Timestamp::seconds),
                key.kind,
                key.resource.is_some(),
                sum.name,
                sum.amount.quantity(key.kind.unit()),
            )
        };
        totals.into_sums().map(row).collect::<Vec<_>>()
    };
    let name = |at_time: &str| Some(format!("of {}", at(at_time).0));
    let (first, second) = (at("2030-01-01T00:00:00Z").seconds(), at("2030-01-02T00:00:00Z").seconds());
    // The latest name is the resource's.
    let (one, two) = (name("2030-01-02T02:00:00Z"), name("2030-01-02T00:00:00Z"));
    let resource = By { resource: true, ..By::default() };
    assert_eq!(
        sums(resource),
        [(None, Kind::Vm, true, one.clone(), 10_800.0), (None, Kind::Disk, true, two.clone(), 6.0)]
    );
    let day = By { day: true, ..By::default() };
    assert_eq!(
        sums(day),
        [
            (Some(first), Kind::Vm, false, None, 3600.0),
            (Some(second), Kind::Vm, false, None, 7200.0),
            (Some(second), Kind::Disk, false, None, 6.0),
        ]
    );
    let both = sums(By { day: true, ..resource });
    assert_eq!(both[0], (Some(first), Kind::Vm, true, name("2030-01-01T23:00:00Z"), 3600.0));
    assert_eq!(both[1..], [(Some(second), Kind::Vm, true, one, 7200.0), (Some(second), Kind::Disk, true, two, 6.0)]);
}

#[test]
fn a_line_costs_no_more_than_sums_can_hold() {
    let dear = Interval { since: Timestamp(0), until: None, rate: Nano(i64::MAX), bytes: 0 };
    let ever = dear.part(Span { begin: Timestamp(0), end: Timestamp(i64::MAX) });
    assert_eq!(i128::from(ever.cost.0), MOST_COST);
    // However much it cost before, its next hour costs an hour.
    let long = Interval { rate: Nano(1 << 40), ..dear };
    let hour = Timestamp(3600 * Timestamp::SECOND);
    let late = Timestamp(1 << 62);
    assert_eq!(long.part(Span { begin: late, end: Timestamp(late.0 + hour.0) }).cost, Nano(1 << 40));
}

proptest! {
    #[test]
    fn parts_side_by_side_are_the_whole(
        since in 0..400 * DAY, length in 0..400 * DAY, goes_on: bool, rate in 0..10_i64.pow(12), gib in 0..1000_i64,
        begin in 0..400 * DAY, width in 1..400 * DAY, cuts in prop::collection::vec(0.0..1.0_f64, 0..5),
    ) {
        let until = (!goes_on).then_some(Timestamp(since + length));
        let interval = Interval { since: Timestamp(since), until, rate: Nano(rate), bytes: gib << 30 };
        let span = Span { begin: Timestamp(begin), end: Timestamp(begin + width) };
        let whole = interval.part(span);
        let sum = |parts: &mut dyn Iterator<Item = Span>| {
            let mut sum = Amount::default();
            parts.for_each(|part| sum += interval.part(part));
            sum
        };
        prop_assert_eq!(sum(&mut span.days()), whole);
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "any cut will do")]
        let mut edges: Vec<i64> = cuts.iter().map(|cut| begin + (cut * width as f64) as i64).collect();
        edges.extend([begin, begin + width]);
        edges.sort_unstable();
        let mut parts = edges.windows(2).map(|w| Span { begin: Timestamp(w[0]), end: Timestamp(w[1]) });
        prop_assert_eq!(sum(&mut parts), whole);
        // And the cost is that of its time, to the billionth at either end.
        let exact = i128::from(rate) * whole.micros / HOUR;
        prop_assert!((i128::from(whole.cost.0) - exact).abs() <= 1);
        for day in span.days() {
            prop_assert!(day.begin < day.end && day.end.0 - day.begin.0 <= DAY);
            prop_assert_eq!(day_of(day.begin), day_of(Timestamp(day.end.0 - 1)));
        }
    }

    #[test]
    fn however_it_is_told_apart_it_costs_the_same(
        lines in prop::collection::vec((0..3_u128, 0..100 * DAY, 0..10 * DAY, 0..10_i64.pow(12)), 0..20),
        begin in 0..100 * DAY, width in 1..50 * DAY,
    ) {
        let span = Span { begin: Timestamp(begin), end: Timestamp(begin + width) };
        let lines: Vec<_> = lines.into_iter().map(|(resource, since, length, rate)| {
            let until = (resource != 0).then_some(Timestamp(since + length));
            line(resource, Kind::Vm, Interval { since: Timestamp(since), until, rate: Nano(rate), bytes: 0 })
        }).collect();
        let costs: Vec<_> = ["day", "resource", "project", "day,resource", "day,project,resource"].into_iter().map(|by| {
            let mut totals = Totals::new(span, By::parse(by, &["day", "project", "resource"]).unwrap());
            for line in &lines {
                totals.add(line);
            }
            totals.cost()
        }).collect();
        let whole: Nano = lines.iter().map(|line| line.interval.part(span).cost).sum();
        prop_assert!(costs.iter().all(|cost| *cost == whole));
    }
}
