//! People, organizations, projects, and who may do what.
//!
//! A file holds one noun: what it is, and the requests about it, parsed once. After that nobody validates again but
//! against rows.

pub mod admin;
pub mod api_key;
pub mod audit;
pub mod contact;
pub mod invitation;
pub mod limits;
pub mod member;
pub mod org;
pub mod password;
pub mod policy;
pub mod project;
pub mod referral;
pub mod session;
pub mod status;
pub mod suspension;
pub mod user;
pub mod verification;

pub use api_key::{KeyScope, KeyScopes, SourceNetworks};
pub use limits::Limits;
pub use policy::{Action, OrgRole, ProjectRole};
pub use status::{InvitationStatus, KeyStatus, ReferralStatus};

#[cfg(test)]
mod properties_tests;

/// The fields that a refusal names.
#[cfg(test)]
fn mistakes<T>(read: crate::Result<T>) -> Vec<String> {
    read.err().into_iter().flat_map(|error| error.details).map(|d| d.field).collect()
}
