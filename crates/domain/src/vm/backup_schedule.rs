//! Schedules of backups: when the next ones are made, and which of those that were made go.
//!
//! A schedule has one time that comes next. When that has come, the backups are made and the time becomes the first one that
//! lies ahead: however many were missed while the service was off, they are made up for once. Retention counts what is good:
//! a backup that failed pushes none out ([`surplus`]).

use chrono::{DateTime, Utc};
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use serde_json::Value;

use super::backup::{BackupStatus, Target};
use crate::Timestamp;
use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, boolean, integer, text};
use crate::ids::{BackupId, DiskId};
use crate::names::Name;
use crate::vm::request::name;
use crate::words;

/// Fewest and most backups of a disk that a schedule keeps.
pub const KEPT: (i64, i64) = (1, 1000);
/// Shortest and longest time between two backups, in seconds.
pub const APART: (i64, i64) = (15 * 60, 366 * 86_400);
/// Most schedules of a project.
pub const MOST: usize = 100;
/// Most characters of a time, in either form.
const LONGEST: usize = 100;
/// How many times in a row are looked at, to find those that come too soon one after the other: more than a day has.
const LOOKED_AT: usize = 150;

words! {
    /// What the worker does next for a schedule.
    ScheduleStep {
        /// Have backups made, and set the next time.
        Run = "run",
        /// Have those backups go that are more than it keeps.
        Prune = "prune",
    }
}

/// When backups are made.
#[derive(Clone, Debug)]
pub enum Every {
    /// Every so many seconds.
    Seconds(i64),
    /// At times in the form of cron, five fields, in UTC.
    Cron(Box<Cron>),
}

impl Every {
    /// Reads a span like `24h`, or times in the form of cron like `30 2 * * *`.
    pub fn parse(text: &str) -> Parsed<Self> {
        if text.chars().count() > LONGEST {
            return Err(format!("must have at most {LONGEST} characters"));
        }
        match seconds(text) {
            Some(span) if (APART.0..=APART.1).contains(&span) => Ok(Self::Seconds(span)),
            Some(_) => Err("must be at least 15m and at most 366d".into()),
            None => cron(text).map(|cron| Self::Cron(Box::new(cron))),
        }
    }

    /// The first time after `now`. Spans are counted from `anchor`.
    pub fn next(&self, anchor: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Seconds(seconds) => {
                let span = seconds.checked_mul(Timestamp::SECOND)?;
                let passed = now.0.saturating_sub(anchor.0).div_euclid(span).max(0);
                anchor.0.checked_add(span.checked_mul(passed + 1)?).map(Timestamp)
            }
            Self::Cron(cron) => {
                let from: DateTime<Utc> = DateTime::from_timestamp_micros(now.0)?;
                let next = cron.find_next_occurrence(&from, false).ok()?;
                Some(Timestamp(next.timestamp_micros()))
            }
        }
    }
}

/// Seconds of a text like `90m`, `24h` or `7d`; none where it is no such text.
fn seconds(text: &str) -> Option<i64> {
    let unit = match text.chars().last()? {
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // What is too long for a number is too long, too.
    is_number.then(|| digits.parse::<i64>().unwrap_or(i64::MAX).saturating_mul(unit))
}

fn cron(text: &str) -> Parsed<Cron> {
    let rule =
        || "must be a time like 24h or 7d, or five fields as cron has them, in UTC, like \"30 2 * * *\"".to_owned();
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    let cron = parser.parse(text).map_err(|_| rule())?;
    let begin = DateTime::from_timestamp(0, 0).unwrap_or_default();
    let times: Vec<_> = cron.iter_after(begin).take(LOOKED_AT).map(|at: DateTime<Utc>| at.timestamp()).collect();
    if times.is_empty() {
        return Err("names a time that never comes".into());
    }
    if times.windows(2).any(|pair| pair[1] - pair[0] < APART.0) {
        return Err("must leave at least 15 minutes between two backups".into());
    }
    Ok(cron)
}

/// The next step for a schedule; none where it is at rest until its time.
pub const fn next(is_due: bool, has_surplus: bool) -> Option<ScheduleStep> {
    if is_due {
        return Some(ScheduleStep::Run);
    }
    if has_surplus { Some(ScheduleStep::Prune) } else { None }
}

/// A backup that a schedule made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Which.
    pub id: BackupId,
    /// Of what.
    pub disk: DiskId,
    /// Where it stands.
    pub status: BackupStatus,
    /// When it was wanted.
    pub at: Timestamp,
    /// Whether a disk is being made of it, so that it cannot go yet.
    pub is_needed: bool,
}

/// The backups that are more than a schedule keeps: of each disk the oldest good ones, and the oldest of those that failed,
/// each counted for themselves.
pub fn surplus(made: &[Made], keep: i64) -> Vec<BackupId> {
    let keep = usize::try_from(keep).unwrap_or_default();
    let mut newest: Vec<&Made> =
        made.iter().filter(|made| matches!(made.status, BackupStatus::Ready | BackupStatus::Failed)).collect();
    newest.sort_by_key(|made| std::cmp::Reverse((made.at, made.id)));
    let like = |one: &Made, other: &Made| one.disk == other.disk && one.status == other.status;
    let newer = |index: usize| newest[..index].iter().filter(|other| like(other, newest[index])).count();
    let goes = |index: &usize| newer(*index) >= keep && !newest[*index].is_needed;
    (0..newest.len()).filter(goes).map(|index| newest[index].id).collect()
}

/// Whether a schedule makes a backup of a disk now: not while its last one is on its way.
pub fn is_free(made: &[Made], disk: DiskId) -> bool {
    !made.iter().any(|made| made.disk == disk && matches!(made.status, BackupStatus::Pending | BackupStatus::Running))
}

/// A request for a schedule.
#[derive(Clone, Debug)]
pub struct CreateSchedule {
    /// What it is called, and its backups.
    pub name: Name,
    /// Of what it makes backups.
    pub of: Target,
    /// When, as it was written.
    pub every: String,
    /// When.
    pub when: Every,
    /// How many of each disk it keeps.
    pub keep: i64,
    /// Whether it makes any.
    pub enabled: bool,
}

impl TryFrom<&Value> for CreateSchedule {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let name = f.required("name", name);
        let of = Target::read(&mut f);
        let every = f.required("every", every);
        let keep = f.required("keep", integer(KEPT.0, KEPT.1));
        let enabled = f.optional("enabled", boolean).unwrap_or(true);
        let whole = name.zip(of).zip(every.zip(keep));
        f.finish(whole.map(|((name, of), ((every, when), keep))| Self { name, of, every, when, keep, enabled }))
    }
}

/// A change of a schedule; absent fields stay as they are.
#[derive(Clone, Debug, Default)]
pub struct UpdateSchedule {
    /// New name.
    pub name: Option<Name>,
    /// New times, and as they were written.
    pub every: Option<(String, Every)>,
    /// How many of each disk it keeps.
    pub keep: Option<i64>,
    /// Whether it makes any.
    pub enabled: Option<bool>,
}

impl TryFrom<&Value> for UpdateSchedule {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let change = Self {
            name: f.optional("name", name),
            every: f.optional("every", every),
            keep: f.optional("keep", integer(KEPT.0, KEPT.1)),
            enabled: f.optional("enabled", boolean),
        };
        f.finish(Some(change))
    }
}

fn every(value: &Value) -> Parsed<(String, Every)> {
    let text = text(value)?.trim();
    Ok((text.to_owned(), Every::parse(text)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    const ONE: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    #[test]
    fn spans_are_bounded_on_both_sides() {
        for good in ["15m", "24h", "7d", "366d"] {
            assert!(Every::parse(good).is_ok(), "{good}");
        }
        for bad in ["14m", "367d", "0h", "99999999999999999999d", "", "h", "-1h", "1.5h", "24", "1w", "24 h"] {
            assert!(Every::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_of_cron_leave_room_and_come() {
        for good in ["30 2 * * *", "0 */6 * * *", "*/15 * * * *", "0 0 1 * *", "0 4 * * MON-FRI"] {
            assert!(Every::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "*/14 * * * *",
            "* * * * *",
            "0,10 0 * * *",
            "0 0 30 2 *",
            "61 * * * *",
            "0 0 * *",
            "0 0 0 * * *",
            "@daily-ish",
        ] {
            assert!(Every::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_has_so_many_characters_at_most() {
        for (length, good) in [(100, true), (101, false)] {
            let (span, cron) = (format!("{:0>length$}", "24h"), format!("30{:>1$}", "2 * * *", length - 2));
            assert_eq!((span.len(), cron.len()), (length, length));
            for text in [span, cron] {
                let parsed = Every::parse(&text);
                assert_eq!(parsed.is_ok(), good, "{text}");
                assert!(good || parsed.is_err_and(|error| error.contains("100 characters")), "{text}");
            }
        }
    }

    #[test]
    fn the_next_time_lies_ahead() {
        let anchor = at("2026-03-01T10:00:00Z");
        let day = Every::parse("24h").unwrap();
        assert_eq!(day.next(anchor, anchor), Some(at("2026-03-02T10:00:00Z")));
        assert_eq!(day.next(anchor, at("2026-03-02T09:59:59Z")), Some(at("2026-03-02T10:00:00Z")));
        assert_eq!(day.next(anchor, at("2026-03-02T10:00:00Z")), Some(at("2026-03-03T10:00:00Z")));
        assert_eq!(day.next(anchor, at("2026-03-09T11:00:00Z")), Some(at("2026-03-10T10:00:00Z")));
        // A clock that was set back does not have it wait for longer than once.
        assert_eq!(day.next(anchor, at("2026-01-01T10:00:00Z")), Some(at("2026-03-02T10:00:00Z")));
        let night = Every::parse("30 2 * * *").unwrap();
        assert_eq!(night.next(anchor, at("2026-03-01T02:29:59Z")), Some(at("2026-03-01T02:30:00Z")));
        assert_eq!(night.next(anchor, at("2026-03-01T02:30:00Z")), Some(at("2026-03-02T02:30:00Z")));
    }

    fn made(number: u128, disk: u128, status: BackupStatus) -> Made {
        let at = Timestamp(i64::try_from(number).unwrap());
        let (id, disk) = (BackupId(Uuid::from_u128(number)), DiskId(Uuid::from_u128(disk)));
        Made { id, disk, status, at, is_needed: false }
    }

    fn numbers(ids: Vec<BackupId>) -> Vec<u128> {
        let mut numbers: Vec<_> = ids.into_iter().map(|id| id.0.as_u128()).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn a_failed_backup_pushes_no_good_one_out() {
        use BackupStatus::{Deleting, Failed, Pending, Ready, Running};
        let all = [
            made(1, 1, Ready),
            made(2, 1, Ready),
            made(3, 1, Failed),
            made(4, 1, Failed),
            made(5, 1, Failed),
            made(6, 1, Running),
            made(7, 2, Ready),
            made(8, 1, Pending),
            made(9, 1, Deleting),
        ];
        assert_eq!(numbers(surplus(&all, 1)), [1, 3, 4]);
        assert_eq!(numbers(surplus(&all, 2)), [3]);
        assert_eq!(numbers(surplus(&all, 3)), [0; 0]);
        let mut needed = all;
        needed[0].is_needed = true;
        assert_eq!(numbers(surplus(&needed, 1)), [3, 4]);
    }

    #[test]
    fn one_at_a_time_is_made_of_a_disk() {
        let disk = DiskId(Uuid::from_u128(1));
        for &status in BackupStatus::ALL {
            let is_open = matches!(status, BackupStatus::Pending | BackupStatus::Running);
            assert_eq!(is_free(&[made(1, 1, status)], disk), !is_open);
            assert!(is_free(&[made(1, 2, status)], disk));
        }
    }

    #[test]
    fn a_request_names_every_mistake() {
        let body = json!({"name": "nightly", "vm_id": ONE, "every": " 24h ", "keep": 7});
        let request = CreateSchedule::try_from(&body).unwrap();
        assert!(request.enabled && request.every == "24h" && request.keep == 7);
        let body = json!({"name": "A", "every": "soon", "keep": 0, "enabled": "yes", "more": 1});
        let error = CreateSchedule::try_from(&body).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|detail| detail.field.as_str()).collect();
        assert_eq!(fields, ["name", "disk_id", "every", "keep", "enabled", "more"]);
        for (keep, good) in [(0, false), (1, true), (1000, true), (1001, false)] {
            assert_eq!(UpdateSchedule::try_from(&json!({"keep": keep})).is_ok(), good, "{keep}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_read_twice_differently(text in "[0-9*/, mhd-]{0,12}") {
            if let Ok(every) = Every::parse(&text) {
                let now = Timestamp(1_772_000_000 * Timestamp::SECOND);
                let next = every.next(now, now).unwrap();
                prop_assert!(next > now);
                prop_assert!(every.next(now, next).unwrap().0 - next.0 >= APART.0 * Timestamp::SECOND);
            }
        }

        #[test]
        fn as_many_good_ones_stay_as_are_kept(statuses in prop::collection::vec(0..5_usize, 0..30), keep in 1..10_i64) {
            let all: Vec<_> = statuses.iter().zip(1..).map(|(status, n)| made(n, n % 3, BackupStatus::ALL[*status])).collect();
            let gone = surplus(&all, keep);
            for disk in 0..3 {
                let of = |made: &&Made| made.disk == DiskId(Uuid::from_u128(disk)) && made.status == BackupStatus::Ready;
                let good = all.iter().filter(of).count();
                let left = all.iter().filter(of).filter(|made| !gone.contains(&made.id)).count();
                prop_assert_eq!(left, good.min(usize::try_from(keep).unwrap()));
            }
        }
    }
}
