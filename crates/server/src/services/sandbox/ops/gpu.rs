//! GPUs of sandboxes: which are on offer, and what one that has some cannot do.

use berth_domain::sandbox::request::CreateSandbox;
use berth_domain::{Code, Error, Result};

use crate::config::Catalog;
use crate::services::sandbox::store::sandbox::SandboxRow;

/// The model of the GPUs that are asked for, as a size names it; none where none are.
pub(super) fn model(catalog: &Catalog, request: &CreateSandbox) -> Result<Option<String>> {
    let count = request.gpu_config_count;
    if count == 0 {
        return Ok(None);
    }
    let on_offer = catalog.gpu_models();
    let Some(only) = on_offer.first() else {
        return Err(Error::field("gpu_config_count", "must be 0: no GPU is on offer here"));
    };
    let wanted = match &request.gpu_model {
        Some(model) => model.as_str(),
        None if on_offer.len() == 1 => only,
        None => {
            let models = on_offer.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Error::field("gpu_model", format!("is required where several are on offer: {models}")));
        }
    };
    let Some(size) = catalog.of_gpu_model(wanted).max_by_key(|config| config.gpu_max) else {
        let rule = "is not known; GET /api/v1/vm_configs lists the sizes, which name those that are";
        return Err(Error::field("gpu_model", rule));
    };
    if count > size.gpu_max {
        return Err(Error::field("gpu_config_count", format!("must be at most {}", size.gpu_max)));
    }
    Ok(size.gpu_model.clone())
}

/// Refuses to keep the memory of a sandbox with GPUs; `instead` says what can be done.
pub(super) fn refuse_memory(row: &SandboxRow, wanted: bool, instead: &str) -> Result<()> {
    if !wanted || row.keeps_memory() {
        return Ok(());
    }
    let message =
        format!("The memory of a sandbox with GPUs cannot be kept, since what its GPUs hold cannot. {instead}");
    Err(Error::new(Code::NotSupported, message))
}
