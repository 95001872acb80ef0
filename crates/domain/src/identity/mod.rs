//! People, organizations, projects, and who may do what.

pub mod policy;

pub use policy::{Action, OrgRole, ProjectRole};
