//! `berth vm reinstall`: a root disk made anew.

use anyhow::Result;
use berth_client::ProjectClient;
use clap::Args;

use super::create::is_unknown_image;
use super::find::find;
use super::{known_hosts, show};
use crate::commands::image::project_image;
use crate::context::Context;
use crate::failure::Failure;
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::{progress, prompt};

/// Seconds to wait until it runs: as for a new one, and for the end of what runs.
const LONGEST: u64 = 900;

#[derive(Args)]
pub struct ReinstallArgs {
    /// Name or id
    vm: String,
    /// The image; by default the one that it has. `berth image list` lists them
    #[arg(long)]
    image: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// The option for each field.
const WORDS: Words = &[("image_id", "--image")];

pub async fn reinstall(context: &Context, project: &ProjectClient, args: ReinstallArgs) -> Result<()> {
    let vm = find(project, &args.vm).await?;
    let image = args.image.as_ref().unwrap_or(&vm.image_id);
    let name = &vm.name;
    let question = format!(
        "All that is on the root disk of {name} goes; data disks stay. Type {name} to reinstall it with {image}: "
    );
    if !args.yes && prompt::ask(&question)?.as_ref() != Some(name) {
        let text = format!("Nothing was reinstalled. To do it without being asked: berth vm reinstall {name} --yes");
        return Err(Failure::usage(text));
    }
    let mut asked = project.reinstall_vm(&vm.id, image).await;
    if is_unknown_image(&asked)
        && let Some(own) = project_image::id_of(project, image).await?
    {
        asked = project.reinstall_vm(&vm.id, &own).await;
    }
    let mut vm = asked.map_err(|error| retold(error, WORDS))?;
    known_hosts::forget(&vm)?;
    if args.waiting.wanted(false) {
        vm = progress::wait(project, &vm.id, "running", args.waiting.longest(LONGEST), context.is_quiet()).await?;
    }
    show::one(context, &vm)
}
