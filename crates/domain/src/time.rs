//! Time as the platform tells it: UTC, microseconds.

use std::fmt;

use time::format_description::well_known::Rfc3339;
use time::{Date, Duration, OffsetDateTime};

/// Microseconds since 1970 in UTC. On the wire RFC 3339 with six digits and `Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Microseconds in a second.
    pub const SECOND: i64 = 1_000_000;

    /// This many seconds later; saturates.
    #[must_use]
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(Self::SECOND)))
    }

    /// This many milliseconds later; saturates.
    #[must_use]
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1000)))
    }

    /// Parses RFC 3339, with any offset.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || "must be a time in RFC 3339, like 2030-01-31T12:00:00Z".to_owned();
        let at = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| bad())?;
        i64::try_from(at.unix_timestamp_nanos() / 1000).map(Self).map_err(|_| bad())
    }

    /// Its day in UTC, as RFC 3339 writes it.
    pub fn date(self) -> String {
        self.to_string().split('T').next().unwrap_or_default().to_owned()
    }

    /// Whole seconds since 1970.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(Self::SECOND)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = OffsetDateTime::from_unix_timestamp(self.seconds()).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            self.0.rem_euclid(Self::SECOND)
        )
    }
}

/// A calendar month in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Month {
    /// Its first moment.
    pub begin: Timestamp,
    /// The first moment after it.
    pub end: Timestamp,
}

impl Month {
    /// The month of a time.
    pub fn of(at: Timestamp) -> Self {
        let today = OffsetDateTime::from_unix_timestamp(at.seconds()).unwrap_or(OffsetDateTime::UNIX_EPOCH).date();
        let first = |date: Date| date.replace_day(1).unwrap_or(date);
        let begin = first(today);
        let end = first(begin.saturating_add(Duration::days(31)));
        let at = |date: Date| Timestamp(date.midnight().assume_utc().unix_timestamp() * Timestamp::SECOND);
        Self { begin: at(begin), end: at(end) }
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for at in [0, 1_790_000_000_000_042, -1] {
            assert_eq!(Timestamp::parse(&Timestamp(at).to_string()), Ok(Timestamp(at)));
        }
        assert_eq!(Timestamp::parse("1970-01-01T01:00:00+01:00"), Ok(Timestamp(0)));
        for bad in ["", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z", "now"] {
            assert!(Timestamp::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn months_are_calendar_months() {
        let at = |text: &str| Timestamp::parse(text).unwrap();
        let month = |text: &str| Month::of(at(text));
        let december = Month { begin: at("2026-12-01T00:00:00Z"), end: at("2027-01-01T00:00:00Z") };
        assert_eq!(month("2026-12-01T00:00:00Z"), december);
        assert_eq!(month("2026-12-31T23:59:59.999999Z"), december);
        assert_eq!(month("2027-01-01T00:00:00Z").begin, december.end);
        assert_eq!(month("2028-02-29T12:00:00Z").end, at("2028-03-01T00:00:00Z"));
    }

    #[test]
    fn six_digits_and_z() {
        assert_eq!(Timestamp(-1).date(), "1969-12-31");
        assert_eq!(Timestamp(0).to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!(Timestamp(1_790_000_000_000_042).to_string(), "2026-09-21T14:13:20.000042Z");
        assert_eq!(Timestamp(-1).to_string(), "1969-12-31T23:59:59.999999Z");
    }
}
