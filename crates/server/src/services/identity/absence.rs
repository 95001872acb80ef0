//! What is not there, or not for the caller to see: both answer the same.

use berth_domain::{Code, Error};

/// The 404 of an organization.
pub(super) fn org_not_found() -> Error {
    Error::new(Code::OrganizationNotFound, "There is no such organization, or you do not belong to it.")
}

/// The 404 of a project, and of everything in an organization that the caller cannot see.
pub(super) fn project_not_found() -> Error {
    Error::new(Code::ProjectNotFound, "There is no such project, or you do not belong to it.")
}

/// The 404 of something that belongs to an organization, a project or a person.
pub(super) fn not_found(what: &str) -> Error {
    Error::new(Code::NotFound, format!("There is no such {what} here."))
}
