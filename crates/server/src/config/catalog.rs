//! The catalog: regions, machine sizes and plans on offer. Operators add to it.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use berth_domain::host::gpu::Gpu;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PlanPrice;

/// Most GPUs of a machine.
const MOST_GPUS: i64 = 16;
/// What is left of a GPU's share of a host for machines that have none, as one part of so many.
const LEFT: i64 = 4;

/// What a machine with a GPU has of the host's processors and memory, where no operator says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Virtual CPUs.
    pub vcpu: i64,
    /// Memory, in MiB.
    pub memory_mb: i64,
}

impl Share {
    /// Three quarters of an equal share for each GPU that can be handed out, whole or in parts; memory in whole GiB. At least
    /// one of each.
    pub fn of(cores: i64, memory_mb: i64, gpus: &[Gpu]) -> Self {
        let whole = |gpu: &Gpu| gpu.part_of.map_or(gpu.address, |whole| whole.address);
        let count = gpus.iter().filter(|gpu| gpu.can_be_had()).map(whole).collect::<BTreeSet<_>>().len();
        let parts = LEFT * i64::try_from(count).unwrap_or(i64::MAX / LEFT).max(1);
        let share = |all: i64| all.saturating_mul(LEFT - 1) / parts;
        Self { vcpu: share(cores).clamp(1, 256), memory_mb: (share(memory_mb) / 1024).clamp(1, 4096) * 1024 }
    }

    /// What one of so many parts of a GPU has of that; at least one of each.
    fn of_part(self, parts: u32) -> Self {
        let parts = i64::from(parts.max(1));
        Self { vcpu: (self.vcpu / parts).max(1), memory_mb: (self.memory_mb / 1024 / parts).max(1) * 1024 }
    }
}

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
    /// Model of its GPUs, where it has any: its id, `nvidia-l40s`, or its name.
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
            ensure!(
                (0..=MOST_GPUS).contains(&config.gpu_max),
                "vm_configs {}: gpu_max must be from 0 to {MOST_GPUS}",
                config.id
            );
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

    /// The same, and a size for each model of GPU of a host that can be handed out, whole or a part, called by the model's
    /// id. A size that is called so already stays as it is. It has the processors and memory of one GPU's share, or of that
    /// part of it. A machine has one part at most where no operator says otherwise: most of NVIDIA's kinds can be had only
    /// alone ("Virtual GPU Software User Guide", multiple vGPUs in one VM).
    #[must_use]
    pub fn with_gpus(&self, gpus: &[Gpu], share: Share) -> Self {
        let mut catalog = self.clone();
        for gpu in gpus.iter().filter(|gpu| gpu.unavailable.is_none()) {
            let of_model = gpus.iter().filter(|other| other.unavailable.is_none() && other.model == gpu.model).count();
            let share = gpu.part_of.map_or(share, |whole| share.of_part(whole.parts));
            catalog.offer(&gpu.model, &gpu.name, share, of_model);
        }
        for kind in gpus.iter().flat_map(Gpu::offered) {
            catalog.offer(&kind.model, &kind.name, share.of_part(kind.most), 1);
        }
        catalog
    }

    /// Adds a size for a model of GPUs, unless there is one that is called so.
    fn offer(&mut self, model: &str, name: &str, share: Share, most: usize) {
        if self.vm_config(model).is_some() {
            return;
        }
        self.vm_configs.push(VmConfig {
            id: model.to_owned(),
            name: name.to_owned(),
            vcpu: share.vcpu,
            memory_mb: share.memory_mb,
            gpu_model: Some(model.to_owned()),
            gpu_max: i64::try_from(most).unwrap_or(MOST_GPUS).min(MOST_GPUS),
            regions: Vec::new(),
        });
    }

    /// The region of this id.
    pub fn region(&self, id: &str) -> Option<&Region> {
        self.regions.iter().find(|r| r.id == id)
    }

    /// The size of this id.
    pub fn vm_config(&self, id: &str) -> Option<&VmConfig> {
        self.vm_configs.iter().find(|c| c.id == id)
    }

    /// Whether anybody can have a size: in a region, by a plan.
    pub fn offers(&self, config: &VmConfig) -> bool {
        self.regions.iter().any(|region| config.offered_in(&region.id))
            && self.plans.iter().any(|plan| plan.covers(&config.id))
    }

    /// Sizes that have GPUs of a model, by its id or name, or by the size's.
    pub fn of_gpu_model<'a>(&'a self, model: &'a str) -> impl Iterator<Item = &'a VmConfig> {
        let names = move |config: &&VmConfig| [&config.id, &config.name].into_iter().any(|name| name == model);
        let has = |config: &&VmConfig| config.gpu_max > 0 && config.gpu_model.is_some() && self.offers(config);
        let with = self.vm_configs.iter().filter(has);
        with.filter(move |config| config.gpu_model.as_deref() == Some(model) || names(config))
    }

    /// Models of GPUs on offer, each once, as sizes name them.
    pub fn gpu_models(&self) -> BTreeSet<&str> {
        let with = self.vm_configs.iter().filter(|config| config.gpu_max > 0 && self.offers(config));
        with.filter_map(|config| config.gpu_model.as_deref()).collect()
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

#[cfg(test)]
mod tests {
    use berth_domain::host::gpu::{Kind, Place, Whole};

    use super::*;

    fn gpu(model: &str, unavailable: Option<&str>) -> Gpu {
        let address = "0000:01:00.0".parse().unwrap();
        Gpu {
            address,
            model: model.into(),
            name: model.to_uppercase(),
            ids: String::new(),
            group: Some(1),
            numa_node: None,
            functions: vec![address],
            driver: None,
            unavailable: unavailable.map(Into::into),
            part_of: None,
            kinds: Vec::new(),
            parts: Vec::new(),
        }
    }

    fn at(bus: usize, gpu: Gpu) -> Gpu {
        Gpu { address: format!("0000:{bus:02x}:00.0").parse().unwrap(), ..gpu }
    }

    #[test]
    fn a_gpu_is_on_offer_where_a_region_and_a_plan_have_its_size() {
        let mut catalog = Catalog::default();
        let with =
            VmConfig { id: "big".into(), gpu_model: Some("a100".into()), gpu_max: 1, ..catalog.vm_configs[0].clone() };
        catalog.vm_configs.push(with);
        let is_offered = |catalog: &Catalog| {
            assert_eq!(catalog.of_gpu_model("a100").count(), catalog.gpu_models().len());
            catalog.gpu_models().contains("a100")
        };
        assert!(is_offered(&catalog));
        let (size, mut elsewhere, mut planless) = (catalog.vm_configs.len() - 1, catalog.clone(), catalog.clone());
        elsewhere.vm_configs[size].regions = vec!["elsewhere".into()];
        assert!(!is_offered(&elsewhere));
        elsewhere.vm_configs[size].regions.push(catalog.regions[0].id.clone());
        assert!(is_offered(&elsewhere));
        planless.plans.iter_mut().for_each(|plan| plan.vm_configs = vec![catalog.vm_configs[0].id.clone()]);
        assert!(!is_offered(&planless));
        planless.plans[0].vm_configs.push("big".into());
        assert!(is_offered(&planless));
    }

    #[test]
    fn a_part_of_a_gpu_is_a_size_of_its_own() {
        let kind = |id: &str, most, places: usize| Kind {
            id: id.parse().unwrap(),
            model: format!("nvidia-a100-{id}"),
            name: id.into(),
            is_mediated: true,
            most,
            places: vec![Place { at: "0000:41:00.0".parse().unwrap(), free: 1 }; places],
        };
        let kinds = vec![kind("1-5c", 7, 1), kind("3-20c", 2, 1), kind("7-40c", 1, 0)];
        let parts = Gpu { kinds, ..gpu("a100", Some("handed out in parts")) };
        let whole = Whole { address: "0000:61:00.0".parse().unwrap(), parts: 2 };
        let half = |bus| at(bus, Gpu { part_of: Some(whole), ..gpu("mi210-1-2", None) });
        let gpus = [parts, at(2, half(2)), half(3)];
        let share = Share::of(128, 512 << 10, &gpus);
        assert_eq!((share.vcpu, share.memory_mb), (48, 192 << 10), "of two GPUs");
        let catalog = Catalog::default().with_gpus(&gpus, share);
        let told: Vec<_> = catalog.vm_configs[4..]
            .iter()
            .map(|config| (config.id.as_str(), config.vcpu, config.memory_mb >> 10, config.gpu_max))
            .collect();
        assert_eq!(told, [("mi210-1-2", 24, 96, 2), ("nvidia-a100-1-5c", 6, 27, 1), ("nvidia-a100-3-20c", 24, 96, 1)]);
        assert_eq!(share.of_part(1000), Share { vcpu: 1, memory_mb: 1024 });
    }

    #[test]
    fn a_gpu_s_share_is_three_quarters_in_whole_gib() {
        let gpus = |count: usize| (0..count).map(|bus| at(bus, gpu("l4", None))).collect::<Vec<_>>();
        let share = |cores, memory_mb, count| {
            let Share { vcpu, memory_mb } = Share::of(cores, memory_mb, &gpus(count));
            (vcpu, memory_mb)
        };
        assert_eq!(share(128, 1 << 20, 8), (12, 96 << 10));
        assert_eq!((share(1, 512, 2), share(1, 2048, 1)), ((1, 1024), (1, 1024)));
        assert_eq!((share(4096, 1 << 30, 1), share(4, 8192, 0)), ((256, 4096 << 10), (3, 6144)));
        let broken = [gpu("l4", None), at(2, gpu("l4", Some("broken")))];
        assert_eq!(Share::of(4, 8192, &broken).vcpu, 3, "what nobody can have takes no share");
    }

    #[test]
    fn each_model_that_can_be_handed_out_is_a_size_unless_an_operator_made_one() {
        let share = Share { vcpu: 3, memory_mb: 4096 };
        let all =
            [gpu("l4", None), gpu("a10", Some("off")), gpu("l4", None), gpu("l4", Some("off")), gpu("mine", None)];
        let mut before = Catalog::default();
        before.vm_configs.push(VmConfig { id: "mine".into(), gpu_max: 7, ..before.vm_configs[0].clone() });
        let catalog = before.with_gpus(&all, share);
        let ids: Vec<_> = catalog.vm_configs.iter().map(|config| config.id.as_str()).collect();
        assert_eq!(ids, ["tiny", "small", "medium", "large", "mine", "l4"]);
        let found = catalog.vm_config("l4").unwrap();
        let told = (found.vcpu, found.memory_mb, found.gpu_max, found.gpu_model.as_deref(), found.name.as_str());
        assert_eq!(told, (3, 4096, 2, Some("l4"), "L4"));
        assert_eq!(catalog.vm_config("mine").unwrap().gpu_max, 7);
        let many = vec![gpu("l4", None); 17];
        assert_eq!(before.with_gpus(&many, share).vm_config("l4").unwrap().gpu_max, MOST_GPUS);
        assert!(catalog.check().is_ok() && before.with_gpus(&[], share).vm_configs.len() == 5);
    }
}
