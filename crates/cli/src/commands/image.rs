//! Images: the platform's, and those that a project made of its disks. Both are named by their ids, and a project's own by its
//! name, too, where the platform has no image of that id.

pub mod project_image;

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use berth_client::{Client, Image, ImageSource, List, NewImage, Page, ProjectClient, ProjectImage};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::file_name;
use crate::output::{self, Table};
use crate::progress::{Progress, Stage, watch};
use crate::several::{self, Doomed, find_all};
use crate::typed::{Words, retold};
use crate::wait::WaitArgs;
use crate::watch::ListArgs;

/// Most characters of an image's id.
const ID: usize = 40;
/// Seconds to wait for an image's removal.
const LONGEST: u64 = 120;
/// The option for each field; a file's id has another field than a URL's.
const WORDS: Words = &[
    ("id", "--id"),
    ("image_id", "--id"),
    ("name", "--name"),
    ("login_user", "--login-user"),
    ("sha256", "--sha256"),
    ("firmware", "--uefi"),
    ("url", "SOURCE"),
];

#[derive(Subcommand)]
pub enum ImageCommand {
    /// List images: the project's own, and the platform's
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one image
    #[command(visible_alias = "show")]
    Get {
        /// Id; name of one of the project's own
        image: String,
    },
    /// Make an image of a root disk, whose VM may run and goes on, and wait until it is ready
    Create(project_image::CreateArgs),
    /// Save one of the project's own images as a qcow2 file; what broke off goes on
    Export {
        /// Name or id
        image: String,
        /// File to write; NAME.qcow2 in this folder by default
        file: Option<PathBuf>,
    },
    /// Bring in an ordinary cloud image, qcow2 or raw, and wait until it is ready (administrators)
    Import(ImportArgs),
    /// Remove images: the project's own, or those of the platform that no disk is a clone of (administrators)
    #[command(visible_alias = "rm")]
    Delete {
        /// Ids; names of the project's own
        #[arg(required = true)]
        images: Vec<String>,
        #[command(flatten)]
        waiting: WaitArgs,
    },
}

#[derive(Args)]
pub struct ImportArgs {
    /// File on this machine, or URL for the service to download
    source: String,
    /// Id in requests; made from the source's name if absent
    #[arg(long)]
    id: Option<String>,
    /// Name for people
    #[arg(long)]
    name: Option<String>,
    /// The user who gets the SSH keys
    #[arg(long)]
    login_user: Option<String>,
    /// SHA-256 that the content must have
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,
    /// It boots by UEFI
    #[arg(long)]
    uefi: bool,
    #[command(flatten)]
    waiting: WaitArgs,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: ImageCommand) -> Result<()> {
    let client = &context.client;
    match command {
        ImageCommand::List(args) => {
            let project = context.project().ok();
            let list = async |page| listed(client, project.as_ref(), page).await;
            args.show(context.look, project.as_ref(), list, show).await
        }
        ImageCommand::Get { image } => match find(context, &image).await? {
            Found::Own(found) => project_image::one(context, &found),
            Found::Platform(found) => one(context, found),
        },
        ImageCommand::Create(args) => project_image::create(context, args).await,
        ImageCommand::Export { image, file } => export(context, &image, file).await,
        ImageCommand::Import(args) => one(context, import(context, args).await?),
        ImageCommand::Delete { images, waiting } => delete(context, &images, waiting).await,
    }
}

/// An image that somebody named.
enum Found {
    /// One of the platform's.
    Platform(Image),
    /// One of the project's own.
    Own(ProjectImage),
}

impl Found {
    fn doomed(self) -> Doomed {
        match self {
            Self::Platform(Image { id, .. }) => Doomed { name: id.clone(), id },
            Self::Own(ProjectImage { id, name, .. }) => Doomed { name, id },
        }
    }
}

/// The image that a text names, as for a new VM: the platform's with that id, else one of the project's own, by name or id.
async fn find(context: &Context, text: &str) -> Result<Found> {
    match context.client.image(text).await {
        Err(error) if error.status() == Some(404) => {}
        found => return Ok(Found::Platform(found?)),
    }
    let none = || Failure::not_found(format!("There is no image called '{text}'. List them: berth image list"));
    project_image::find(context, text).await?.map(Found::Own).ok_or_else(none)
}

async fn export(context: &Context, text: &str, file: Option<PathBuf>) -> Result<()> {
    match find(context, text).await? {
        Found::Own(image) => project_image::export(context, &image, file).await,
        Found::Platform(image) => {
            let own = project_image::find(context, text).await?;
            let how = own.map_or_else(
                || "Only the project's own are exported; list them: berth image list".to_owned(),
                |own| format!("The project's own of that name is exported by its id: berth image export {}", own.id),
            );
            Err(Failure::usage(format!("{} is an image of the platform. {how}", image.id)))
        }
    }
}

async fn delete(context: &Context, texts: &[String], waiting: WaitArgs) -> Result<()> {
    let found = find_all(texts, async |text: &str| find(context, text).await).await?;
    let id_of_own = |found: &Found| if let Found::Own(own) = found { Some(own.id.clone()) } else { None };
    let own: Vec<_> = found.iter().filter_map(id_of_own).collect();
    let project = if own.is_empty() { None } else { Some(context.project()?) };
    let project = |id: &str| project.as_ref().filter(|_| own.iter().any(|own| own == id));
    let client = &context.client;
    let ask = async |id: &str| match project(id) {
        Some(project) => project.delete_image(id).await,
        None => client.delete_image(id).await,
    };
    let look = async |id: &str| match project(id) {
        Some(project) => project.image(id).await.map(|image| image.status),
        None => client.image(id).await.map(|image| image.status),
    };
    several::delete(context, found.into_iter().map(Found::doomed).collect(), (waiting, LONGEST), ask, look).await
}

async fn import(context: &Context, args: ImportArgs) -> Result<Image> {
    let is_url = args.source.starts_with("http://") || args.source.starts_with("https://");
    let source = if is_url {
        ImageSource::Url(args.source.clone())
    } else {
        // Opens the file before sending anything, so that a typing error is reported as one.
        let file = std::fs::File::open(&args.source);
        file.with_context(|| format!("the file {} cannot be read", args.source))?;
        ImageSource::File(PathBuf::from(&args.source))
    };
    let image = NewImage {
        id: args.id.unwrap_or_else(|| file_name::slug_of(&args.source, ID)),
        name: args.name,
        login_user: args.login_user,
        sha256: args.sha256,
        firmware: args.uefi.then(|| "uefi".to_owned()),
    };
    let mut progress = Progress::new(context.is_quiet());
    progress.show(format!("{}: {}", image.id, if is_url { "asking for it" } else { "sending and converting" }));
    let started = context.client.import_image(&image, &source).await.map_err(|error| retold(error, WORDS))?;
    if args.waiting.wanted(true) {
        return ready(&context.client, started, args.waiting.most(), progress).await;
    }
    progress.finish();
    Ok(started)
}

/// Waits until the image is ready. Without a time it waits as long as the service goes on: nobody knows how long a
/// source takes.
async fn ready(client: &Client, image: Image, seconds: Option<u64>, progress: Progress) -> Result<Image> {
    let id = image.id.clone();
    let stage = |image: &Image| {
        let message = image.message.as_deref();
        match image.status.as_str() {
            "ready" => Ok(Stage::Over),
            "failed" => bail!("{id} failed: {}", message.unwrap_or_default()),
            status => Ok(Stage::Underway {
                shown: format!("{id}: {}", message.unwrap_or(status)),
                late: format!("{id} is still {status} after {} s", seconds.unwrap_or_default()),
            }),
        }
    };
    watch(progress, seconds, image, stage, async || Ok(client.image(&id).await?)).await
}

fn one(context: &Context, image: Image) -> Result<()> {
    output::rows(context.look, &Listed::Platform(image), |image| show(std::slice::from_ref(image)))
}

/// An image as the service tells of it.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    /// One of the platform's.
    Platform(Image),
    /// One of the project's own.
    Own(ProjectImage),
}

/// A page of the images that a project can use: its own before the platform's, as if they were one list.
async fn listed(client: &Client, project: Option<&ProjectClient>, page: Page) -> berth_client::Result<List<Listed>> {
    let Some(project) = project else {
        let List { data, pagination } = client.images(page).await?;
        return Ok(List { data: data.into_iter().map(Listed::Platform).collect(), pagination });
    };
    let List { data, mut pagination } = project.images(page).await?;
    let (limit, own) = (i64::from(page.limit), pagination.total_items);
    let mut data: Vec<_> = data.into_iter().map(Listed::Own).collect();
    // How many of the platform's come before this page, and the pages of theirs that it has a part of.
    let before = (i64::from(page.page - 1) * limit - own).max(0);
    let from = u32::try_from(before / limit).unwrap_or(u32::MAX).saturating_add(1);
    let first = client.images(Page { page: from, ..page }).await?;
    let platform = first.pagination.total_items;
    let mut others = first.data;
    if before % limit > 0 {
        others.extend(client.images(Page { page: from.saturating_add(1), ..page }).await?.data);
    }
    let (skipped, room) = (before % limit, limit - i64::try_from(data.len()).unwrap_or(limit));
    let [skipped, room] = [skipped, room].map(|count| usize::try_from(count).unwrap_or_default());
    data.extend(others.into_iter().skip(skipped).take(room).map(Listed::Platform));
    pagination.total_items = own + platform;
    pagination.total_pages = (pagination.total_items + limit - 1) / limit;
    Ok(List { data, pagination })
}

fn show(images: &[Listed]) -> Table {
    let gib = |size: i64| format!("{size} GiB");
    let rows = images.iter().map(|image| match image {
        Listed::Platform(image) => [
            image.id.clone(),
            image.name.clone(),
            image.status.clone(),
            image.login_user.clone(),
            gib(image.virtual_size_gb),
            output::age(&image.created_at),
            output::or_dash(image.message.as_deref()),
        ],
        Listed::Own(image) => [
            image.id.clone(),
            image.name.clone(),
            image.status.clone(),
            image.login_user.clone(),
            gib(image.virtual_size_gb.unwrap_or(image.size_gb)),
            output::age(&image.created_at),
            output::or_dash(image.message.as_deref()),
        ],
    });
    let header = ["ID", "NAME", "STATUS", "USER", "DISK", "AGE", "MESSAGE"];
    let none = "No images. Build one: script/quickstart, or import one: berth image import FILE";
    Table::new(header, rows, none).cut()
}
