//! What sandboxes use: sampled every 5 s, added to rows of three sizes, read as series.
//!
//! Counters are turned into what was used since the last sample of the same machine. A step has a value if the
//! sandbox ran in it; where a step is smaller than the rows that are left of its time, it has the row's.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use berth_domain::ids::SandboxId;
use berth_domain::series::{Bounds, Steps};
use berth_domain::{Result, Timestamp};
use berth_host::sandbox::Sample;
use futures::{StreamExt, future};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::store::metrics::{self, LEVELS, Used};
use super::store::sandbox::Running;
use super::{Sandboxes, store};
use crate::db::Db;
use crate::services::fleet::each_host;

/// Seconds between two samples.
pub const INTERVAL: i64 = 5;
/// What may be asked for.
pub const BOUNDS: Bounds =
    Bounds { unit: 1, finest: INTERVAL, longest: 30 * 86_400, default: Steps { window: 3600, resolution: 10 } };
/// How long a machine may take to tell what it uses.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a round may take: who has not told by then tells in the next one.
const ROUND: Duration = Duration::from_secs(4);
/// Machines of a host that are asked at the same time.
const AT_ONCE: usize = 16;
/// Rounds of samples that wait to be written; more are not kept.
const ROUNDS: usize = 16;
/// Rounds between two looks at what is old.
const FORGET_EVERY: u64 = 60;

/// One step of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Beginning of the step.
    pub at: Timestamp,
    /// Per cent of one CPU.
    pub cpu_percent: Option<f64>,
    /// What was used, if it ran.
    pub used: Option<Used>,
}

/// The last sample of a machine.
struct Last {
    generation: i64,
    vcpu: i64,
    at: Timestamp,
    sample: Sample,
}

type Round = Vec<(SandboxId, Used)>;

/// Samples every sandbox that is ready, until told to stop.
pub async fn sample(sandboxes: Sandboxes, rounds: mpsc::Sender<Round>, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(Duration::from_secs(INTERVAL.unsigned_abs()));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let (mut last, mut turn) = (HashMap::<SandboxId, Last>::new(), 0_usize);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let Ok(mut ready) = store::sandbox::ready(sandboxes.db()).await else { continue };
        // What it used before a sample that did not come counts once.
        let there: HashSet<_> = ready.iter().map(|running| running.id).collect();
        last.retain(|id, _| there.contains(id));
        ready.retain(|running| !running.host_is_lost);
        turn = turn.wrapping_add(1);
        let ready = ready.into_iter().map(|running| (running.host, running));
        let asked = each_host(ready, (AT_ONCE, turn), |running| ask(&sandboxes, running));
        let asked = asked.take_until(tokio::time::sleep(ROUND)).filter_map(future::ready);
        let seen: HashMap<SandboxId, Last> = asked.collect().await;
        let round: Round = seen.iter().map(|(id, now)| (*id, since(last.get(id), now))).collect();
        last.extend(seen);
        if !round.is_empty() && rounds.try_send(round).is_err() {
            tracing::warn!("samples of sandboxes cannot be written as fast as they come; a round is lost");
        }
    }
}

/// One sample, if the machine gives it in time: a guest that hangs keeps none of the others waiting.
async fn ask(sandboxes: &Sandboxes, running: Running) -> Option<(SandboxId, Last)> {
    let Running { id, machine, host, generation, vcpu, .. } = running;
    let engine = sandboxes.engine_of(host).ok()?;
    let sample = tokio::time::timeout(PATIENCE, engine.sample(machine)).await.ok().flatten()?;
    Some((id, Last { generation, vcpu, at: sandboxes.clock().now(), sample }))
}

/// Writes rounds of samples, until there are no more.
pub async fn write(sandboxes: Sandboxes, mut rounds: mpsc::Receiver<Round>, stop: CancellationToken) {
    let mut written = 0_u64;
    while let Some(round) = rounds.recv().await {
        written += 1;
        let forget = written.is_multiple_of(FORGET_EVERY).then(|| sandboxes.clock().now());
        if let Err(error) = write_round(sandboxes.db(), &round, forget, &stop).await {
            tracing::warn!(%error, "samples of sandboxes cannot be written; a round is lost");
        }
    }
}

/// A way from the sampler to the writer.
pub fn channel() -> (mpsc::Sender<Round>, mpsc::Receiver<Round>) {
    mpsc::channel(ROUNDS)
}

/// Writes a round; where that is not possible, every sample by itself, so that one spoils none of the others.
async fn write_round(db: &Db, round: &Round, forget: Option<Timestamp>, stop: &CancellationToken) -> Result<()> {
    if metrics::add(db, round).await.is_err() {
        for (id, used) in round {
            if let Err(error) = metrics::add(db, &[(*id, *used)]).await {
                tracing::warn!(sandbox = %id, %error, "a sample cannot be written");
            }
        }
    }
    if let Some(now) = forget {
        metrics::forget(db, now, stop).await?;
    }
    Ok(())
}

/// What a machine used since its last sample; of a new machine since its start.
fn since(last: Option<&Last>, now: &Last) -> Used {
    let before = last.filter(|last| last.generation == now.generation);
    let counted = |read: fn(&Sample) -> i64| {
        let value = read(&now.sample);
        // A counter that began anew counts from zero.
        before.map(|last| value - read(&last.sample)).filter(|used| *used >= 0).unwrap_or(value)
    };
    let whole = INTERVAL * Timestamp::SECOND;
    let covered = before.map_or(whole, |last| (now.at.0 - last.at.0).clamp(0, 3 * whole));
    Used {
        at: now.at.seconds() / INTERVAL * INTERVAL,
        step: INTERVAL,
        covered,
        // The guest says it, and cannot have used more than it has.
        cpu: counted(|s| micros(s.cpu_seconds)).min(now.vcpu.saturating_mul(covered)),
        memory_bytes: now.sample.memory_bytes,
        disk_bytes: now.sample.disk_bytes,
        rx_bytes: counted(|s| s.rx_bytes),
        tx_bytes: counted(|s| s.tx_bytes),
        processes: now.sample.processes,
    }
}

fn micros(seconds: f64) -> i64 {
    i64::try_from(Duration::try_from_secs_f64(seconds).unwrap_or_default().as_micros()).unwrap_or(i64::MAX)
}

/// The series of a sandbox, one point for each step up to `now`.
pub async fn series(sandboxes: &Sandboxes, id: SandboxId, steps: Steps, now: Timestamp) -> Result<Vec<Point>> {
    let starts: Vec<i64> = steps.starts(now).collect();
    let Some((first, last)) = starts.first().zip(starts.last()) else { return Ok(Vec::new()) };
    let oldest = now.seconds() - first;
    let level = LEVELS.into_iter().find(|(step, kept)| oldest <= *kept && *step <= steps.resolution);
    let step = level.or_else(|| LEVELS.into_iter().find(|(_, kept)| oldest <= *kept)).map_or(600, |(step, _)| step);
    let rows = metrics::between(sandboxes.db(), id, step, *first, last + steps.resolution).await?;
    Ok(starts.into_iter().map(|start| point(&rows, start, steps.resolution)).collect())
}

fn point(rows: &[Used], start: i64, resolution: i64) -> Point {
    let begin = rows.partition_point(|row| row.at + row.step <= start);
    let end = rows.partition_point(|row| row.at < start + resolution);
    let inside = &rows[begin..end.max(begin)];
    let used = inside.iter().copied().reduce(|sum, row| Used {
        at: sum.at,
        step: sum.step + row.step,
        covered: sum.covered + row.covered,
        cpu: sum.cpu + row.cpu,
        rx_bytes: sum.rx_bytes + row.rx_bytes,
        tx_bytes: sum.tx_bytes + row.tx_bytes,
        ..row
    });
    #[expect(clippy::cast_precision_loss, reason = "per cent need no more")]
    let percent = |used: Used| (used.covered > 0).then(|| used.cpu as f64 / used.covered as f64 * 100.0);
    Point { at: Timestamp(start * Timestamp::SECOND), cpu_percent: used.and_then(percent), used }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::sql;

    fn row(at: i64, cpu: i64) -> Used {
        Used { at, step: 5, covered: 5_000_000, cpu, memory_bytes: at, rx_bytes: 1, ..Used::default() }
    }

    #[test]
    fn steps_sum_what_is_counted_and_take_the_last_of_what_is_measured() {
        let rows = [row(100, 1_000_000), row(105, 4_000_000), row(120, 5_000_000)];
        let at = |start| point(&rows, start, 10);
        assert_eq!(at(90).used, None);
        let first = at(100);
        assert_eq!(first.cpu_percent, Some(50.0));
        assert_eq!(first.used.map(|u| (u.memory_bytes, u.rx_bytes)), Some((105, 2)));
        assert_eq!(at(110).used, None);
        assert_eq!(at(120).cpu_percent, Some(100.0));
        // A row that is larger than the step speaks for each step in it.
        let coarse = [Used { step: 60, ..row(60, 0) }];
        assert!(point(&coarse, 90, 10).used.is_some() && point(&coarse, 120, 10).used.is_none());
    }

    #[test]
    fn counters_of_another_machine_count_from_zero() {
        let last = |generation, second: i64, cpu_seconds| Last {
            generation,
            vcpu: 1,
            at: Timestamp(second * Timestamp::SECOND),
            sample: Sample { cpu_seconds, rx_bytes: 10, ..Sample::default() },
        };
        let used = since(Some(&last(1, 100, 2.0)), &last(1, 106, 5.0));
        assert_eq!((used.at, used.covered, used.cpu, used.rx_bytes), (105, 6_000_000, 3_000_000, 0));
        let other = since(Some(&last(1, 100, 9.0)), &last(2, 106, 5.0));
        assert_eq!((other.covered, other.cpu, other.rx_bytes), (5_000_000, 5_000_000, 10));
    }

    #[tokio::test]
    async fn a_sample_that_cannot_be_written_spoils_none_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&format!("sqlite:{}", dir.path().join("db").display())).await.unwrap();
        let [bad, good] = [SandboxId(uuid::Uuid::now_v7()), SandboxId(uuid::Uuid::now_v7())];
        let mut tx = db.begin().await.unwrap();
        let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON sandbox_metrics WHEN NEW.sandbox_id = '";
        sql(format!("{refuse}{bad}' BEGIN SELECT RAISE(ABORT, 'no'); END")).execute(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        write_round(&db, &vec![(bad, row(100, 1)), (good, row(100, 1))], None, &CancellationToken::new())
            .await
            .unwrap();
        assert_eq!(metrics::between(&db, good, 5, 0, 1000).await.unwrap().len(), 1);
        assert!(metrics::between(&db, bad, 5, 0, 1000).await.unwrap().is_empty());
    }

    #[test]
    fn nobody_used_more_processors_than_it_has() {
        let says = |second: i64, cpu_seconds| Last {
            generation: 1,
            vcpu: 2,
            at: Timestamp(second * Timestamp::SECOND),
            sample: Sample { cpu_seconds, ..Sample::default() },
        };
        for lie in [1e13, f64::MAX, f64::INFINITY, f64::NAN, -1.0] {
            let up = since(Some(&says(100, 0.0)), &says(105, lie));
            let down = since(Some(&says(105, lie)), &says(110, 0.0));
            for used in [up, down, since(None, &says(5, lie))] {
                assert!((0..=10_000_000).contains(&used.cpu), "{lie} {used:?}");
            }
        }
        assert_eq!(since(Some(&says(100, 1.0)), &says(105, 11.0)).cpu, 10_000_000);
        assert_eq!(since(Some(&says(100, 1.0)), &says(105, 10.5)).cpu, 9_500_000);
    }
}
