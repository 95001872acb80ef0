//! The table of roles (contract, section 2), as one function.
//!
//! A caller stands to a project in two ways: by a role in its organization and by a role in the
//! project itself. Owners and admins of an organization administer all its projects; a member sees
//! only the projects he belongs to.

/// A role in an organization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OrgRole {
    /// Belongs to it and sees the projects he was added to.
    Member,
    /// Administers everything but the organization itself.
    Admin,
    /// Everything.
    Owner,
}

/// A role in a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProjectRole {
    /// Reads.
    Viewer,
    /// Reads and changes resources.
    Editor,
    /// Also manages keys and members.
    Admin,
}

macro_rules! role_text {
    ($type:ident { $($variant:ident = $text:literal),* }) => {
        impl $type {
            /// The role as it stands on the wire and in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }

            /// Parses the wire form.
            pub fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(concat!("must be one of:" $(, " ", $text)*).into()),
                }
            }
        }
    };
}

role_text!(OrgRole { Owner = "owner", Admin = "admin", Member = "member" });
role_text!(ProjectRole { Admin = "admin", Editor = "editor", Viewer = "viewer" });

/// What somebody wants to do. One variant for each row of the contract's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read resources, usage and quota of a project.
    ReadProject,
    /// Create, change and delete VMs, disks, sandboxes, snapshots and templates.
    ChangeResources,
    /// Read and manage API keys and project members, change the project.
    ManageProject,
    /// Create and delete projects, invite, manage members up to admin, read the audit log.
    ManageOrganization,
    /// Read the organization and its members.
    ReadOrganization,
    /// Change and delete the organization, manage owners.
    OwnOrganization,
}

/// Whether a caller with these roles may do it.
pub fn may(org: Option<OrgRole>, project: Option<ProjectRole>, action: Action) -> bool {
    let at_least = |role| org.is_some_and(|r| r >= role);
    let in_project = |role| at_least(OrgRole::Admin) || project.is_some_and(|r| r >= role);
    match action {
        Action::ReadProject => in_project(ProjectRole::Viewer),
        Action::ChangeResources => in_project(ProjectRole::Editor),
        Action::ManageProject => in_project(ProjectRole::Admin),
        Action::ManageOrganization => at_least(OrgRole::Admin),
        Action::ReadOrganization => org.is_some(),
        Action::OwnOrganization => at_least(OrgRole::Owner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_the_contract() {
        use Action::*;
        let actions =
            [ReadProject, ChangeResources, ManageProject, ManageOrganization, ReadOrganization, OwnOrganization];
        let member = Some(OrgRole::Member);
        let rows = [
            (None, None, [false; 6]),
            (member, None, [false, false, false, false, true, false]),
            (member, Some(ProjectRole::Viewer), [true, false, false, false, true, false]),
            (member, Some(ProjectRole::Editor), [true, true, false, false, true, false]),
            (member, Some(ProjectRole::Admin), [true, true, true, false, true, false]),
            (Some(OrgRole::Admin), None, [true, true, true, true, true, false]),
            (Some(OrgRole::Owner), None, [true; 6]),
        ];
        for (org, project, expected) in rows {
            for (action, want) in actions.into_iter().zip(expected) {
                assert_eq!(may(org, project, action), want, "{org:?} {project:?} {action:?}");
            }
        }
    }
}
