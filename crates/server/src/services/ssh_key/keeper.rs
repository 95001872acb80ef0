//! Whose keys a request is about, and with which right: a person who acts on their own, or a caller in a project. All
//! else is the same for both.

use async_trait::async_trait;
use berth_domain::Result;
use uuid::Uuid;

use crate::db::audit::Audit;
use crate::db::ssh_key::KeyOwner;
use crate::db::{Authority, Tx};
use crate::http::auth::{Person, Scope};

/// Whose keys a request is about.
#[derive(Clone, Copy)]
pub(super) enum Keeper<'a> {
    /// The caller's own.
    Person(&'a Person),
    /// Those of a project.
    Project(&'a Scope),
}

impl<'a> Keeper<'a> {
    /// The owner of the keys.
    pub(super) const fn owner(self) -> KeyOwner {
        match self {
            Self::Person(person) => KeyOwner::User(person.user),
            Self::Project(scope) => KeyOwner::Project(scope.project),
        }
    }

    /// The audit record of what the caller does.
    pub(super) fn audit(self, action: &'a str, subject: &'a str) -> Audit<'a> {
        match self {
            Self::Person(person) => person.caller.audit(action, subject),
            Self::Project(scope) => scope.audit(action, subject),
        }
    }

    /// The path of the list.
    pub(super) fn path(self) -> String {
        match self {
            Self::Person(_) => "/api/v1/users/me/ssh_keys".to_owned(),
            Self::Project(scope) => format!("/api/v1/orgs/{}/projects/{}/ssh_keys", scope.org, scope.project),
        }
    }

    /// What the owner is called in messages.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Person(_) => "account",
            Self::Project(_) => "project",
        }
    }
}

#[async_trait]
impl Authority for Keeper<'_> {
    fn tenant(&self) -> Uuid {
        match self {
            Self::Person(person) => person.tenant(),
            Self::Project(scope) => scope.tenant(),
        }
    }

    async fn confirm(&self, tx: &mut Tx) -> Result<()> {
        match self {
            Self::Person(person) => person.confirm(tx).await,
            Self::Project(scope) => scope.confirm(tx).await,
        }
    }
}
