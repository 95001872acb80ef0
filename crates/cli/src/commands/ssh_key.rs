//! SSH keys that are stored to choose them by name for VMs: your own, or with `--project` those of a project. A program
//! with an API key has those of its project. A key has a name and an id; commands take both.

use std::path::{Path, PathBuf};

use anyhow::Result;
use berth_client::{Client, List, NewSshKey, Page, ProjectClient, SshKey};
use clap::Subcommand;

use crate::context::{Context, api_key};
use crate::failure::{self, Failure};
use crate::id::is_id;
use crate::output::{self, Table};
use crate::own_key;
use crate::page::PageArgs;
use crate::pick::Noun;
use crate::several::{Outcome, find_all};
use crate::typed::{Words, retold};

const KEY: Noun = Noun { one: "SSH key", list: "berth ssh-key list" };

/// The argument for each field.
const WORDS: Words = &[("name", "NAME"), ("public_key", "FILE")];

#[derive(Subcommand)]
pub enum SshKeyCommand {
    /// List your SSH keys, or with --project the project's
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Store an SSH key; VMs are made with it: berth vm create VM --ssh-key NAME
    Add {
        /// Name: small letters, digits and hyphens, at most 63
        name: String,
        /// File with the public key, or - for standard input; by default yours, or one that berth makes for you
        file: Option<PathBuf>,
    },
    /// Delete stored SSH keys; VMs that were made with them keep them
    #[command(visible_alias = "rm")]
    Delete {
        /// Names or ids
        #[arg(required = true)]
        ssh_keys: Vec<String>,
    },
}

/// Where keys are stored.
enum Place {
    Own(Client),
    Project(ProjectClient),
}

impl Place {
    fn of(context: &Context) -> Result<Self> {
        let is_own = context.typed_project().is_none() && api_key().is_none();
        Ok(if is_own { Self::Own(context.client.clone()) } else { Self::Project(context.project()?) })
    }

    async fn list(&self, page: Page) -> berth_client::Result<List<SshKey>> {
        match self {
            Self::Own(client) => client.own_ssh_keys(page).await,
            Self::Project(project) => project.ssh_keys(page).await,
        }
    }

    async fn create(&self, request: &NewSshKey) -> berth_client::Result<SshKey> {
        match self {
            Self::Own(client) => client.create_own_ssh_key(request).await,
            Self::Project(project) => project.create_ssh_key(request).await,
        }
    }

    async fn delete(&self, id: &str) -> berth_client::Result<()> {
        match self {
            Self::Own(client) => client.delete_own_ssh_key(id).await,
            Self::Project(project) => project.delete_ssh_key(id).await,
        }
    }

    async fn find(&self, text: &str) -> Result<SshKey> {
        let all = Page::all(async |page| self.list(page).await).await?;
        let is_named = |key: &SshKey| key.name == text || is_id(text) && key.id == text;
        KEY.of(all, text, |key| &key.id, is_named)
    }
}

/// Runs the typed command.
pub async fn run(context: &Context, command: SshKeyCommand) -> Result<()> {
    let place = Place::of(context)?;
    match command {
        SshKeyCommand::List { page } => output::list(context.look, &place.list(page.into()).await?, table),
        SshKeyCommand::Add { name, file } => {
            let public_key = own_key::read(&file.map_or_else(own_key::public, Ok)?)?;
            let made = place.create(&NewSshKey { name, public_key }).await;
            one(context, &made.map_err(|error| retold(error, WORDS))?)
        }
        SshKeyCommand::Delete { ssh_keys } => delete(context, &place, &ssh_keys).await,
    }
}

async fn delete(context: &Context, place: &Place, texts: &[String]) -> Result<()> {
    let keys = find_all(texts, async |text: &str| place.find(text).await).await?;
    let mut outcome = Outcome::of(keys.len(), context.look);
    for SshKey { name, id, .. } in keys {
        let deleted = place.delete(&id).await.map_err(Into::into);
        if outcome.of_one(&name, deleted).is_some() {
            output::done(context.look, &name, &id, &format!("{name} deleted"));
        }
    }
    outcome.end()
}

/// Keys as they were typed for a new VM: those that stand in files, and the ids of stored ones. A file wins over a stored
/// key of its name, and your own key over one of the project.
pub async fn chosen(
    context: &Context,
    project: &ProjectClient,
    texts: &[PathBuf],
) -> Result<(Vec<String>, Vec<String>)> {
    let (mut keys, mut ids) = (Vec::new(), Vec::new());
    for text in texts {
        if is_file(text) {
            keys.push(own_key::read(text)?);
        } else {
            ids.push(stored(context, project, &text.to_string_lossy()).await?);
        }
    }
    Ok((keys, ids))
}

/// Whether a file is meant; what looks like one is, though it is not there.
fn is_file(text: &Path) -> bool {
    text.is_file() || text == Path::new("-") || text.components().count() > 1 || text.extension().is_some()
}

async fn stored(context: &Context, project: &ProjectClient, text: &str) -> Result<String> {
    let own = api_key().is_none().then(|| Place::Own(context.client.clone()));
    for place in own.into_iter().chain([Place::Project(project.clone())]) {
        match place.find(text).await {
            Ok(key) => return Ok(key.id),
            Err(error) if failure::code(&error) == failure::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    let message = format!(
        "There is no file and no stored SSH key called '{text}'. List the keys: berth ssh-key list (--project PROJECT)"
    );
    Err(Failure::not_found(message))
}

fn table(keys: &[SshKey]) -> Table {
    let rows = keys.iter().map(|key| {
        [key.name.clone(), output::or_dash(key.fingerprint.as_deref()), output::age(&key.created_at), key.id.clone()]
    });
    Table::new(["NAME", "FINGERPRINT", "AGE", "ID"], rows, "No SSH keys. Store one: berth ssh-key add NAME")
}

fn one(context: &Context, key: &SshKey) -> Result<()> {
    output::record(context.look, key, |key| {
        vec![
            ("name", key.name.clone()),
            ("id", key.id.clone()),
            ("fingerprint", output::or_dash(key.fingerprint.as_deref())),
            ("key", key.public_key.clone()),
            ("created", output::time(&key.created_at)),
        ]
    })
}
