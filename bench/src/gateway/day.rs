//! A simulated day: a stream for each of its seconds, opened as fast as possible and ended as clients end them, and the
//! memory that the gateway keeps after every hour.
//!
//! A process takes memory until its tables and pools have reached their sizes, and an allocator returns free memory
//! only after a while. So no single figure shows a leak: the report compares the end of the day with its beginning.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::ending::Ending;
use super::hour::Hour;
use super::load::Order;
use super::system::System;
use crate::report::{Bound, Report};

/// Hours of the day, and streams of each hour.
const HOURS: u32 = 24;
const HOUR: u32 = 3_600;
const DAY: u32 = HOURS * HOUR;
/// Streams that are open at the same time.
const OPEN: u32 = 256;
/// The hours at the beginning that count, from 0: the first one warms up.
const BEGINNING: Range<usize> = 1..7;
const END: Range<usize> = 18..24;
/// Longest time of the day.
const DAY_WITHIN: Duration = Duration::from_mins(5);
/// Longest wait after an hour until nothing is under way; then the wait until closed connections are gone.
const QUIET_WITHIN: Duration = Duration::from_secs(2);
const GONE: Duration = Duration::from_millis(300);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// Longest wait for the gateway's counters.
const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Runs the day on a process that has done nothing yet.
pub async fn run(report: &mut Report, system: &System) -> Result<()> {
    let process = system.process.as_ref().context("a process")?;
    let metered = system.metered().await?;
    let before = Counters::of(system).await?;
    let (began, mut after) = (Instant::now(), Vec::new());
    for hour in 0..HOURS {
        let lived = timeout_at(began + DAY_WITHIN, live(system, hour)).await;
        let lived = lived.with_context(|| format!("the day took more than {} s", DAY_WITHIN.as_secs())).flatten();
        lived.with_context(|| format!("in hour {} of the simulated day", hour + 1))?;
        after.push(process.memory()?);
    }
    memory(report, &after, began.elapsed());
    let now = quiet(system).await?;
    let what = "gateway: requests under way after a day of streams";
    report.add(what, figure(now.busy)?, "requests", Some(Bound::Most(0.0)), String::new());
    let asked = now.asked.saturating_sub(before.asked);
    ensure!(
        now.failed == before.failed,
        "the upstream failed {} requests of the simulated day, and what was asked again cannot be told apart",
        now.failed.saturating_sub(before.failed)
    );
    let rows = system.settled(metered, asked).await?.context("Berth meters")?;
    usage(report, asked, rows)
}

/// Runs an hour, and waits until its streams are gone.
async fn live(system: &System, hour: u32) -> Result<()> {
    let first = hour * HOUR;
    let hour = Hour {
        address: system.address.clone(),
        headers: system.headers.clone(),
        from: Ipv4Addr::new(127, 0, 1, u8::try_from(hour + 1)?),
        streams: first..first + HOUR,
        open: OPEN,
    };
    Order::Hour(hour).run().await?;
    quiet(system).await?;
    sleep(GONE).await;
    Ok(())
}

/// Waits a short time until nothing is under way.
async fn quiet(system: &System) -> Result<Counters> {
    let began = Instant::now();
    loop {
        let counters = Counters::of(system).await?;
        if counters.busy == 0 || began.elapsed() > QUIET_WITHIN {
            return Ok(counters);
        }
        sleep(LOOK).await;
    }
}

/// The gateway's counters for its upstreams.
#[derive(Debug, PartialEq, Eq)]
struct Counters {
    /// Requests under way.
    busy: u64,
    /// Requests sent to an upstream; from then on a request has to be metered.
    asked: u64,
    /// Requests that the upstream failed.
    failed: u64,
}

impl Counters {
    async fn of(system: &System) -> Result<Self> {
        let asked = async { reqwest::get(format!("http://{}/metrics", system.address)).await?.text().await };
        let text = timeout(TOLD_WITHIN, asked).await.context("the gateway does not tell its metrics")??;
        Self::read(&text)
    }

    /// Parses them from Prometheus' text format.
    fn read(text: &str) -> Result<Self> {
        let sum = |name: &str| -> Result<u64> {
            let series = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' '));
            let figures: Result<Vec<u64>, _> = series.map(|(_, figure)| figure.parse()).collect();
            let figures = figures.with_context(|| format!("{name} is no number"))?;
            ensure!(!figures.is_empty(), "the gateway's metrics lack {name}");
            Ok(figures.into_iter().sum())
        };
        Ok(Self {
            busy: sum("berth_upstream_in_flight")?,
            asked: sum("berth_upstream_requests_total")?,
            failed: sum("berth_upstream_failures_total")?,
        })
    }
}

/// Megabytes over the course of a day.
#[derive(Debug, PartialEq)]
struct Course {
    beginning: f64,
    end: f64,
    most: f64,
    /// The hour of the maximum, from 1.
    at: usize,
}

impl Course {
    /// From the figures after each hour.
    fn of(after: &[f64]) -> Self {
        let most = after.iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
        let (at, most) = most.map_or((0, 0.0), |(hour, most)| (hour + 1, *most));
        Self { beginning: mean(&after[BEGINNING]), end: mean(&after[END]), most, at }
    }
}

fn mean(figures: &[f64]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few")]
    let number = figures.len() as f64;
    figures.iter().sum::<f64>() / number
}

fn memory(report: &mut Report, after: &[f64], took: Duration) {
    let Course { beginning, end, most, at } = Course::of(after);
    let detail = format!(
        "{end:.1} MB beside {beginning:.1}, at most {most:.1} after hour {at}; {DAY} streams in {:.0} s, ended as \
         clients end them",
        took.as_secs_f64()
    );
    let what = "gateway: memory in the last 6 hours of a day of streams, beside hours 2 to 7";
    report.add(what, end / beginning, "times", Some(Bound::Most(1.1)), detail);
}

/// Whether usage counts exactly the requests that reached an upstream.
fn usage(report: &mut Report, asked: u64, shown: u64) -> Result<()> {
    let number = |is: fn(Ending) -> bool| (0..DAY).filter(|stream| is(Ending::of(*stream))).count();
    let (early, refused) = (number(Ending::is_early), number(Ending::is_refused));
    let possible = u64::from(DAY) - u64::try_from(refused)?;
    let certain = possible - u64::try_from(early)?;
    ensure!(
        (certain..=possible).contains(&asked),
        "the gateway counts {asked} requests to its upstream, which must be {certain} to {possible}"
    );
    let detail = format!("{shown} of {asked}; {refused} were refused, and of {early} some left before they were read");
    let what = "gateway: requests in the usage too few or too many after a day of streams";
    report.add(what, figure(shown.abs_diff(asked))?, "requests", Some(Bound::Most(0.0)), detail);
    Ok(())
}

fn figure(number: u64) -> Result<f64> {
    Ok(f64::from(u32::try_from(number)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_day_stands_beside_its_beginning() {
        let mut after = [50.0; 24];
        (after[0], after[12], after[17]) = (1.0, 90.0, 80.0);
        assert_eq!(Course::of(&after), Course { beginning: 50.0, end: 50.0, most: 90.0, at: 13 });
        (after[1], after[23]) = (44.0, 110.0);
        assert_eq!(Course::of(&after), Course { beginning: 49.0, end: 60.0, most: 110.0, at: 24 });
    }

    #[test]
    fn counters_of_all_upstreams_are_read() {
        let text = "# HELP berth_upstream_requests_total Requests.\n# TYPE berth_upstream_requests_total counter\n\
                    berth_upstream_requests_total{model=\"a\",upstream=\"0\"} 70000\n\
                    berth_upstream_requests_total{model=\"b\",upstream=\"0\"} 2\n\
                    berth_upstream_failures_total{model=\"a\",upstream=\"0\"} 1\n\
                    berth_upstream_in_flight{model=\"a\",upstream=\"0\"} 3\n";
        assert_eq!(Counters::read(text).unwrap(), Counters { busy: 3, asked: 70_002, failed: 1 });
        assert!(Counters::read(&text.replace("in_flight", "busy")).is_err());
        assert!(Counters::read(&text.replace(" 3\n", " much\n")).is_err());
    }
}
