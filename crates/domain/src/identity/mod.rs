//! People, organizations, projects, and who may do what.

pub mod api_key;
pub mod limits;
pub mod policy;
pub mod status;

pub use api_key::{KeyScope, KeyScopes, Networks};
pub use limits::Limits;
pub use policy::{Action, OrgRole, ProjectRole};
pub use status::{InvitationStatus, KeyStatus, ReferralStatus};
