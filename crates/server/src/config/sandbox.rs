//! `[sandbox]`: deadlines and capacity of sandboxes.

use anyhow::{Result, ensure};
use berth_domain::sandbox::durable::Place;
use serde::{Deserialize, Deserializer};

/// How this host runs sandboxes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandbox {
    /// Deadline of `Provisioning`.
    pub provisioning_seconds: i64,
    /// Deadline of `Pausing`.
    pub pausing_seconds: i64,
    /// Deadline of `Resuming`.
    pub resuming_seconds: i64,
    /// Deadline of `Restoring`.
    pub restoring_seconds: i64,
    /// Deadline of a snapshot, counted from the beginning of its checkpoint.
    pub snapshot_seconds: i64,
    /// Deadline of a template: its build and its first boot.
    pub template_seconds: i64,
    /// How long building its disk may take.
    pub build_seconds: i64,
    /// How long a template's own commands may take until they are ready, after its boot.
    pub ready_seconds: i64,
    /// Templates that the service builds at the same time. An organization holds at most as many as it leaves free.
    pub builders: usize,
    /// Most MiB of an archive sent as the source of a template.
    pub upload_mb: i64,
    /// GiB of the disk that stay free: below that, nothing new begins, since the database lies on that disk, too.
    pub disk_reserve_gb: i64,
    /// Most GiB that a project may store in snapshots, templates, captured memories and uploads.
    pub project_stored_gb: i64,
    /// Most GiB that all projects of an organization may store together.
    pub organization_stored_gb: i64,
    /// Where what is to outlive its host is kept besides it.
    #[serde(deserialize_with = "place")]
    pub durable_in: Place,
    /// Registries at internal addresses from which images may be pulled, `host[:port]`.
    pub registries: Vec<String>,
    /// Those of them that speak without TLS.
    pub plain_registries: Vec<String>,
    /// Memory on offer for each byte of the host's: sandboxes share the pages that they do not write to.
    pub memory_overcommit: f64,
    /// Sandboxes that may run at the same time.
    pub max_sandboxes: i64,
    /// Number of warm machines, for recently used templates, some 45 MiB each; 0 for none. By default as many as fit
    /// into a thirtieth of the host's memory. Older files call it `spares`.
    #[serde(alias = "spares")]
    pub warm_machines: Option<usize>,
    /// Sandboxes that the workers handle at the same time.
    pub workers: usize,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self {
            provisioning_seconds: 120,
            pausing_seconds: 60,
            resuming_seconds: 60,
            restoring_seconds: 120,
            snapshot_seconds: 120,
            template_seconds: 3600,
            build_seconds: 1800,
            ready_seconds: 600,
            builders: 2,
            upload_mb: 2048,
            disk_reserve_gb: 2,
            project_stored_gb: 100,
            organization_stored_gb: 400,
            durable_in: Place::Hosts,
            registries: Vec::new(),
            plain_registries: Vec::new(),
            memory_overcommit: 4.0,
            max_sandboxes: 1000,
            warm_machines: None,
            workers: 32,
        }
    }
}

fn place<'de, D: Deserializer<'de>>(source: D) -> std::result::Result<Place, D::Error> {
    let wrong = |why| serde::de::Error::custom(format!("sandbox.durable_in {why}"));
    Place::parse(&String::deserialize(source)?).map_err(wrong)
}

impl Sandbox {
    /// Checks it; `has_store` is whether backups have a place.
    pub(super) fn check(&self, has_store: bool) -> Result<()> {
        ensure!(
            has_store || self.durable_in == Place::Hosts,
            "sandbox.durable_in is \"backups\", and backups have no place; name one with backups.folder or backups.s3"
        );
        let deadlines = [
            ("provisioning_seconds", self.provisioning_seconds),
            ("pausing_seconds", self.pausing_seconds),
            ("resuming_seconds", self.resuming_seconds),
            ("restoring_seconds", self.restoring_seconds),
            ("snapshot_seconds", self.snapshot_seconds),
            ("template_seconds", self.template_seconds),
            ("build_seconds", self.build_seconds),
            ("ready_seconds", self.ready_seconds),
        ];
        for (name, value) in deadlines {
            ensure!((1..=86_400).contains(&value), "sandbox.{name} must be from 1 to 86400");
        }
        let (build, whole) = (self.build_seconds, self.template_seconds);
        ensure!(build <= whole, "sandbox.build_seconds must be at most sandbox.template_seconds");
        ensure!(self.ready_seconds <= whole, "sandbox.ready_seconds must be at most sandbox.template_seconds");
        ensure!((1..=64).contains(&self.builders), "sandbox.builders must be from 1 to 64");
        let overcommit = self.memory_overcommit;
        ensure!(overcommit > 0.0 && overcommit <= 1000.0, "sandbox.memory_overcommit must be above 0, at most 1000");
        ensure!((1..=1_048_576).contains(&self.upload_mb), "sandbox.upload_mb must be from 1 to 1048576");
        ensure!((0..=1_048_576).contains(&self.disk_reserve_gb), "sandbox.disk_reserve_gb must be from 0 to 1048576");
        let stored =
            [("project_stored_gb", self.project_stored_gb), ("organization_stored_gb", self.organization_stored_gb)];
        for (name, most) in stored {
            ensure!((1..=1_048_576).contains(&most), "sandbox.{name} must be from 1 to 1048576");
        }
        ensure!((1..=1_000_000).contains(&self.max_sandboxes), "sandbox.max_sandboxes must be from 1 to 1000000");
        ensure!(self.warm_machines.is_none_or(|number| number <= 64), "sandbox.warm_machines must be at most 64");
        ensure!((1..=256).contains(&self.workers), "sandbox.workers must be from 1 to 256");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_with_backups_wants_a_place_of_theirs() {
        let read = |text: &str| toml::from_str::<Sandbox>(text);
        for (text, has_store, is_fine) in [
            ("", false, true),
            ("durable_in = \"hosts\"", false, true),
            ("durable_in = \"backups\"", true, true),
            ("durable_in = \"backups\"", false, false),
        ] {
            assert_eq!(read(text).expect("a section").check(has_store).is_ok(), is_fine, "{text} {has_store}");
        }
        let wrong = read("durable_in = \"elsewhere\"").expect_err("no such place").to_string();
        assert!(wrong.contains("must be one of: hosts backups"), "{wrong}");
    }
}
