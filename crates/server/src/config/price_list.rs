//! Everything with a price, under the names that the ledger uses.

use berth_domain::gateway::Nano;
use berth_domain::resource_usage::Price;

use super::{Amount, Config, PlanPrice, Prices};
use crate::db::resource_usage::{DISK, SANDBOX, SNAPSHOT, plan_tariff};

impl Config {
    /// What an hour of everything costs, under the names that the ledger uses.
    pub fn price_list(&self) -> Vec<(String, Price)> {
        let Prices { disk_gb_hour, sandbox_vcpu_hour, sandbox_memory_gb_hour, sandbox_gpu_hour, snapshot_gb_hour } =
            self.prices;
        let stored = |amount: Amount| Price { disk_gb: amount.0, ..Price::default() };
        let dearest = self.catalog.plans.iter().map(|plan| plan.price.gpu_hour.0).max().unwrap_or(Nano(0));
        let gpu = sandbox_gpu_hour.map_or(dearest, |hour| hour.0);
        let (vcpu, memory_gb) = (sandbox_vcpu_hour.0, sandbox_memory_gb_hour.0);
        let sandbox = Price { vcpu, memory_gb, gpu, ..Price::default() };
        let plans = self.catalog.plans.iter().map(|plan| {
            let PlanPrice { vcpu_hour, memory_gb_hour, gpu_hour } = plan.price;
            let price = Price { vcpu: vcpu_hour.0, memory_gb: memory_gb_hour.0, gpu: gpu_hour.0, disk_gb: Nano(0) };
            (plan_tariff(&plan.id), price)
        });
        let others = [(DISK, stored(disk_gb_hour)), (SANDBOX, sandbox), (SNAPSHOT, stored(snapshot_gb_hour))];
        plans.chain(others.map(|(name, price)| (name.to_owned(), price))).collect()
    }
}
