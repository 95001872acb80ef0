//! Which sandboxes, and which snapshots, a list of E2B's is to have.

use crate::error::{Error, Result};
use crate::query::Params;
use crate::time::Timestamp;

/// Most items of a page, and how many there are where nobody says.
pub const MOST: usize = 100;

/// How far into a list a token may lead.
const FARTHEST: usize = 1_000_000_000;

/// Where a list goes on: behind so many items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// How many come before.
    pub skipped: usize,
    /// Most items from there on.
    pub limit: usize,
}

impl Place {
    fn read(params: &mut Params) -> Self {
        let limit = params.read("limit", |text| match text.parse() {
            Ok(limit @ 1..=MOST) => Ok(limit),
            _ => Err(format!("must be from 1 to {MOST}")),
        });
        let wrong = || "is none that this list gave".to_owned();
        let skipped = params.read("nextToken", |text| {
            let skipped = text.strip_prefix('o').and_then(|digits| digits.parse().ok());
            skipped.filter(|skipped| *skipped <= FARTHEST).ok_or_else(wrong)
        });
        Self { skipped: skipped.unwrap_or(0), limit: limit.unwrap_or(MOST) }
    }

    /// The token of the page behind this one, of which so many items were looked at.
    pub fn next(self, looked_at: usize) -> String {
        format!("o{}", self.skipped + looked_at)
    }
}

/// Sandboxes to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandboxes {
    /// Pairs of metadata that they have.
    pub metadata: Vec<(String, String)>,
    /// Whether those that run are wanted.
    pub running: bool,
    /// Whether those that are paused are wanted.
    pub paused: bool,
    /// Of which template, by id or name.
    pub template: Option<String>,
    /// Made after this.
    pub started_after: Option<Timestamp>,
    /// Whether the oldest come first.
    pub oldest_first: bool,
    /// Where the list goes on.
    pub place: Place,
}

impl Sandboxes {
    /// Reads a query. What it does not know it passes over.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(query: &str) -> Result<Self> {
        let mut params = Params::parse(query);
        let states: Vec<_> = params.all("state").iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
        if let Some(state) = states.iter().find(|state| !["running", "paused", ""].contains(&state.as_str())) {
            params.fail("state", format!("is 'running' or 'paused', not '{state}'"));
        }
        let has = |state: &str| states.iter().all(String::is_empty) || states.iter().any(|one| one == state);
        let (running, paused) = (has("running"), has("paused"));
        let metadata = params.get("metadata").map(pairs).unwrap_or_default();
        let template = params.get("template").filter(|text| !text.is_empty()).map(str::to_owned);
        let started_after = params.read("startedAfter", Timestamp::parse);
        let oldest_first = params.get("order") == Some("asc");
        let place = Place::read(&mut params);
        params.finish_known()?;
        Ok(Self { metadata, running, paused, template, started_after, oldest_first, place })
    }
}

/// Snapshots to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshots {
    /// Of which sandbox.
    pub sandbox: Option<String>,
    /// Of which name.
    pub name: Option<String>,
    /// Where the list goes on.
    pub place: Place,
}

impl Snapshots {
    /// Reads a query. What it does not know it passes over.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(query: &str) -> Result<Self> {
        let mut params = Params::parse(query);
        let text = |params: &Params, name: &str| params.get(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let (sandbox, name) = (text(&params, "sandboxID"), text(&params, "name"));
        let place = Place::read(&mut params);
        params.finish_known()?;
        Ok(Self { sandbox, name, place })
    }
}

/// Pairs that were encoded three times: each part by itself, the pairs as a form, that as a value of the query.
fn pairs(form: &str) -> Vec<(String, String)> {
    let once = |text: &str| {
        let mut decoded = form_urlencoded::parse(text.as_bytes());
        decoded.next().map(|(text, _)| text.into_owned()).unwrap_or_default()
    };
    form_urlencoded::parse(form.as_bytes()).map(|(key, value)| (once(&key), once(&value))).collect()
}

/// A window that metrics are asked for, from its beginning and its end in Unix seconds: how many seconds back it begins and
/// how many it ends.
///
/// # Errors
/// They are no numbers, or the wrong way round.
pub fn window(query: &str, now: Timestamp, default: i64) -> Result<(i64, i64)> {
    let mut params = Params::parse(query);
    let mut ago = |name: &str, default: i64| {
        let at: Option<i64> =
            params.read(name, |text| text.parse().map_err(|_| "is a time in Unix seconds".to_owned()));
        at.map_or(default, |at| now.seconds().saturating_sub(at).max(0))
    };
    let (begins, ends) = (ago("start", default), ago("end", 0));
    params.finish_known()?;
    if begins < ends {
        return Err(Error::field("start", "is after the end"));
    }
    Ok((begins, ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_encoded_three_times() {
        // {"a b": "c&d"}, as the SDK of Python writes it.
        let read = Sandboxes::read("metadata=a%252520b%3Dc%252526d&x=y").unwrap();
        assert_eq!(read.metadata, [("a b".to_owned(), "c&d".to_owned())]);
        assert!(read.running && read.paused && !read.oldest_first && read.template.is_none());
    }

    #[test]
    fn states_come_as_one_text_or_several() {
        for query in ["state=paused", "state=paused&limit=1"] {
            let read = Sandboxes::read(query).unwrap();
            assert!(read.paused && !read.running, "{query}");
        }
        for query in ["state=running,paused", "state=running&state=paused", "state=", ""] {
            let read = Sandboxes::read(query).unwrap();
            assert!(read.paused && read.running, "{query}");
        }
        assert!(Sandboxes::read("state=killed").is_err() && Sandboxes::read("startedAfter=x").is_err());
    }

    #[test]
    fn a_list_goes_on_where_it_ended() {
        let place = |query: &str| Sandboxes::read(query).map(|read| read.place);
        assert_eq!(place("").unwrap(), Place { skipped: 0, limit: MOST });
        let next = place("limit=5").unwrap().next(7);
        assert_eq!(place(&format!("limit=100&nextToken={next}")).unwrap(), Place { skipped: 7, limit: 100 });
        assert!(place("nextToken=o1000000000").is_ok());
        let far = format!("nextToken=o{}", u64::MAX);
        for wrong in ["limit=0", "limit=101", "nextToken=7", "nextToken=ox", "nextToken=o1000000001", &far] {
            assert!(place(wrong).is_err() && Snapshots::read(wrong).is_err(), "{wrong}");
        }
        let snapshots = Snapshots::read("sandboxID=s&name=&later=1").unwrap();
        assert_eq!((snapshots.sandbox.as_deref(), snapshots.name), (Some("s"), None));
    }

    #[test]
    fn a_window_is_told_by_its_ends() {
        let now = Timestamp(1000 * Timestamp::SECOND);
        assert_eq!(window("", now, 60).unwrap(), (60, 0));
        assert_eq!(window("start=900&end=950", now, 60).unwrap(), (100, 50));
        assert_eq!(window("end=2000", now, 60).unwrap(), (60, 0));
        assert!(window("start=950&end=900", now, 60).is_err() && window("start=x", now, 60).is_err());
    }
}
