//! The record of a request: whose it was, which model answered, and what it took.

use std::sync::Arc;

use berth_domain::Timestamp;
use berth_domain::gateway::{Nano, Usage};
use berth_domain::ids::{KeyId, OrgId, ProjectId};
use berth_domain::query::storable;

use super::bound;
use super::totals::{Counts, Group, minute};

/// What a request took.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it was made.
    pub at: Timestamp,
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
    /// The API key that asked, if one did.
    pub key: Option<KeyId>,
    /// The model that answered, or that was asked for.
    pub model: Arc<str>,
    /// Tokens.
    pub usage: Usage,
    /// What they cost.
    pub cost: Nano,
    /// Whether the tokens are an estimate.
    pub estimated: bool,
    /// The part of it that the journal has already.
    pub written: Counts,
}

impl Record {
    /// The group that it counts in.
    pub fn group(&self) -> Group {
        // PostgreSQL takes no NUL, and a record that the database never takes would hold up all others.
        let nul = self.model.contains('\0');
        let model = if nul { storable(self.model.to_string()).into() } else { self.model.clone() };
        Group { minute: minute(self.at), org: self.org, project: self.project, key: self.key, model }
    }

    /// What it adds to its group while nothing of it is written.
    pub fn counts(&self) -> Counts {
        let Usage { prompt, completion } = self.usage;
        Counts {
            requests: 1,
            prompt: bound::tokens(prompt),
            completion: bound::tokens(completion),
            cost: bound::cost(self.cost).0,
            estimated: self.estimated.into(),
        }
    }
}

#[cfg(test)]
impl Record {
    /// A record for tests.
    pub fn sample(model: Arc<str>, usage: Usage) -> Self {
        Self {
            at: Timestamp(1),
            org: OrgId(uuid::Uuid::nil()),
            project: ProjectId(uuid::Uuid::nil()),
            key: None,
            model,
            usage,
            cost: Nano(5),
            estimated: false,
            written: Counts::default(),
        }
    }
}
