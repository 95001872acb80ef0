//! People, organizations, projects, and who may do what.

pub mod api_key;
pub mod policy;

pub use api_key::{KeyScope, KeyScopes};
pub use policy::{Action, OrgRole, ProjectRole};
