//! Disks by what people call them.

use anyhow::Result;
use berth_client::{DataDisk, Page, ProjectClient, RootDisk};

use crate::id::is_id;
use crate::pick::Noun;

/// A data disk.
pub const DISK: Noun = Noun { one: "disk", list: "berth disk list" };
const ROOT_DISK: Noun = Noun { one: "root disk", list: "berth disk list --root" };

/// The data disk with a name or an id.
pub async fn find_data(project: &ProjectClient, text: &str) -> Result<DataDisk> {
    if is_id(text) {
        return Ok(project.disk(text).await?);
    }
    let all = Page::all(async |page| project.disks(page).await).await?;
    DISK.of(all, text, |disk| &disk.id, |disk| disk.name == text)
}

/// The root disk volume with a name or an id.
pub async fn find_root(project: &ProjectClient, text: &str) -> Result<RootDisk> {
    if is_id(text) {
        return Ok(project.root_disk(text).await?);
    }
    let all = Page::all(async |page| project.root_disks(page).await).await?;
    ROOT_DISK.of(all, text, |disk| &disk.id, |disk| disk.name == text)
}
