//! What is asked of usage, and how it is told.

use berth_domain::resource_usage::{By, Key, Span, Sum, Totals, Unit};
use berth_domain::{Month, Result, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::list::Params;

/// Longest span, in days.
const LONGEST: i64 = 366;

/// What is read of a query.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::services::project) struct Asked {
    /// From when to when, as it was asked for.
    pub(in crate::services::project) span: Span,
    /// The same up to now: nothing was taken in the future.
    pub(in crate::services::project) counted: Span,
    pub(in crate::services::project) by: By,
}

impl Asked {
    /// Reads `from`, `to` and `by`, and refuses with every mistake of the query.
    pub(in crate::services::project) fn read(
        mut params: Params,
        (default, allowed): (By, &[&str]),
        now: Timestamp,
    ) -> Result<Self> {
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

/// Usage of machines, disks and snapshots.
#[derive(Serialize, ToSchema)]
#[schema(as = ResourceUsageResponse)]
pub(in crate::services::project) struct ResourceUsageView {
    /// Its beginning.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// Its end; what goes on is counted up to now.
    #[schema(value_type = String, format = DateTime)]
    to: Timestamp,
    /// What all of it costs.
    cost: f64,
    /// What was taken, by day, project, type and resource, as far as they are told apart.
    data: Vec<SumView>,
}

/// What was taken of something.
#[derive(Serialize, ToSchema)]
#[schema(as = ResourceUsage)]
struct SumView {
    /// The day in UTC; only where days are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = Date)]
    day: Option<String>,
    /// The project; only where projects are told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<uuid::Uuid>)]
    project_id: Option<String>,
    /// What it is: vm, root_disk, disk, sandbox or snapshot.
    resource_type: &'static str,
    /// The resource; `null` where resources are not told apart.
    #[schema(value_type = Option<uuid::Uuid>, required = true)]
    resource_id: Option<String>,
    /// Its latest name in the span, also when it is gone.
    #[schema(required = true)]
    name: Option<String>,
    /// A machine's size: the vm_config of a VM.
    #[schema(required = true)]
    size: Option<String>,
    /// What the quantity is counted in: seconds of machines, gib_hours of disks and snapshots.
    unit: &'static str,
    /// How much it is, to the millionth.
    quantity: f64,
    /// What it costs, by the prices of its time.
    cost: f64,
}

impl ResourceUsageView {
    /// The sums over a span.
    pub(in crate::services::project) fn new(span: Span, totals: Totals) -> Self {
        let cost = totals.cost().units();
        let data = totals.into_sums().map(SumView::from).collect();
        Self { from: span.begin, to: span.end, cost, data }
    }
}

impl From<(Key, Sum)> for SumView {
    fn from((key, sum): (Key, Sum)) -> Self {
        let unit: Unit = key.kind.unit();
        Self {
            day: key.day.map(Timestamp::date),
            project_id: key.project.map(|project| project.to_string()),
            resource_type: key.kind.as_str(),
            resource_id: key.resource.map(|resource| resource.to_string()),
            name: sum.name,
            size: key.size,
            unit: unit.as_str(),
            quantity: sum.amount.quantity(unit),
            cost: sum.amount.cost.units(),
        }
    }
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
