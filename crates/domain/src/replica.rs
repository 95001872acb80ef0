//! Which of several services that share a database is active.
//!
//! The active one counts a number up in the database every few seconds, its beat. The others watch that number, each by a
//! clock of its own: whoever has seen it unchanged for [`FREE`] may take the database. The active one ends after [`HOLDS`]
//! without an answer of the database, counted from when it asked, so it has ended before anybody else begins. No two
//! clocks are ever compared; what they have to have in common is how long a second takes, to a fifth.
//!
//! Ending is one half. Whoever was stopped in the middle of a step goes on with it when it wakes, so whatever it then
//! asks is refused: by the database, which knows the present term, and by every host that has been asked in a later one.

use std::time::Duration;

/// Between two signs of life of the active service.
pub const RENEW: Duration = Duration::from_secs(3);
/// After so long without an answer of the database the active service ends.
pub const HOLDS: Duration = Duration::from_secs(12);
/// After so long without a sign of life another service may take the database.
pub const FREE: Duration = Duration::from_secs(15);
/// By how much a host may be ahead of the database in the count of terms: more is no copy of the database that was
/// restored, but a host that lies.
pub const AHEAD: i64 = 1_000_000;

/// What a host does where it is asked in a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    /// It notes the term, which is later than all that it was asked in, and then answers.
    Later,
    /// It answers.
    Present,
    /// It refuses: it was asked in a later one.
    Over,
}

impl Hearing {
    /// In this term, by a host that was asked in that one at the latest.
    pub const fn of(asked: i64, latest: i64) -> Self {
        match asked {
            asked if asked > latest => Self::Later,
            asked if asked == latest => Self::Present,
            _ => Self::Over,
        }
    }
}

/// A sign of life: whose turn it is, and how often that service has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sign {
    /// How often somebody took the database.
    pub term: i64,
    /// How often that one said that it lives.
    pub beat: i64,
}

/// What a standby has seen of the active service. Times are those of a clock that goes on while the machine sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    last: Option<(Sign, Duration)>,
}

impl Watch {
    /// Notes what the database says now; whether the active service has been silent for long enough.
    pub fn is_silent(&mut self, sign: Sign, now: Duration) -> bool {
        match self.last {
            Some((last, since)) if last == sign => now.saturating_sub(since) >= FREE,
            _ => {
                self.last = Some((sign, now));
                false
            }
        }
    }
}

/// How long a service is active, unless it renews that. Times are those of a clock that goes on while the machine sleeps.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    renewed: Duration,
}

impl Lease {
    /// One that was asked for then, and given.
    pub const fn new(asked: Duration) -> Self {
        Self { renewed: asked }
    }

    /// The database gave it once more, to who asked for it then.
    pub const fn renew(&mut self, asked: Duration) {
        self.renewed = asked;
    }

    /// How long it holds; `None` where it is over.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let left = HOLDS.saturating_sub(now.saturating_sub(self.renewed));
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn sign(term: i64, beat: i64) -> Sign {
        Sign { term, beat }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn whoever_was_seen_to_be_silent_for_long_enough_is_taken_from() {
        let mut watch = Watch::default();
        assert!(!watch.is_silent(sign(1, 1), at(100)), "the first look knows nothing");
        assert!(!watch.is_silent(sign(1, 1), Duration::from_millis(114_999)));
        assert!(watch.is_silent(sign(1, 1), at(100) + FREE));
        assert!(!watch.is_silent(sign(1, 2), at(116)), "it lives");
        assert!(!watch.is_silent(sign(2, 2), at(132)), "another one lives");
        assert!(watch.is_silent(sign(2, 2), at(147)));
    }

    #[test]
    fn a_host_answers_in_its_latest_term_and_in_later_ones() {
        assert_eq!(
            [0, 3, 4, 5].map(|asked| Hearing::of(asked, 4)),
            [Hearing::Over, Hearing::Over, Hearing::Present, Hearing::Later]
        );
    }

    #[test]
    fn a_lease_is_over_where_nothing_renews_it() {
        let mut lease = Lease::new(at(100));
        assert_eq!(lease.left(at(100)), Some(HOLDS));
        assert_eq!(lease.left(Duration::from_millis(111_999)), Some(Duration::from_millis(1)));
        assert_eq!(lease.left(at(100) + HOLDS), None);
        lease.renew(at(111));
        assert_eq!(lease.left(at(112)), Some(at(11)));
        assert_eq!(lease.left(at(300)), None);
    }

    proptest! {
        /// Whatever is late, and however often: the clock of whoever watches is at most a fifth faster.
        #[test]
        fn nobody_begins_before_the_other_has_ended(
            beats in prop::collection::vec((0_u64..8_000, any::<bool>()), 1..40),
            looks in prop::collection::vec(0_u64..4_000, 1..80),
        ) {
            // When each renewal was asked for and when the database had it, in milliseconds; the answers of some are lost.
            let (mut now, mut lease, mut written) = (0, Lease::new(Duration::ZERO), vec![(0, 0)]);
            let mut renewed = 0;
            for (beat, (late, is_heard)) in (1_i64..).zip(beats) {
                let asked = now;
                if lease.left(Duration::from_millis(asked)).is_none() {
                    break;
                }
                written.push((asked + late, beat));
                if is_heard && lease.left(Duration::from_millis(asked + late)).is_some() {
                    lease.renew(Duration::from_millis(asked));
                    renewed = asked;
                }
                now = asked + late + 3_000;
            }
            let ended = renewed + 12_000;
            prop_assert!(lease.left(Duration::from_millis(ended)).is_none());
            let (mut watch, mut time, mut looks) = (Watch::default(), 0, looks.into_iter().cycle());
            loop {
                time += looks.next().unwrap_or(1_000) + 1;
                let (_, beat) = written.iter().rfind(|(at, _)| *at <= time).copied().unwrap_or_default();
                if watch.is_silent(sign(1, beat), Duration::from_millis(time * 6 / 5)) {
                    prop_assert!(time >= ended, "{time} before {ended}");
                    break;
                }
            }
        }
    }
}
