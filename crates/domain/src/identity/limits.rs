//! What a project or an organization may have and do: from the configuration and from administrators alike.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::{Fields, integer};

/// Highest limit.
pub const MOST: i64 = 1_000_000_000;

/// What may be had and done; `None` is no limit. Of an organization, the sum over its projects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// VMs.
    pub vms: Option<i64>,
    /// Virtual CPUs.
    pub vcpu: Option<i64>,
    /// Memory, in MiB.
    pub memory_mb: Option<i64>,
    /// GPUs of VMs and sandboxes.
    pub gpus: Option<i64>,
    /// Disks, root disk volumes among them.
    pub disks: Option<i64>,
    /// Disk, in GiB.
    pub disk_gb: Option<i64>,
    /// Sandboxes.
    pub sandboxes: Option<i64>,
    /// Networks.
    pub networks: Option<i64>,
    /// Projects; of an organization alone.
    pub projects: Option<i64>,
    /// Requests a minute.
    pub requests_per_minute: Option<i64>,
    /// Tokens of models a minute.
    pub tokens_per_minute: Option<i64>,
    /// Money for models, machines and disks a calendar month, in whole units.
    pub spend_per_month: Option<i64>,
}

impl Limits {
    /// Every limit with its name, as requests, rows and the configuration call it.
    pub fn named(&self) -> [(&'static str, Option<i64>); 12] {
        let Self {
            vms,
            vcpu,
            memory_mb,
            gpus,
            disks,
            disk_gb,
            sandboxes,
            networks,
            projects,
            requests_per_minute,
            tokens_per_minute,
            spend_per_month,
        } = *self;
        [
            ("vms", vms),
            ("vcpu", vcpu),
            ("memory_mb", memory_mb),
            ("gpus", gpus),
            ("disks", disks),
            ("disk_gb", disk_gb),
            ("sandboxes", sandboxes),
            ("networks", networks),
            ("projects", projects),
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
            ("spend_per_month", spend_per_month),
        ]
    }

    /// Limits by their names: what `limit` knows nothing of is not limited.
    ///
    /// # Errors
    /// The first of `limit`.
    pub fn by_name<E>(mut limit: impl FnMut(&'static str) -> Result<Option<i64>, E>) -> Result<Self, E> {
        Ok(Self {
            vms: limit("vms")?,
            vcpu: limit("vcpu")?,
            memory_mb: limit("memory_mb")?,
            gpus: limit("gpus")?,
            disks: limit("disks")?,
            disk_gb: limit("disk_gb")?,
            sandboxes: limit("sandboxes")?,
            networks: limit("networks")?,
            projects: limit("projects")?,
            requests_per_minute: limit("requests_per_minute")?,
            tokens_per_minute: limit("tokens_per_minute")?,
            spend_per_month: limit("spend_per_month")?,
        })
    }

    /// Reads what a project may have, of which the number of projects is no part.
    ///
    /// # Errors
    /// Every invalid field.
    pub fn of_project(body: &Value) -> Result<Self> {
        let limits = Self::try_from(body)?;
        if limits.projects.is_some() {
            let message = "is a limit of an organization; PUT /api/v1/admin/orgs/{org_id}/quota sets it";
            return Err(Error::field("projects", message));
        }
        Ok(limits)
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl TryFrom<&Value> for Limits {
    type Error = Error;

    fn try_from(body: &Value) -> Result<Self> {
        let mut f = Fields::of(body);
        let limits = Self::by_name(|name| Ok::<_, Error>(f.optional(name, integer(0, MOST))))?;
        f.finish(Some(limits))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_and_limits_belong_together() {
        let mut next = 0;
        let limits = Limits::by_name(|_| {
            next += 1;
            Ok::<_, ()>(Some(next))
        });
        let limits = limits.unwrap();
        let body: Value = limits.named().into_iter().map(|(name, limit)| (name.to_owned(), json!(limit))).collect();
        assert_eq!(Limits::try_from(&body).unwrap(), limits);
        assert_eq!(serde_json::from_value::<Limits>(body).unwrap(), limits);
        assert!(Limits::try_from(&json!({})).unwrap().is_empty() && !limits.is_empty());
    }

    #[test]
    fn a_project_holds_no_projects() {
        assert!(Limits::of_project(&json!({"vms": 1, "projects": null})).is_ok());
        assert_eq!(Limits::of_project(&json!({"projects": 1})).unwrap_err().details[0].field, "projects");
        assert!(Limits::try_from(&json!({"projects": 1})).is_ok());
    }

    #[test]
    fn limits_have_two_sides_and_known_names() {
        for (limit, fine) in [(0, true), (MOST, true), (-1, false), (MOST + 1, false)] {
            assert_eq!(Limits::try_from(&json!({"vms": limit})).is_ok(), fine, "{limit}");
        }
        let error = Limits::try_from(&json!({"wms": 1})).unwrap_err();
        assert_eq!(error.details[0].message, "no such field; vms may be meant");
    }
}
