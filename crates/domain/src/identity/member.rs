//! Members of organizations and projects.

use serde_json::Value;

use super::contact::email;
use super::policy::{OrgRole, ProjectRole};
use crate::error::{Error, Result};
use crate::fields::{Fields, Parsed, id, text};
use crate::ids::UserId;

/// Rule: a role in an organization.
pub fn in_org(value: &Value) -> Parsed<OrgRole> {
    OrgRole::parse(text(value)?)
}

/// Rule: a role in a project.
pub fn in_project(value: &Value) -> Parsed<ProjectRole> {
    ProjectRole::parse(text(value)?)
}

/// Reads the role that a member of an organization gets.
///
/// # Errors
/// Every invalid field.
pub fn org_role(body: &Value) -> Result<OrgRole> {
    let mut f = Fields::of(body);
    let role = f.required("role", in_org);
    f.finish(role)
}

/// Reads the role that a member of a project gets.
///
/// # Errors
/// Every invalid field.
pub fn project_role(body: &Value) -> Result<ProjectRole> {
    let mut f = Fields::of(body);
    let role = f.required("role", in_project);
    f.finish(role)
}

/// Somebody by id or address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// By id.
    User(UserId),
    /// By address.
    Email(String),
}

/// Somebody who becomes a member of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Who.
    pub whom: Whom,
    /// As what.
    pub role: ProjectRole,
}

impl TryFrom<&Value> for NewMember {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        if f.has("user_id") == f.has("email") {
            f.fail("user_id", "give exactly one of user_id and email");
        }
        let user = f.optional("user_id", id);
        let email = f.optional("email", email);
        let role = f.required("role", in_project);
        let whom = user.map(Whom::User).or(email.map(Whom::Email));
        f.finish(whom.zip(role).map(|(whom, role)| Self { whom, role }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

    #[test]
    fn somebody_is_named_in_one_way() {
        let read = |body: Value| NewMember::try_from(&body);
        let by_id = read(json!({"user_id": ID, "role": "viewer"})).unwrap();
        assert_eq!(by_id, NewMember { whom: Whom::User(ID.parse().unwrap()), role: ProjectRole::Viewer });
        let by_address = read(json!({"email": "a@b.c", "user_id": null, "role": "admin"})).unwrap();
        assert_eq!(by_address.whom, Whom::Email("a@b.c".into()));
        for body in [json!({"role": "viewer"}), json!({"user_id": ID, "email": "a@b.c", "role": "viewer"})] {
            let error = read(body).unwrap_err();
            assert_eq!(error.message, "user_id: give exactly one of user_id and email");
        }
    }

    #[test]
    fn roles_are_those_of_the_place() {
        assert_eq!(org_role(&json!({"role": "owner"})), Ok(OrgRole::Owner));
        assert_eq!(project_role(&json!({"role": "editor"})), Ok(ProjectRole::Editor));
        let error = org_role(&json!({"role": "editor"})).unwrap_err();
        assert_eq!(error.message, "role: must be one of: owner admin member");
        assert!(project_role(&json!({"role": "owner"})).is_err() && project_role(&json!({})).is_err());
    }
}
