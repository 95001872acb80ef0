//! What requests took, summed up by minute and by everything that a bill shows separately.
//!
//! A row for each request would cost 340 bytes of SQLite and nine percent of the request's CPU, for a busy service
//! gigabytes a day that nobody queries one by one. Sums need no single rows: a record that corrects an earlier one of
//! its request adds the difference.

use std::collections::HashMap;
use std::ops::{AddAssign, Sub};
use std::sync::Arc;

use berth_domain::Timestamp;
use berth_domain::ids::{KeyId, OrgId, ProjectId};

/// Microseconds in a minute.
const MINUTE: i64 = 60 * Timestamp::SECOND;

/// The key of a sum: what requests have in common that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Beginning of the minute in which the requests were made.
    pub minute: Timestamp,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The API key that asked; `None` for persons.
    pub key: Option<KeyId>,
    /// The model.
    pub model: Arc<str>,
}

/// Beginning of the minute of a moment.
pub const fn minute(at: Timestamp) -> Timestamp {
    Timestamp(at.0.div_euclid(MINUTE) * MINUTE)
}

/// Numbers of a group, or what a line adds to them; below zero where it takes back what an earlier record counted too
/// much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: i64,
    /// Tokens of the prompts.
    pub prompt: i64,
    /// Tokens of the answers.
    pub completion: i64,
    /// What they cost, in billionths.
    pub cost: i64,
    /// Requests whose tokens are an estimate.
    pub estimated: i64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        let Self { requests, prompt, completion, cost, estimated } = other;
        self.requests = self.requests.saturating_add(requests);
        self.prompt = self.prompt.saturating_add(prompt);
        self.completion = self.completion.saturating_add(completion);
        self.cost = self.cost.saturating_add(cost);
        self.estimated = self.estimated.saturating_add(estimated);
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            prompt: self.prompt.saturating_sub(other.prompt),
            completion: self.completion.saturating_sub(other.completion),
            cost: self.cost.saturating_sub(other.cost),
            estimated: self.estimated.saturating_sub(other.estimated),
        }
    }
}

/// What the journal adds to a group: a JSON list without field names, which would be half of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The group.
    pub group: Group,
    /// What is added.
    pub counts: Counts,
}

type Fields<Model> = (i64, OrgId, ProjectId, Option<KeyId>, Model, [i64; 5]);

impl Line {
    /// Its text, with a line break at the end and none before.
    pub fn text(&self) -> serde_json::Result<Vec<u8>> {
        let Group { minute, org, project, key, model } = &self.group;
        let Counts { requests, prompt, completion, cost, estimated } = self.counts;
        let counts = [requests, prompt, completion, cost, estimated];
        let fields: Fields<&str> = (minute.0, *org, *project, *key, model, counts);
        let mut text = Vec::with_capacity(256);
        serde_json::to_writer(&mut text, &fields)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Parses a line.
    pub fn read(text: &[u8]) -> serde_json::Result<Self> {
        let (at, org, project, key, model, counts): Fields<String> = serde_json::from_slice(text)?;
        let [requests, prompt, completion, cost, estimated] = counts;
        let counts = Counts { requests, prompt, completion, cost, estimated };
        Ok(Self { group: Group { minute: Timestamp(at), org, project, key, model: model.into() }, counts })
    }
}

/// Sums by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(HashMap<Group, Counts>);

impl Totals {
    /// Adds a line.
    pub fn add(&mut self, line: &Line) {
        match self.0.get_mut(&line.group) {
            Some(counts) => *counts += line.counts,
            None => drop(self.0.insert(line.group.clone(), line.counts)),
        }
    }

    /// Adds up the lines of a text, and counts whole lines that cannot be read. Bytes behind the last line break are a
    /// write that was cut off.
    pub fn read(text: &[u8]) -> (Self, usize) {
        let (mut totals, mut unread) = (Self::default(), 0);
        for line in text.split_inclusive(|b| *b == b'\n').filter(|line| line.ends_with(b"\n")) {
            match Line::read(line) {
                Ok(line) => totals.add(&line),
                Err(_) => unread += 1,
            }
        }
        (totals, unread)
    }

    /// Whether it has this group.
    pub fn contains(&self, group: &Group) -> bool {
        self.0.contains_key(group)
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Group, &Counts)> {
        self.0.iter()
    }
}

#[cfg(test)]
impl Line {
    /// A line for tests: a request that cost 7.
    pub fn sample(minute: i64, model: &str) -> Self {
        let at = Timestamp(minute * MINUTE);
        let (org, project) = (OrgId(uuid::Uuid::from_u128(1)), ProjectId(uuid::Uuid::from_u128(2)));
        let group = Group { minute: at, org, project, key: None, model: model.into() };
        Self { group, counts: Counts { requests: 1, prompt: 10, completion: 1, cost: 7, estimated: 0 } }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_line_reads_as_it_was_written() {
        let mut line = Line::sample(1, "a/\"b\"\nü");
        line.counts = Counts { requests: 0, prompt: -3, completion: i64::MAX, cost: i64::MIN, estimated: -1 };
        for key in [None, Some(KeyId(Uuid::now_v7()))] {
            line.group.key = key;
            let text = line.text().unwrap();
            assert_eq!(text.split(|b| *b == b'\n').count(), 2, "{}", String::from_utf8_lossy(&text));
            assert_eq!(Line::read(&text).unwrap(), line);
        }
    }

    #[test]
    fn a_correction_leaves_what_is_true() {
        let guess = Counts { requests: 1, prompt: 9, completion: 4, cost: 8, estimated: 1 };
        let told = Counts { requests: 1, prompt: 7, completion: 5, cost: 9, estimated: 0 };
        let mut sum = guess;
        sum += told - guess;
        assert_eq!(sum, told);
        let most = Counts { requests: i64::MAX, prompt: i64::MAX, completion: 1, cost: i64::MAX, estimated: 0 };
        let mut sum = most;
        sum += most;
        assert_eq!((sum.prompt, sum.completion), (i64::MAX, 2));
    }

    #[test]
    fn what_was_cut_off_or_is_no_line_does_not_count() {
        let (one, other) = (Line::sample(1, "tiny"), Line::sample(2, "tiny"));
        let mut text =
            [one.text().unwrap(), b"{\"half\": \n".to_vec(), one.text().unwrap(), other.text().unwrap()].concat();
        text.extend_from_slice(&other.text().unwrap()[..20]);
        let (totals, unread) = Totals::read(&text);
        assert_eq!((totals.len(), unread), (2, 1));
        let requests = |line: &Line| totals.0[&line.group].requests;
        assert_eq!((requests(&one), requests(&other)), (2, 1));
    }

    #[test]
    fn a_minute_begins_where_it_does() {
        let at = |seconds: i64| minute(Timestamp(seconds * Timestamp::SECOND)).seconds();
        assert_eq!([0, 59, 60, 61, -1].map(at), [0, 0, 60, 60, -60]);
    }
}
