//! What machines use, sampled and kept in memory for an hour.
//!
//! Each machine has a ring of samples. A series is aligned to its resolution and has `null` where the
//! machine did not run; counters that began anew after a start count from zero.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use berth_domain::Timestamp;
use berth_domain::ids::VmId;
use berth_domain::series::Steps;
use berth_host::vm::Usage;

/// Seconds between two samples.
pub const INTERVAL: i64 = 10;
/// Seconds for which samples are kept.
pub const KEPT: i64 = 3600;

/// What a machine had used at a time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// What.
    pub usage: Usage,
}

/// The samples of all machines.
#[derive(Default)]
pub struct Metrics {
    rings: Mutex<HashMap<VmId, VecDeque<Sample>>>,
}

/// One step of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Beginning of the step.
    pub at: Timestamp,
    /// Per cent of one CPU, if it ran.
    pub cpu_percent: Option<f64>,
    /// Resident memory at the end of the step, in bytes, if it ran.
    pub memory_bytes: Option<u64>,
}

impl Metrics {
    /// Keeps a sample, and lets go of the machine's oldest ones.
    pub fn add(&self, vm: VmId, sample: Sample) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = rings.entry(vm).or_default();
        ring.push_back(sample);
        let oldest = sample.at.plus_seconds(-KEPT - INTERVAL);
        while ring.front().is_some_and(|s| s.at < oldest) {
            ring.pop_front();
        }
    }

    /// Forgets machines without a sample since then.
    pub fn forget(&self, before: Timestamp) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.retain(|_, ring| ring.back().is_some_and(|s| s.at >= before));
    }

    /// The series of a machine, one point for each step up to `now`.
    pub fn series(&self, vm: VmId, steps: Steps, now: Timestamp) -> Vec<Point> {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = VecDeque::new();
        let ring = rings.get(&vm).unwrap_or(&empty);
        let at = |start: i64| point(ring, Timestamp(start * Timestamp::SECOND), steps.resolution);
        steps.starts(now).map(at).collect()
    }
}

fn point(ring: &VecDeque<Sample>, at: Timestamp, resolution: i64) -> Point {
    let until = at.plus_seconds(resolution);
    let begin = ring.partition_point(|s| s.at < at);
    let end = ring.partition_point(|s| s.at < until);
    // The counter just before the step, so that a step with one sample has a rate, too.
    let from = begin.saturating_sub(1);
    let inside: Vec<_> = ring.range(from..end).collect();
    let rate = inside.first().zip(inside.last()).and_then(|(first, last)| {
        let seconds = Duration::from_micros((last.at.0 - first.at.0).unsigned_abs()).as_secs_f64();
        let used = last.usage.cpu_seconds - first.usage.cpu_seconds;
        (seconds > 0.0).then(|| if used < 0.0 { last.usage.cpu_seconds } else { used } / seconds * 100.0)
    });
    let ran = end > begin;
    Point {
        at,
        cpu_percent: rate.filter(|_| ran),
        memory_bytes: inside.last().filter(|_| ran).map(|s| s.usage.memory_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_aligned_and_null_where_it_did_not_run() {
        let metrics = Metrics::default();
        let vm = VmId(uuid::Uuid::now_v7());
        for (second, cpu) in [(100, 1.0), (110, 6.0), (120, 16.0), (150, 1.0), (160, 3.0)] {
            let usage = Usage { cpu_seconds: cpu, memory_bytes: 7 };
            metrics.add(vm, Sample { at: Timestamp(second * Timestamp::SECOND), usage });
        }
        let points = metrics.series(vm, Steps { window: 60, resolution: 10 }, Timestamp(173 * Timestamp::SECOND));
        let starts: Vec<_> = points.iter().map(|p| p.at.seconds()).collect();
        assert_eq!(starts, [110, 120, 130, 140, 150, 160]);
        let cpu: Vec<_> = points.iter().map(|p| p.cpu_percent.map(f64::round)).collect();
        assert_eq!(cpu, [Some(50.0), Some(100.0), None, None, Some(3.0), Some(20.0)]);
        assert_eq!(points[2].memory_bytes, None);
    }
}
