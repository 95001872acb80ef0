//! The audit record of every mutation: who did what to what. The transaction that makes the change writes it.

use std::net::IpAddr;

use berth_domain::Timestamp;
use berth_domain::ids::{KeyId, OrgId, ProjectId, UserId};
use serde_json::Value as Json;

use super::{DbError, Tx, event, record};
use crate::columns;

/// Who acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A person.
    User(UserId),
    /// An API key.
    Key(KeyId),
    /// The platform itself.
    Platform,
    /// A person who is not signed in.
    Nobody,
}

impl Actor {
    /// The id of the person or the key.
    pub fn id(self) -> Option<String> {
        match self {
            Self::User(id) => Some(id.to_string()),
            Self::Key(id) => Some(id.to_string()),
            Self::Platform | Self::Nobody => None,
        }
    }

    /// `user`, `api_key`, `platform` or `anonymous`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Key(_) => "api_key",
            Self::Platform => "platform",
            Self::Nobody => "anonymous",
        }
    }
}

/// A record about to be written.
#[derive(Clone, Debug)]
pub struct Audit<'a> {
    /// The organization it belongs to; `None` if it belongs to the platform or to a person alone.
    pub org: Option<OrgId>,
    /// The project it belongs to.
    pub project: Option<ProjectId>,
    /// Who did it.
    pub actor: Actor,
    /// The request that did it.
    pub request_id: &'a str,
    /// Where that request came from; the record's data has it as `address`.
    pub from: Option<IpAddr>,
    /// What was done: `vm.create`, `org.update`, ….
    pub action: &'a str,
    /// The id of what it was done to.
    pub subject: &'a str,
    /// More about it; never a secret.
    pub data: Json,
}

impl Audit<'_> {
    /// The record with more details.
    #[must_use]
    pub fn with(self, data: Json) -> Self {
        Self { data, ..self }
    }

    /// Writes the record, and an event of the same name for those who watch the project.
    pub async fn write_and_tell(self, tx: &mut Tx, now: Timestamp) -> Result<(), DbError> {
        if let Some(project) = self.project {
            event::emit(tx, project, self.action, self.subject, &self.data, now).await?;
        }
        self.write(tx, now).await
    }

    /// Writes the record.
    pub async fn write(mut self, tx: &mut Tx, now: Timestamp) -> Result<(), DbError> {
        if let (Some(address), Json::Object(data)) = (self.from, &mut self.data) {
            data.entry("address").or_insert_with(|| address.to_string().into());
        }
        let columns = columns! {
            "id": uuid::Uuid::now_v7().to_string(), "org_id": self.org, "project_id": self.project,
            "actor": self.actor.id(), "actor_kind": self.actor.kind(), "action": self.action, "subject": self.subject,
            "request_id": self.request_id, "data": self.data.to_string(), "created_at": now,
        };
        record::insert("audit", columns).execute(tx).await.map(drop)
    }
}
