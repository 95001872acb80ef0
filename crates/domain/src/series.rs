//! Windows and resolutions of series: `window=1h&resolution=10s`.

use std::ops::Range;

use crate::Timestamp;
use crate::error::{Error, Result};
use crate::query::Params;

/// Most points of a series.
pub const MOST: i64 = 2000;

/// The steps of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Seconds covered.
    pub window: i64,
    /// Seconds of a step.
    pub resolution: i64,
}

/// The bounds of a query, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// What windows and resolutions are whole multiples of.
    pub unit: i64,
    /// Finest resolution.
    pub finest: i64,
    /// Longest window.
    pub longest: i64,
    /// The default series.
    pub default: Steps,
}

impl Steps {
    /// Reads `window` and `resolution`, and refuses with every mistake of the query.
    pub fn read(mut params: Params, bounds: Bounds) -> Result<Self> {
        let default = bounds.default;
        let window = params.read("window", |t| duration(t, bounds)).unwrap_or(default.window);
        let resolution = params.read("resolution", |t| duration(t, bounds));
        // By default a short window is one step.
        let resolution = resolution.unwrap_or(default.resolution.min(window));
        params.finish()?;
        if window / resolution > MOST || resolution > window {
            let message = format!("must divide the window into 1 to {MOST} steps");
            return Err(Error::field("resolution", message));
        }
        Ok(Self { window, resolution })
    }

    /// The beginning of each step, in seconds since 1970, aligned to the resolution; the last one has ended.
    pub fn starts(self, now: Timestamp) -> impl Iterator<Item = i64> {
        let end = now.seconds() / self.resolution * self.resolution;
        let begin = end - self.window / self.resolution * self.resolution;
        (begin..end).step_by(usize::try_from(self.resolution).unwrap_or(1))
    }

    /// The whole window in steps, the present one included, in seconds since 1970: from the beginning of the first step
    /// to the end of the last.
    pub const fn span(self, now: Timestamp) -> Range<i64> {
        let begin = (now.seconds() - self.window).div_euclid(self.resolution) * self.resolution;
        let end = (now.seconds().div_euclid(self.resolution) + 1) * self.resolution;
        begin..end
    }
}

/// Seconds of a text like `90s`, `5m`, `1h` or `1d`.
fn duration(text: &str, Bounds { unit, finest, longest, .. }: Bounds) -> Result<i64, String> {
    let multiples = if unit > 1 { format!(", in multiples of {unit}s") } else { String::new() };
    let rule = || format!("must be a time like 30s, 5m, 1h or 1d, from {finest}s to {longest}s{multiples}");
    let seconds = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(rule()),
    };
    let digits = &text[..text.len() - 1];
    let number: i64 = digits.parse().map_err(|_| rule())?;
    number
        .checked_mul(seconds)
        .filter(|s| (finest..=longest).contains(s) && s % unit == 0 && digits.bytes().all(|b| b.is_ascii_digit()))
        .ok_or_else(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_on_both_sides() {
        let default = Steps { window: 3600, resolution: 10 };
        let bounds = Bounds { unit: 1, finest: 10, longest: 3600, default };
        for (text, want) in [("10s", 10), ("5m", 300), ("1h", 3600), ("61s", 61)] {
            assert_eq!(duration(text, bounds), Ok(want));
        }
        for bad in ["", "s", "9s", "61m", "1", "-1h", "+1h", "1.5h", "1x", "99999999999999999999h", "ä"] {
            assert!(duration(bad, bounds).is_err(), "{bad}");
        }
        assert_eq!(duration("30d", Bounds { longest: 30 * 86_400, ..bounds }), Ok(30 * 86_400));
        let minutes = Bounds { unit: 60, finest: 60, ..bounds };
        assert_eq!((duration("60s", minutes), duration("2m", minutes)), (Ok(60), Ok(120)));
        for bad in ["59s", "61s", "119s"] {
            assert!(duration(bad, minutes).unwrap_err().ends_with("to 3600s, in multiples of 60s"), "{bad}");
        }
    }

    #[test]
    fn steps_are_aligned_and_bounded() {
        let steps = Steps { window: 65, resolution: 20 };
        let starts: Vec<_> = steps.starts(Timestamp(173 * Timestamp::SECOND)).collect();
        assert_eq!(starts, [100, 120, 140]);
        assert_eq!(steps.span(Timestamp(173 * Timestamp::SECOND)), 100..180);
        assert_eq!(Steps { window: 60, resolution: 20 }.span(Timestamp(160 * Timestamp::SECOND)), 100..180);
        let bounds =
            Bounds { unit: 1, finest: 5, longest: 30 * 86_400, default: Steps { window: 3600, resolution: 10 } };
        let read = |query: &str| Steps::read(Params::parse(query), bounds);
        assert_eq!(read("").unwrap(), bounds.default);
        assert_eq!(read("window=5s").unwrap(), Steps { window: 5, resolution: 5 });
        assert!(read("window=10000s&resolution=5s").is_ok());
        assert!(read("window=10005s&resolution=5s").is_err());
        assert!(read("window=5s&resolution=10s").is_err() && read("resolution=4s").is_err());
        assert!(read("window=31d&resolution=1d").is_err() && read("window=30d&resolution=1d").is_ok());
    }
}
