//! Invitations to organizations.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::contact::email;
use super::member::{in_org, in_project};
use super::password;
use super::policy::{OrgRole, ProjectRole};
use crate::error::{Error, Result};
use crate::fields::{Fields, id};
use crate::ids::ProjectId;
use crate::secret::Secret;

/// Most projects that an invitation gives roles in.
pub const PROJECTS: usize = 50;

/// A role in a project that comes with an invitation, as its row keeps it and answers tell it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRoleGiven {
    /// The project.
    pub project_id: ProjectId,
    /// The role.
    #[serde(serialize_with = "write_role", deserialize_with = "read_role")]
    pub role: ProjectRole,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn write_role<S: Serializer>(role: &ProjectRole, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(role.as_str())
}

fn read_role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ProjectRole, D::Error> {
    let word = String::deserialize(deserializer)?;
    ProjectRole::parse(&word).map_err(serde::de::Error::custom)
}

/// An invitation to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInvitation {
    /// To whom.
    pub email: String,
    /// The role it gives.
    pub role: OrgRole,
    /// The roles in projects it gives.
    pub project_roles: Vec<ProjectRoleGiven>,
}

impl TryFrom<&Value> for NewInvitation {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let email = f.required("email", email);
        let role = f.required("role", in_org);
        let project_roles = f.objects("project_roles", PROJECTS, |f| {
            let id = f.required("project_id", id);
            let role = f.required("role", in_project);
            id.zip(role).map(|(project_id, role)| ProjectRoleGiven { project_id, role })
        });
        let project_roles = project_roles.unwrap_or_default();
        f.finish(email.zip(role).map(|(email, role)| Self { email, role, project_roles }))
    }
}

/// Reads the token of an invitation's link.
///
/// # Errors
/// Every invalid field.
pub fn token(body: &Value) -> Result<Secret> {
    let mut f = Fields::of(body);
    let token = f.required("token", password::token);
    f.finish(token)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "01939f2e-7c00-7abc-8def-0123456789ab";

    fn read(roles: &Value) -> Result<NewInvitation> {
        NewInvitation::try_from(&json!({"email": "a@b.c", "role": "member", "project_roles": roles}))
    }

    #[test]
    fn roles_in_projects_are_kept_as_they_came() {
        let roles = json!([{"project_id": ID, "role": "editor"}]);
        let invitation = read(&roles).unwrap();
        assert_eq!(serde_json::to_value(&invitation.project_roles).unwrap(), roles);
        assert_eq!(serde_json::from_value::<Vec<ProjectRoleGiven>>(roles).unwrap(), invitation.project_roles);
        assert!(serde_json::from_value::<ProjectRoleGiven>(json!({"project_id": ID, "role": "owner"})).is_err());
        assert!(read(&Value::Null).unwrap().project_roles.is_empty());
    }

    #[test]
    fn projects_have_a_limit() {
        let roles = |count: usize| Value::Array(vec![json!({"project_id": ID, "role": "viewer"}); count]);
        assert!(read(&roles(PROJECTS)).is_ok());
        assert_eq!(read(&roles(PROJECTS + 1)).unwrap_err().details[0].field, "project_roles");
    }

    #[test]
    fn every_mistake_is_named() {
        let body = json!({"email": "a", "role": "viewer", "project_roles": [{"project_id": "x"}], "note": "hi"});
        let error = NewInvitation::try_from(&body).unwrap_err();
        let fields: Vec<_> = error.details.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(fields, ["email", "role", "project_roles[0].project_id", "project_roles[0].role", "note"]);
        assert_eq!(token(&json!({"token": "t"})).unwrap().0, "t");
        assert!(token(&json!({"token": ""})).is_err());
    }
}
