//! The only SQL of the VM service.
//!
//! A tenant's queries take a [`Tenant`], which only a checked scope yields: a query cannot forget whose
//! rows it may see. The worker's queries go by id, because it works for everybody.

pub mod disk;
pub mod event;
pub mod image;
pub mod operation;
pub mod usage;
pub mod vm;

use berth_domain::ids::{OrgId, ProjectId};

use crate::http::auth::Scope;

/// Whose rows a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The organization.
    pub org: OrgId,
    /// The project.
    pub project: ProjectId,
}

impl From<&Scope> for Tenant {
    fn from(scope: &Scope) -> Self {
        Self { org: scope.org, project: scope.project }
    }
}
