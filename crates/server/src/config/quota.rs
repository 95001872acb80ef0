//! `[quota.project]` and `[quota.organization]`: the limits that a new project and a new organization get.
//!
//! They apply once, at creation: an operator who changes them changes later projects and takes nothing from existing
//! ones. `PUT /api/v1/admin/projects/{id}/quota` and `/api/v1/admin/orgs/{id}/quota` change those.

use anyhow::{Result, ensure};
use berth_domain::identity::Limits;
use berth_domain::identity::limits::MOST;
use serde::{Deserialize, Deserializer};

/// Projects of a new organization, if the configuration does not say.
const PROJECTS: i64 = 100;

/// The limits set at creation.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// For a new project.
    pub project: Limits,
    /// For a new organization: bounds on the sum over its projects, and on their number.
    #[serde(deserialize_with = "organization")]
    pub organization: Limits,
    /// Organizations that a person may own, their own among them.
    pub organizations_per_person: i64,
}

impl Default for Quota {
    fn default() -> Self {
        let organization = Limits { projects: Some(PROJECTS), ..Limits::default() };
        Self { project: Limits::default(), organization, organizations_per_person: 10 }
    }
}

/// Reads the limits of an organization; an absent one has its default.
fn organization<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limits, D::Error> {
    let limits = Limits::deserialize(deserializer)?;
    Ok(Limits { projects: limits.projects.or(Some(PROJECTS)), ..limits })
}

impl Quota {
    pub(super) fn check(&self) -> Result<()> {
        for (of, limits) in [("project", &self.project), ("organization", &self.organization)] {
            for (name, limit) in limits.named() {
                ensure!((0..=MOST).contains(&limit.unwrap_or(0)), "quota.{of}.{name} must be 0 to {MOST}");
            }
        }
        ensure!(
            self.project.projects.is_none(),
            "quota.project.projects: projects are a limit of an organization; say quota.organization.projects"
        );
        let organizations = self.organizations_per_person;
        ensure!((0..=MOST).contains(&organizations), "quota.organizations_per_person must be 0 to {MOST}");
        Ok(())
    }
}
