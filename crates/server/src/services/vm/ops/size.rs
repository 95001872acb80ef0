//! Sizes of VMs in the catalog.

use berth_domain::{Error, Result};

use crate::config::{Catalog, VmConfig};

/// The size with this id, if the region and the plan offer it with so many GPUs.
pub(super) fn of<'a>(catalog: &'a Catalog, id: &str, (region, plan): (&str, &str), gpus: i64) -> Result<&'a VmConfig> {
    let config = catalog
        .vm_config(id)
        .ok_or_else(|| Error::field("vm_config_id", "is not known; GET /api/v1/vm_configs lists what is"))?;
    if !config.offered_in(region) {
        return Err(Error::field("vm_config_id", "is not offered in this region"));
    }
    if gpus > config.gpu_max {
        let max = config.gpu_max;
        let rule = if max == 0 { "must be 0: this size has no GPU".into() } else { format!("must be at most {max}") };
        return Err(Error::field("gpu_config_count", rule));
    }
    let plan =
        catalog.plan(plan).ok_or_else(|| Error::field("plan_id", "is not known; GET /api/v1/plans lists what is"))?;
    if !plan.covers(&config.id) {
        return Err(Error::field("plan_id", "is not offered for this size"));
    }
    Ok(config)
}
