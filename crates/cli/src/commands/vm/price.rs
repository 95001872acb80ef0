//! What a VM will cost, told before it is made: by its plan, its size and its new disks.

use anyhow::Result;
use berth_client::{CreateVm, Plan, VmConfig};
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{self, Look, money};

/// Hours of a month: a twelfth of 365 days.
const MONTH: f64 = 730.0;

/// What one or several VMs cost, in the unit of the service's prices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    /// An hour in which they run.
    hour: f64,
    /// A month in which they run throughout.
    month: f64,
    /// Of an hour, what their new disks cost, whether they run or not.
    disks_hour: f64,
}

/// The price of a request for so many VMs, by what the service asks for.
pub async fn of(context: &Context, request: &CreateVm, count: u32) -> Result<Price> {
    let (plans, sizes) = (context.client.plans().await?.data, context.client.vm_configs().await?.data);
    let plan = plans.iter().find(|plan| plan.id == request.plan_id);
    let size = sizes.iter().find(|size| size.id == request.vm_config_id);
    let unknown =
        |what: &str, id: &str| Failure::usage(format!("There is no {what} '{id}'. berth catalog lists what is"));
    let plan = plan.ok_or_else(|| unknown("plan", &request.plan_id))?;
    let size = size.ok_or_else(|| unknown("size", &request.vm_config_id))?;
    Ok(price(plan, size, request, f64::from(count)))
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn price(plan: &Plan, size: &VmConfig, request: &CreateVm, count: f64) -> Price {
    let root = request.root_disk.create_disk_request.as_ref().map_or(0, |disk| disk.size_gb);
    let data = request.data_disks.iter().flat_map(|disks| &disks.create_disks).map(|disk| disk.size_gb);
    let disk_gb = root + data.sum::<i64>();
    let gpus = request.gpu_config_count.unwrap_or_default();
    let machine = f64::from(size.vcpu) * plan.price.vcpu_hour
        + size.memory_mb as f64 / 1024.0 * plan.price.memory_gb_hour
        + gpus as f64 * plan.price.gpu_hour;
    let disks_hour = count * disk_gb as f64 * plan.disk_gb_hour;
    let hour = count * machine + disks_hour;
    Price { hour, month: hour * MONTH, disks_hour }
}

impl Price {
    /// Tells a person who is about to make VMs; of what is free, nothing is told.
    pub fn tell(self) {
        if self.hour > 0.0 {
            let (hour, month) = (money(self.hour), money(self.month));
            let disks = if self.disks_hour > 0.0 {
                format!("; {} an hour of that for disks, which cost when it is off, too", money(self.disks_hour))
            } else {
                String::new()
            };
            eprintln!("berth: it costs {hour} an hour and {month} a month of {MONTH} hours, while it runs{disks}");
        }
    }

    /// Prints it instead of making anything.
    pub fn print(self, look: Look) -> Result<()> {
        output::record(look, &self, |price| {
            vec![
                ("an hour", money(price.hour)),
                ("a month", money(price.month)),
                ("of an hour, disks", money(price.disks_hour)),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use berth_client::{CreateRootDisk, DataDisks, NewVmDisk, RootDiskChoice};
    use serde_json::json;

    use super::*;

    #[test]
    fn processors_memory_gpus_and_new_disks_are_summed() {
        let plan: Plan = serde_json::from_value(json!({
            "id": "p", "name": "P", "price": {"vcpu_hour": 1.0, "memory_gb_hour": 0.5, "gpu_hour": 10.0}, "disk_gb_hour": 0.25,
        }))
        .expect("a plan");
        let size = json!({"id": "s", "vcpu": 2, "memory_mb": 4096, "gpu_model": null, "gpu_max": 1});
        let size: VmConfig = serde_json::from_value(size).expect("a size");
        let created = CreateRootDisk { name: "r".into(), size_gb: 20, image_id: Some("i".into()) };
        let data = NewVmDisk { name: "d".into(), kind: "block".into(), size_gb: 12 };
        let request = CreateVm {
            gpu_config_count: Some(1),
            root_disk: RootDiskChoice { create_disk_request: Some(created), ..RootDiskChoice::default() },
            data_disks: Some(DataDisks { create_disks: vec![data], ..DataDisks::default() }),
            ..CreateVm::default()
        };
        let one = price(&plan, &size, &request, 1.0);
        assert_eq!(one, Price { hour: 22.0, month: 16_060.0, disks_hour: 8.0 });
        let three = Price { hour: 66.0, month: 48_180.0, disks_hour: 24.0 };
        assert_eq!(price(&plan, &size, &request, 3.0), three);
        let bare = CreateVm::default();
        assert_eq!(price(&plan, &size, &bare, 1.0), Price { hour: 4.0, month: 2920.0, disks_hour: 0.0 });
    }
}
