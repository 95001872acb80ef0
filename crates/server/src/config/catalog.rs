//! The catalog: regions, machine sizes and plans on offer. Operators add to it.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PlanPrice;

/// What is on offer. A list that the file gives adds to the built-in one; the same id replaces it.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub struct Catalog {
    /// Where machines run.
    #[serde(deserialize_with = "with_defaults")]
    pub regions: Vec<Region>,
    /// Sizes of machines.
    #[serde(deserialize_with = "with_defaults")]
    pub vm_configs: Vec<VmConfig>,
    /// Pricing plans.
    #[serde(deserialize_with = "with_defaults")]
    pub plans: Vec<Plan>,
}

/// A place with an engine.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Id in requests.
    pub id: String,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// What runs its machines.
    #[serde(default = "qemu")]
    pub engine: String,
}

/// A size of machine.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmConfig {
    /// Id in requests.
    pub id: String,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
    /// Model of its GPUs, where it has any.
    #[serde(default)]
    pub gpu_model: Option<String>,
    /// Most GPU configurations of one machine.
    #[serde(default)]
    pub gpu_max: i64,
    /// Regions that offer it; empty means all.
    #[serde(default)]
    pub regions: Vec<String>,
}

/// A pricing plan.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Id in requests.
    pub id: String,
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// Machine sizes it is valid for; empty means all.
    #[serde(default)]
    pub vm_configs: Vec<String>,
    /// What an hour of its VMs costs; nothing where nobody says otherwise.
    #[serde(default)]
    pub price: PlanPrice,
}

fn qemu() -> String {
    "qemu".into()
}

trait Entry: Sized {
    fn id(&self) -> &str;
    fn built_in() -> Vec<Self>;
}

impl Entry for Region {
    fn id(&self) -> &str {
        &self.id
    }

    fn built_in() -> Vec<Self> {
        vec![Self { id: "local".into(), name: "This machine".into(), engine: qemu() }]
    }
}

impl Entry for VmConfig {
    fn id(&self) -> &str {
        &self.id
    }

    fn built_in() -> Vec<Self> {
        [("tiny", 1, 512), ("small", 1, 1024), ("medium", 2, 4096), ("large", 4, 8192)]
            .into_iter()
            .map(|(id, vcpu, memory_mb)| Self {
                id: id.into(),
                name: id.into(),
                vcpu,
                memory_mb,
                gpu_model: None,
                gpu_max: 0,
                regions: Vec::new(),
            })
            .collect()
    }
}

impl Entry for Plan {
    fn id(&self) -> &str {
        &self.id
    }

    fn built_in() -> Vec<Self> {
        let (id, name) = ("on-demand".into(), "On demand".into());
        vec![Self { id, name, vm_configs: Vec::new(), price: PlanPrice::default() }]
    }
}

fn with_defaults<'de, D: serde::Deserializer<'de>, T: Entry + Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    let given = Vec::<T>::deserialize(d)?;
    let mut all: Vec<T> = T::built_in().into_iter().filter(|b| given.iter().all(|g| g.id() != b.id())).collect();
    all.extend(given);
    Ok(all)
}

impl Default for Catalog {
    fn default() -> Self {
        Self { regions: Region::built_in(), vm_configs: VmConfig::built_in(), plans: Plan::built_in() }
    }
}

impl Catalog {
    pub(super) fn check(&self) -> Result<()> {
        for config in &self.vm_configs {
            ensure!((1..=256).contains(&config.vcpu), "vm_configs {}: vcpu must be from 1 to 256", config.id);
            ensure!(
                (64..=4_194_304).contains(&config.memory_mb),
                "vm_configs {}: memory_mb must be from 64 to 4194304",
                config.id
            );
            ensure!((0..=16).contains(&config.gpu_max), "vm_configs {}: gpu_max must be from 0 to 16", config.id);
            for region in &config.regions {
                ensure!(self.region(region).is_some(), "vm_configs {}: there is no region {region}", config.id);
            }
        }
        for region in &self.regions {
            ensure!(
                region.engine == "qemu",
                "regions {}: there is no engine {}; use \"qemu\"",
                region.id,
                region.engine
            );
        }
        for id in self.plans.iter().flat_map(|p| &p.vm_configs) {
            ensure!(self.vm_config(id).is_some(), "plans: there is no vm_config {id}");
        }
        Ok(())
    }

    /// The region of this id.
    pub fn region(&self, id: &str) -> Option<&Region> {
        self.regions.iter().find(|r| r.id == id)
    }

    /// The size of this id.
    pub fn vm_config(&self, id: &str) -> Option<&VmConfig> {
        self.vm_configs.iter().find(|c| c.id == id)
    }

    /// The plan of this id.
    pub fn plan(&self, id: &str) -> Option<&Plan> {
        self.plans.iter().find(|p| p.id == id)
    }
}

impl VmConfig {
    /// Whether a region offers it.
    pub fn offered_in(&self, region: &str) -> bool {
        self.regions.is_empty() || self.regions.iter().any(|r| r == region)
    }
}

impl Plan {
    /// Whether it is valid for a size.
    pub fn covers(&self, vm_config: &str) -> bool {
        self.vm_configs.is_empty() || self.vm_configs.iter().any(|c| c == vm_config)
    }
}
