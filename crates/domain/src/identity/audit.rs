//! What is looked for in the audit log.

use crate::Timestamp;
use crate::error::Result;
use crate::ids::OrgId;
use crate::page::Page;
use crate::query::{Params, short};

/// Most bytes of a word that is looked for.
const WORD: usize = 100;

/// What to look for; `None` is everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In which organization; only administrators of the platform choose it.
    pub org: Option<OrgId>,
    /// What was done.
    pub action: Option<Which>,
    /// Who did it.
    pub actor: Option<String>,
    /// What it was done to.
    pub subject: Option<String>,
    /// In which project.
    pub project: Option<String>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// Before.
    pub until: Option<Timestamp>,
}

/// Which actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// This one.
    One(String),
    /// Those that begin like this: of a noun, with its dot.
    Beginning(String),
}

impl Which {
    /// Reads which actions: one with its dot, or all of a noun.
    fn parse(text: &str) -> Self {
        match text.strip_suffix(".*").or_else(|| (!text.contains('.')).then_some(text)) {
            Some(noun) => Self::Beginning(format!("{noun}.")),
            None => Self::One(text.to_owned()),
        }
    }
}

impl Filter {
    fn of(params: &mut Params) -> Self {
        let mut word = |name: &str| params.read(name, short(WORD));
        let (action, actor, subject, project) = (word("action"), word("actor"), word("subject"), word("project_id"));
        let since = params.read("since", Timestamp::parse);
        let until = params.read("until", Timestamp::parse);
        let action = action.map(|text| Which::parse(&text));
        Self { org: None, action, actor, subject, project, since, until }
    }

    /// Reads what is looked for in an organization's log, and which page of it.
    ///
    /// # Errors
    /// Every invalid parameter.
    pub fn read(mut params: Params) -> Result<(Self, Page)> {
        let page = params.page();
        let filter = Self::of(&mut params);
        params.finish()?;
        Ok((filter, page))
    }

    /// The same of the whole platform, where an organization may be named.
    ///
    /// # Errors
    /// Every invalid parameter.
    pub fn read_all(mut params: Params) -> Result<(Self, Page)> {
        let page = params.page();
        let org = params.read("org_id", |text| text.parse::<OrgId>().map_err(|_| "must be a UUID".to_owned()));
        let filter = Self { org, ..Self::of(&mut params) };
        params.finish()?;
        Ok((filter, page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_noun_is_all_of_its_actions() {
        for text in ["vm", "vm.*"] {
            assert_eq!(Which::parse(text), Which::Beginning("vm.".into()));
        }
        for text in ["vm.create", "vm.", "vm.c*"] {
            assert_eq!(Which::parse(text), Which::One(text.into()));
        }
    }

    #[test]
    fn words_have_two_sides_and_every_mistake_is_named() {
        let read = |query: &str| Filter::read(Params::parse(query));
        let long = "a".repeat(WORD);
        let (filter, page) = read(&format!("actor={long}&since=1970-01-01T00:00:00Z&page=2")).unwrap();
        assert_eq!((filter.actor.as_ref(), filter.since, page.number), (Some(&long), Some(Timestamp(0)), 2));
        let wrong = format!("action=&actor={long}a&since=x&until=y&limit=0&org_id=z");
        let fields = |error: crate::Error| error.details.into_iter().map(|d| d.field).collect::<Vec<_>>();
        assert_eq!(fields(read(&wrong).unwrap_err()), ["limit", "action", "actor", "since", "until", "org_id"]);
        let all = Filter::read_all(Params::parse(&wrong)).unwrap_err();
        assert_eq!(fields(all), ["limit", "org_id", "action", "actor", "since", "until"]);
    }
}
