//! Spans and points of time as people type them: `30m`, `7d`, or a time in RFC 3339.

use anyhow::Result;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::failure::Failure;

/// A longer span must be a typing error.
const LONGEST: u64 = 100 * 365 * 86_400;

/// The seconds of a span, for the parser of the command line.
pub fn parse(text: &str) -> Result<u64, String> {
    seconds(text).map_err(|error| error.to_string())
}

/// The seconds of a span: `90`, `90s`, `30m`, `12h` or `7d`.
pub fn seconds(text: &str) -> Result<u64> {
    let wrong = || Failure::usage(format!("'{text}' is no span of time; it looks like 90, 90s, 30m, 12h or 7d"));
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(unit).filter(|seconds| *seconds <= LONGEST).ok_or_else(wrong)
}

/// A time in the future, in RFC 3339: `30d` is thirty days from now.
pub fn ahead(text: &str) -> Result<String> {
    point(text, 1)
}

/// A time in the past, in RFC 3339: `1h` is an hour ago.
pub fn ago(text: &str) -> Result<String> {
    point(text, -1)
}

fn point(text: &str, direction: i64) -> Result<String> {
    if OffsetDateTime::parse(text, &Rfc3339).is_ok() {
        return Ok(text.to_owned());
    }
    let wrong =
        || Failure::usage(format!("'{text}' is no time; it looks like 90s, 30m, 12h, 7d or 2030-01-31T12:00:00Z"));
    let span = i64::try_from(seconds(text).map_err(|_| wrong())?).map_err(|_| wrong())?;
    let at = OffsetDateTime::now_utc() + Duration::seconds(direction * span);
    Ok(at.replace_nanosecond(0)?.format(&Rfc3339)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, expected) in [("0s", 0), ("90", 90), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(seconds(text).unwrap(), expected, "{text}");
        }
        for text in ["", "s", "-1", "-1h", "1w", "7ä", "1h30m", "36501d", "99999999999999999999d"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert_eq!(seconds("36500d").unwrap(), LONGEST);
    }

    #[test]
    fn points() {
        assert_eq!(ahead("2030-01-31T12:00:00+01:00").unwrap(), "2030-01-31T12:00:00+01:00");
        assert!(ago("1h").unwrap() < ahead("1h").unwrap());
        assert!(ahead("soon").unwrap_err().to_string().contains("2030"));
    }
}
