//! The gateway to models: Berth beside other gateways and beside no gateway, with the same upstream and the same load,
//! each in a process of its own, so that CPU and memory of the measured process are its own alone.
//!
//! Berth has bounds. The others show what a figure means on this machine; those that are not installed are left out.

mod berth;
mod connection;
mod day;
mod ending;
mod hour;
mod http;
pub mod load;
mod rivals;
mod system;
pub mod upstream;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::berth::Berth;
use self::system::{OURS, Round, System};
use self::upstream::{CHUNKS, Shape, Upstream};
use crate::process::median;
use crate::report::{Bound, Report};

/// Requests and seconds of a round of plain requests, whichever ends first; a tenth of that comes before as a warm-up.
const PLAIN: (u32, u64) = (20_000, 10);
/// Number of rounds; the median counts.
const ROUNDS: usize = 3;
/// Connections of plain requests.
const CONNECTIONS: u32 = 16;
/// Concurrent streams, and seconds in which new ones begin.
const STREAMS: (u32, u64) = (32, 8);
/// Requests one after another, seconds at most, and rounds.
const ALONE: (u32, u64, usize) = (1_000, 3, 5);
/// Streams that are held open.
const HELD: u32 = 4_000;
/// How long, until each of them has got some pieces.
const HELD_FOR: Duration = Duration::from_secs(6);
/// Files that processes may open: two for each stream, and some more.
const FILES: u64 = 10_000;

/// Measures all of it.
pub async fn run(report: &mut Report) -> Result<()> {
    open_files()?;
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let upstream = Upstream::start()?;
    let service = Berth::new(folder.path(), &upstream.address)?;
    let process = service.launch().await?;
    let idle = process.memory()?;
    report.add("gateway: memory of an idle service with a model", idle, "MB", Some(Bound::Most(40.0)), String::new());
    let direct = System {
        name: "nothing between",
        address: upstream.address.clone(),
        headers: String::new(),
        process: None,
        streams: 0,
        ledger: None,
    };
    let mut systems = vec![direct, service.system(process, HELD).await?];
    systems.extend(rivals::start_all(folder.path(), &upstream.address, HELD).await?);
    for system in &mut systems {
        system.answers().await?;
    }
    let plain = plain(report, &systems).await?;
    let chunks = chunks(report, &systems).await?;
    metered(report, plain, chunks);
    alone(report, &systems).await?;
    memory(report, &mut systems, &service).await?;
    day(report, &mut systems, &service).await
}

/// Raises the limit of open files as far as the streams need.
fn open_files() -> Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let room = maximum.unwrap_or(u64::MAX);
    ensure!(
        room >= FILES,
        "a process may open {room} files here, and {HELD} streams need {FILES}; type: ulimit -n {FILES}"
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(room.min(65_536)), maximum })?;
    Ok(())
}

/// A figure of each system, by its name.
struct Figures(Vec<(&'static str, f64)>);

impl Figures {
    fn of(&self, name: &str) -> Result<f64> {
        let known = self.0.iter().find(|(known, _)| *known == name);
        known.map(|(_, figure)| *figure).with_context(|| format!("no figure of {name}"))
    }

    /// The figures of the others, in words.
    fn others(&self) -> String {
        let others = self.0.iter().filter(|(name, _)| *name != OURS);
        let words: Vec<String> = others.map(|(name, figure)| format!("{name} {}", short(*figure))).collect();
        words.join(", ")
    }
}

fn short(figure: f64) -> String {
    if figure.abs() >= 10.0 { format!("{figure:.0}") } else { format!("{figure:.1}") }
}

/// Requests sent to Berth, and how many of them its usage shows.
struct Metered {
    sent: u64,
    shown: u64,
}

impl Metered {
    fn of(rounds: &[Round]) -> Self {
        let sent = rounds.iter().map(|round| u64::from(round.outcome.answers)).sum();
        Self { sent, shown: rounds.iter().filter_map(|round| round.metered).sum() }
    }
}

/// CPU microseconds for each answer.
fn cost(rounds: &[Round]) -> f64 {
    let answers: u32 = rounds.iter().map(|round| round.outcome.answers).sum();
    rounds.iter().map(|round| round.cpu).sum::<f64>() / f64::from(answers) * 1e6
}

/// Plain requests over some connections: the cost of each, and the rate.
async fn plain(report: &mut Report, systems: &[System]) -> Result<Metered> {
    let (requests, seconds) = PLAIN;
    let mut all: Vec<(&System, Vec<Round>)> = systems.iter().map(|system| (system, Vec::new())).collect();
    for (system, _) in &all {
        system.round_if_possible(&system.work(Shape::Plain, CONNECTIONS, requests / 10, seconds)).await?;
    }
    for _ in 0..ROUNDS {
        for (system, rounds) in &mut all {
            let work = system.work(Shape::Plain, CONNECTIONS, requests, seconds);
            rounds.extend(system.round_if_possible(&work).await?);
        }
    }
    all.retain(|(_, rounds)| rounds.len() == ROUNDS);
    let costs = all.iter().filter(|(system, _)| system.process.is_some());
    let costs = Figures(costs.map(|(system, rounds)| (system.name, cost(rounds))).collect());
    let ours = costs.of(OURS)?;
    let detail = format!("with a key, limits and metering; {}", costs.others());
    report.add("gateway: a plain request", ours, "µs of CPU", Some(Bound::Most(35.0)), detail);
    rates(report, &all);
    let ours = all.iter().find(|(system, _)| system.is_ours());
    Ok(Metered::of(ours.map(|(_, rounds)| rounds.as_slice()).unwrap_or_default()))
}

/// Requests a second, round by round beside haproxy's.
fn rates(report: &mut Report, all: &[(&System, Vec<Round>)]) {
    let rates = |name: &str| -> Option<Vec<f64>> {
        let (_, rounds) = all.iter().find(|(system, _)| system.name == name)?;
        Some(rounds.iter().map(|round| round.outcome.rate()).collect())
    };
    let (Some(ours), Some(haproxy)) = (rates(OURS), rates("haproxy")) else { return };
    let share = median(ours.iter().zip(&haproxy).map(|(ours, haproxy)| ours / haproxy).collect());
    let others = all.iter().filter_map(|(system, _)| Some((system.name, median(rates(system.name)?))));
    let detail = format!("{:.0} a second; {}", median(ours), Figures(others.collect()).others());
    let what = "gateway: requests a second beside haproxy's, 16 connections";
    report.add(what, share, "times", Some(Bound::Least(0.6)), detail);
}

/// Concurrent streams: the cost of each piece, with everything else of a stream included.
async fn chunks(report: &mut Report, systems: &[System]) -> Result<Metered> {
    let (connections, seconds) = STREAMS;
    let (mut costs, mut metered) = (Vec::new(), None);
    for system in systems.iter().filter(|system| system.process.is_some()) {
        let work = system.work(Shape::Stream, connections, u32::MAX, seconds);
        let Some(round) = system.round_if_possible(&work).await? else { continue };
        let rounds = [round];
        costs.push((system.name, cost(&rounds) / f64::from(CHUNKS)));
        if system.is_ours() {
            metered = Some(Metered::of(&rounds));
        }
    }
    let costs = Figures(costs);
    let detail = format!("{connections} streams beside each other, a chunk each 5 ms; {}", costs.others());
    report.add("gateway: a streamed chunk", costs.of(OURS)?, "µs of CPU", Some(Bound::Most(30.0)), detail);
    metered.context("no streams of Berth")
}

/// Whether usage shows every request above.
fn metered(report: &mut Report, plain: Metered, chunks: Metered) {
    let (sent, shown) = (plain.sent + chunks.sent, plain.shown + chunks.shown);
    #[expect(clippy::cast_precision_loss, reason = "thousands")]
    let share = shown as f64 / sent as f64;
    let what = "gateway: requests in the usage beside those sent";
    report.add(what, share, "times", Some(Bound::Least(1.0)), format!("{shown} of {sent}"));
}

/// One connection: what a system adds to the median time, round by round beside no system.
async fn alone(report: &mut Report, systems: &[System]) -> Result<()> {
    let (requests, seconds, number) = ALONE;
    let mut all: Vec<(&System, Vec<f64>)> = systems.iter().map(|system| (system, Vec::new())).collect();
    for _ in 0..number {
        for (system, times) in &mut all {
            let round = system.round_if_possible(&system.work(Shape::Plain, 1, requests, seconds)).await?;
            times.extend(round.map(|round| round.outcome.median));
        }
    }
    all.retain(|(_, times)| times.len() == number);
    let direct = all.iter().find(|(system, _)| system.process.is_none());
    let direct = direct.map(|(_, times)| times.clone()).context("nothing between did not answer")?;
    let added = |times: &[f64]| median(times.iter().zip(&direct).map(|(time, direct)| time - direct).collect());
    let systems = all.iter().filter(|(system, _)| system.process.is_some());
    let figures = Figures(systems.map(|(system, times)| (system.name, added(times))).collect());
    let detail = format!("to {:.0} µs with nothing between; {}", median(direct), figures.others());
    let what = "gateway: added at the median, one connection";
    report.add(what, figures.of(OURS)?, "µs", Some(Bound::Most(60.0)), detail);
    Ok(())
}

/// Open streams: the memory of each.
async fn memory(report: &mut Report, systems: &mut [System], service: &Berth) -> Result<()> {
    let mut figures = Vec::new();
    for system in systems.iter_mut().filter(|system| system.process.is_some()) {
        if system.is_ours() {
            anew(system, service).await?;
        }
        match held(system).await {
            Ok(figure) => figures.push((system.name, figure)),
            Err(error) if system.is_ours() => return Err(error),
            Err(error) => println!("{} is left out of a figure: {error:#}", system.name),
        }
    }
    let figures = Figures(figures);
    let detail = format!("{HELD} open, fewer of those that are slow; {}", figures.others());
    report.add("gateway: memory of an open stream", figures.of(OURS)?, "KB", Some(Bound::Most(25.0)), detail);
    Ok(())
}

/// A day of streams.
async fn day(report: &mut Report, systems: &mut [System], service: &Berth) -> Result<()> {
    let ours = systems.iter_mut().find(|system| system.is_ours()).context("Berth is measured")?;
    anew(ours, service).await?;
    day::run(report, ours).await
}

/// Starts Berth anew: an old process would first use memory that it had freed.
async fn anew(system: &mut System, service: &Berth) -> Result<()> {
    // Only one process may have its folder.
    drop(system.process.take());
    system.process = Some(service.launch().await?);
    system.answers().await
}

/// Memory of each of a system's open streams, in KB (10^3 bytes).
async fn held(system: &System) -> Result<f64> {
    let process = system.process.as_ref().context("a process")?;
    let before = process.memory()?;
    let streams = system.work(Shape::Hold, system.streams, system.streams, 0).hold().await?;
    tokio::time::sleep(HELD_FOR).await;
    let with = process.memory()?;
    drop(streams);
    // The next measurement must not pay for what closes now.
    tokio::time::sleep(HELD_FOR / 3).await;
    Ok((with - before) * 1e3 / f64::from(system.streams))
}
