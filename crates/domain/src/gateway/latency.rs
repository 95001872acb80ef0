//! How slow an upstream is at the moment.
//!
//! A mean shows a slow-down when it is over. A peak EWMA (Finagle's `p2cPeakEwma`) takes over a slower answer at once
//! and faster ones gradually. It also falls while nothing is observed: an upstream that gets no more requests because
//! it was slow would else count as slow for ever.

use std::time::Duration;

/// Time in which an observation fades to 1/e of its weight, in seconds: Finagle's default.
const FALL: f64 = 10.0;

/// A peak EWMA of answer times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latency {
    seconds: f64,
    /// The time of that observation, in milliseconds.
    at: u64,
}

impl Latency {
    /// Notes how long an answer took. Ignores what is not a positive number.
    pub fn observe(&mut self, seconds: f64, now: u64) {
        if !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        // The part of the peak above this answer fades; an answer above the peak is the new peak.
        let above = (self.seconds - seconds).max(0.0) * self.rest(now);
        *self = Self { seconds: seconds + above, at: now.max(self.at) };
    }

    /// Seconds that an answer takes at this time; 0 is unknown.
    pub fn seconds(&self, now: u64) -> f64 {
        self.seconds * self.rest(now)
    }

    /// The remaining weight of the last observation.
    fn rest(&self, now: u64) -> f64 {
        let passed = Duration::from_millis(now.saturating_sub(self.at)).as_secs_f64();
        (-passed / FALL).exp()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn it_rises_at_once_and_falls_slowly() {
        let mut latency = Latency::default();
        assert!(near(latency.seconds(5), 0.0));
        latency.observe(1.0, 0);
        latency.observe(4.0, 0);
        assert!(near(latency.seconds(0), 4.0));
        latency.observe(1.0, 0);
        assert!(near(latency.seconds(0), 4.0), "no time has passed");
        let e = std::f64::consts::E;
        assert!(near(latency.seconds(10_000), 4.0 / e));
        latency.observe(1.0, 10_000);
        assert!(near(latency.seconds(10_000), 1.0 + 3.0 / e));
        latency.observe(9.0, 20_000);
        assert!(near(latency.seconds(20_000), 9.0));
    }

    #[test]
    fn nonsense_is_ignored() {
        let mut latency = Latency::default();
        latency.observe(2.0, 1000);
        for seconds in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            latency.observe(seconds, 2000);
        }
        assert!(near(latency.seconds(1000), 2.0));
        assert!(near(latency.seconds(0), 2.0), "a clock that goes back changes nothing");
    }

    proptest! {
        #[test]
        fn it_stays_between_the_last_and_the_highest(
            steps in prop::collection::vec((0.001..100.0_f64, 0_u64..20_000), 1..50),
        ) {
            let (mut latency, mut now, mut highest) = (Latency::default(), 0, 0.0_f64);
            for (seconds, pause) in steps {
                now += pause;
                highest = highest.max(seconds);
                latency.observe(seconds, now);
                let read = latency.seconds(now);
                prop_assert!(seconds - 1e-9 <= read && read <= highest + 1e-9);
                prop_assert!(latency.seconds(now + 1000) < read);
            }
        }
    }
}
