//! What is asked of usage.

use super::{By, Span};
use crate::error::Result;
use crate::query::Params;
use crate::{Month, Timestamp};

/// Longest span, in days.
const LONGEST: i64 = 366;

/// What is read of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// From when to when, as it was asked for.
    pub span: Span,
    /// The same up to now: nothing was taken in the future.
    pub counted: Span,
    /// What is told apart.
    pub by: By,
}

impl Asked {
    /// Reads `from`, `to` and `by`, and refuses with every mistake of the query. What is told apart by default and what
    /// may be, the route says.
    ///
    /// # Errors
    /// Every invalid parameter.
    pub fn read(mut params: Params, (default, allowed): (By, &[&str]), now: Timestamp) -> Result<Self> {
        let by = params.read("by", |text| By::parse(text, allowed)).unwrap_or(default);
        let (from, to) = (time(&mut params, "from"), time(&mut params, "to"));
        let is_clean = from.is_ok() && to.is_ok();
        let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
        let end = to.unwrap_or(now);
        // The month that the last moment lies in.
        let begin = from.unwrap_or_else(|| Month::of(Timestamp(end.0.saturating_sub(1))).begin);
        if is_clean && begin >= end {
            let message = if to.is_some() { "must be before to" } else { "must be before to, which is now" };
            params.fail("from", message);
        } else if is_clean && begin.plus_seconds(LONGEST * 86_400) < end {
            params.fail("from", format!("must be at most {LONGEST} days before to"));
        }
        params.finish()?;
        let counted = Span { begin, end: end.min(now) };
        Ok(Self { span: Span { begin, end }, counted, by })
    }
}

/// A time of the query, where one is named; an error where it is none, which is noted.
fn time(params: &mut Params, name: &str) -> Result<Option<Timestamp>, ()> {
    let at = params.read(name, Timestamp::parse);
    if at.is_some() == params.get(name).is_some() { Ok(at) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: By = By { day: false, project: false, resource: true };
    const NOW: &str = "2030-03-10T12:00:00Z";

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn read(query: &str) -> Result<Asked> {
        Asked::read(Params::parse(query), (DEFAULT, &["day", "resource"]), at(NOW))
    }

    fn span(query: &str) -> (String, String) {
        let Asked { span, .. } = read(query).unwrap();
        (span.begin.to_string(), span.end.to_string())
    }

    #[test]
    fn the_month_up_to_now_unless_somebody_says_otherwise() {
        let months = |begin: &str, end: &str| (at(begin).to_string(), at(end).to_string());
        assert_eq!(span(""), months("2030-03-01T00:00:00Z", NOW));
        assert_eq!(span("to=2030-02-05T00:00:00Z"), months("2030-02-01T00:00:00Z", "2030-02-05T00:00:00Z"));
        // What ends with a month is that month.
        assert_eq!(span("to=2030-03-01T00:00:00Z"), months("2030-02-01T00:00:00Z", "2030-03-01T00:00:00Z"));
        assert_eq!(span("from=2030-01-05T00:00:00%2B01:00"), months("2030-01-04T23:00:00Z", NOW));
        assert_eq!(read("").unwrap().by, DEFAULT);
        assert_eq!(read("by=day").unwrap().by, By { day: true, project: false, resource: false });
    }

    #[test]
    fn nothing_is_counted_of_the_future() {
        let asked = read("from=2030-03-10T00:00:00Z&to=2030-04-01T00:00:00Z").unwrap();
        assert_eq!((asked.span.end, asked.counted.end), (at("2030-04-01T00:00:00Z"), at(NOW)));
        assert!(read("from=2030-03-11T00:00:00Z&to=2030-04-01T00:00:00Z").is_ok());
    }

    #[test]
    fn spans_have_bounds() {
        let year = "to=2030-03-10T00:00:00Z&from=2029-03-09T00:00:00";
        assert!(read(&format!("{year}Z")).is_ok());
        let moment = "to=2030-03-10T00:00:00Z&from=2030-03-09T23:59:59.999999Z";
        assert!(read(moment).is_ok());
        for (bad, field) in [
            ("to=2030-03-10T00:00:00Z&from=2029-03-08T23:59:59.999999Z".into(), "from"),
            ("to=2030-03-10T00:00:00Z&from=2030-03-10T00:00:00Z".into(), "from"),
            (format!("from={NOW}"), "from"),
            ("from=yesterday".into(), "from"),
            ("to=".into(), "to"),
            ("to=2030-03-10".into(), "to"),
            ("by=week".into(), "by"),
            ("by=".into(), "by"),
            ("by=project".into(), "by"),
            ("until=now".into(), "until"),
        ] {
            let error = read(&bad).unwrap_err();
            assert_eq!(error.details.iter().map(|d| d.field.as_str()).collect::<Vec<_>>(), [field], "{bad}");
        }
        assert_eq!(read("from=x&to=y&by=z&q=1").unwrap_err().details.len(), 4);
    }
}
