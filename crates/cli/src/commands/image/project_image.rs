//! Images that a project made of its disks.

use std::path::PathBuf;

use anyhow::Result;
use berth_client::{Exportable, NewProjectImage, Page, ProjectClient, ProjectImage};
use clap::Args;

use crate::commands::disk::export::save;
use crate::commands::disk::find_root;
use crate::commands::vm::find as find_vm;
use crate::context::Context;
use crate::failure::Failure;
use crate::id::belongs;
use crate::made;
use crate::output::{self, Table};
use crate::pick::{Noun, candidates};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;

/// Seconds to wait for an image: what a large disk holds takes a while to copy, twice.
const LONGEST: u64 = 3600;
const IMAGE: Noun = Noun { one: "image", list: "berth image list" };
/// The option for each field.
const WORDS: Words = &[("name", "NAME"), ("from_root_disk", "--from-disk")];

#[derive(Args)]
pub struct CreateArgs {
    /// Name for people
    name: String,
    /// Root disk, by name or id
    #[arg(long, value_name = "DISK", required_unless_present = "from_vm", conflicts_with = "from_vm")]
    from_disk: Option<String>,
    /// VM whose root disk it is made of, by name or id
    #[arg(long, value_name = "VM")]
    from_vm: Option<String>,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Makes an image.
pub async fn create(context: &Context, args: CreateArgs) -> Result<()> {
    let project = context.project()?;
    let from_root_disk = match (&args.from_disk, &args.from_vm) {
        (Some(disk), _) => find_root(&project, disk).await?.id,
        (None, Some(vm)) => {
            let vm = find_vm(&project, vm).await?;
            let none = || Failure::not_found(format!("The VM {} has no root disk.", vm.name));
            vm.root_disk.as_ref().ok_or_else(none)?.id.clone()
        }
        (None, None) => return Err(Failure::usage("Say of which disk: --from-disk DISK, or --from-vm VM")),
    };
    let request = NewProjectImage { from_root_disk, name: args.name };
    let mut image = project.create_image(&request).await.map_err(|error| retold(error, WORDS))?;
    if args.waiting.wanted(true) {
        let look = async |id: &str| project.image(id).await;
        image = made::wait(image, Some(args.waiting.longest(LONGEST)), context.is_quiet(), look).await?;
    }
    one(context, &image)
}

/// Saves one as a file.
pub async fn export(context: &Context, image: &ProjectImage, file: Option<PathBuf>) -> Result<()> {
    save(context, &context.project()?, (Exportable::Image(&image.id), &image.name), file).await
}

/// The project's own image with a name or an id; none where it is none of the project's, or there is no project.
pub async fn find(context: &Context, text: &str) -> Result<Option<ProjectImage>> {
    match context.project() {
        Ok(project) => find_in(&project, text).await,
        Err(_) => Ok(None),
    }
}

/// A project's own image with a name or an id; none where it is none of the project's.
async fn find_in(project: &ProjectClient, text: &str) -> Result<Option<ProjectImage>> {
    let found = Page::all(async |page| project.images_named(text, page).await).await?;
    let mut found = candidates(text, found, async |page| project.images(page).await).await?;
    if found.iter().all(|image| image.name != text) {
        found.retain(|image| image.id == text || belongs(&image.id, text));
    }
    if found.is_empty() {
        return Ok(None);
    }
    IMAGE.of(found, text, |image| &image.id, |image| image.name == text || image.id == text).map(Some)
}

/// The id of one of a project's own images in the place of its name, after the platform had no image of that id; none where
/// the project has none either.
pub async fn id_of(project: &ProjectClient, text: &str) -> Result<Option<String>> {
    Ok(find_in(project, text).await?.map(|own| own.id).filter(|id| id != text))
}

/// Shows one.
pub fn one(context: &Context, image: &ProjectImage) -> Result<()> {
    output::rows(context.look, image, |image| show(std::slice::from_ref(image)))
}

fn show(images: &[ProjectImage]) -> Table {
    let rows = images.iter().map(|image| {
        [
            image.name.clone(),
            image.status.clone(),
            image.login_user.clone(),
            format!("{} GiB", image.size_gb),
            output::age(&image.created_at),
            image.id.clone(),
            output::or_dash(image.message.as_deref()),
        ]
    });
    let header = ["NAME", "STATUS", "USER", "DISK", "AGE", "ID", "MESSAGE"];
    Table::new(header, rows, "No images. Make one: berth image create NAME --from-vm VM").cut()
}
