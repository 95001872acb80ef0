//! `[prices]` and the prices of plans: what an hour costs, in the unit of the models' prices.

use anyhow::Result;
use berth_domain::gateway::Nano;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

/// An amount of money; files and answers write it as a number of units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount(pub Nano);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let amount = Nano::of_price(f64::deserialize(d)?);
        amount.map(Self).map_err(|rule| D::Error::custom(format!("a price {rule}")))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_f64(self.0.units())
    }
}

/// What an hour of a plan's VMs costs, in the unit of the models' prices.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PlanPrice {
    /// Of a virtual CPU.
    #[schema(value_type = f64)]
    pub vcpu_hour: Amount,
    /// Of a GiB of memory.
    #[schema(value_type = f64)]
    pub memory_gb_hour: Amount,
    /// Of a GPU.
    #[schema(value_type = f64)]
    pub gpu_hour: Amount,
}

/// What an hour of everything without a plan costs; free by default.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prices {
    /// Of a GiB of a root disk volume or a data disk.
    pub disk_gb_hour: Amount,
    /// Of a virtual CPU of a sandbox.
    pub sandbox_vcpu_hour: Amount,
    /// Of a GiB of memory of a sandbox.
    pub sandbox_memory_gb_hour: Amount,
    /// Of a GPU of a sandbox; by default what a GPU costs in the dearest plan.
    pub sandbox_gpu_hour: Option<Amount>,
    /// Of a GiB that a sandbox's snapshot takes.
    pub snapshot_gb_hour: Amount,
}

#[cfg(test)]
mod tests {
    use berth_domain::resource_usage::Price;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config> {
        Ok(toml::from_str(text)?)
    }

    #[test]
    fn prices_are_read_and_free_where_nothing_is_said() {
        let config = parse(
            "[prices]\ndisk_gb_hour = 0.0001\nsandbox_vcpu_hour = 1\n[[plans]]\nid = \"big\"\n\
             price = { vcpu_hour = 0.01, memory_gb_hour = 0.005, gpu_hour = 1000000 }\n",
        )
        .unwrap();
        let list = config.price_list();
        let price = |name: &str| list.iter().find(|(known, _)| known == name).unwrap().1;
        let big =
            Price { vcpu: Nano(10_000_000), memory_gb: Nano(5_000_000), gpu: Nano(10_i64.pow(15)), disk_gb: Nano(0) };
        assert_eq!(price("plan:big"), big);
        assert_eq!(price("plan:on-demand"), Price::default());
        assert_eq!(price("disk"), Price { disk_gb: Nano(100_000), ..Price::default() });
        let sandbox = Price { vcpu: Nano(10_i64.pow(9)), ..Price::default() };
        assert_eq!(price("sandbox"), Price { gpu: big.gpu, ..sandbox }, "a GPU is as dear as in a plan");
        let free =
            parse("[prices]\nsandbox_gpu_hour = 0\n[[plans]]\nid = \"big\"\nprice = { gpu_hour = 2 }\n").unwrap();
        assert!(free.price_list().iter().any(|(name, price)| name == "sandbox" && *price == Price::default()));
        assert_eq!(price("snapshot"), Price::default());
    }

    #[test]
    fn prices_have_bounds_and_known_names() {
        let plan = |price: &str| parse(&format!("[[plans]]\nid = \"a\"\nprice = {{ {price} }}\n"));
        for good in ["vcpu_hour = 0", "vcpu_hour = 1000000", "gpu_hour = 0.000000001", ""] {
            plan(good).unwrap();
        }
        for bad in ["vcpu_hour = -0.1", "vcpu_hour = 1000000.1", "vcpu_hour = nan", "gpu_hour = \"1\"", "cpu_hour = 1"]
        {
            assert!(plan(bad).is_err(), "{bad}");
        }
        for bad in ["disk_gb_hour = -1", "disk_hour = 1"] {
            assert!(parse(&format!("[prices]\n{bad}\n")).is_err(), "{bad}");
        }
    }
}
