//! Who calls.

use berth_domain::identity::KeyScopes;
use berth_domain::ids::{KeyId, ProjectId, SessionId, UserId};
use uuid::Uuid;

use super::client_address::ClientAddress;

/// What a credential stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A person, signed in.
    Person {
        /// The person.
        user: UserId,
        /// The session the credential belongs to.
        session: SessionId,
        /// Administrator of the platform.
        is_admin: bool,
    },
    /// An API key of a project.
    Key {
        /// The key.
        id: KeyId,
        /// The project it belongs to.
        project: ProjectId,
        /// The scopes of the key.
        scopes: KeyScopes,
        /// The address from which it is used.
        from: ClientAddress,
    },
}

impl Who {
    /// The id of the person or the key.
    pub const fn id(&self) -> Uuid {
        match self {
            Self::Person { user, .. } => user.0,
            Self::Key { id, .. } => id.0,
        }
    }
}
