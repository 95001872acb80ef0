//! Finds the VM with a name or an id.

use anyhow::Result;
use berth_client::{Page, ProjectClient, Vm, VmFilter};

use crate::context::Context;
use crate::id::is_id;
use crate::pick::{Noun, candidates};

const VM: Noun = Noun { one: "VM", list: "berth vm list" };

/// Says that a new VM shares its name with others.
pub async fn tell_shared(context: &Context, project: &ProjectClient, name: &str) {
    let filter = VmFilter { name: Some(name.to_owned()), limit: Some(1), ..VmFilter::default() };
    let count = async || Ok(project.vms(filter).await?.pagination.total_items);
    VM.tell_shared(context, name, count).await;
}

/// The VM with a name or an id.
pub async fn find(project: &ProjectClient, text: &str) -> Result<Vm> {
    if is_id(text) {
        return Ok(project.vm(text).await?);
    }
    let filter = VmFilter { name: Some(text.to_owned()), ..VmFilter::default() };
    let page = |page: Page| VmFilter { page: Some(page.page), limit: Some(page.limit), ..VmFilter::default() };
    let found = project.vms(filter).await?.data;
    let found = candidates(text, found, async |at| project.vms(page(at)).await).await?;
    VM.of(found, text, |vm| &vm.id, |vm| vm.name == text)
}
