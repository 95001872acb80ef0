//! API keys of a project. One is named by its name, id or prefix.

use anyhow::Result;
use berth_client::{ApiKey, ChangeApiKey, MadeApiKey, NewApiKey, Page, ProjectClient};
use clap::{Args, Subcommand};

use crate::cli::PageArgs;
use crate::context::{API_KEY, Context};
use crate::pick::{is_id, only};
use crate::{output, span};

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the keys of the project
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Show one key; the secret is shown only when it is made
    #[command(visible_alias = "show")]
    Get {
        /// Name, id or prefix
        key: String,
    },
    /// Make a key
    Create(CreateArgs),
    /// Change name, scopes or end of a key
    Update(UpdateArgs),
    /// Revoke a key, at once
    #[command(visible_alias = "rm")]
    Revoke {
        /// Name, id or prefix
        key: String,
    },
    /// Make a successor of a key
    Rotate {
        /// Name, id or prefix
        key: String,
        /// How long the old one is good beside it, as 1h
        #[arg(long, default_value = "0s", value_name = "SPAN")]
        overlap: String,
        /// Print the key alone
        #[arg(long, short)]
        quiet: bool,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name
    name: String,
    /// What it is good for: vm, sandbox, inference; repeated
    #[arg(long = "scope", required = true, value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
    /// When it ends: 30d, or a time like 2030-01-31T12:00:00Z; by default never
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Print the key alone
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// Name, id or prefix
    key: String,
    /// New name
    #[arg(long, required_unless_present_any = ["scopes", "expires"])]
    name: Option<String>,
    /// All that it is good for from now on; repeated
    #[arg(long = "scope", value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
    /// When it ends: 30d, or a time like 2030-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
}

/// Does what was typed.
pub async fn run(context: &Context, command: KeyCommand) -> Result<()> {
    let project = context.project()?;
    match command {
        KeyCommand::List(page) => output::list(context.json, &project.api_keys(page.into()).await?, show),
        KeyCommand::Get { key } => one(context, find(&project, &key).await?),
        KeyCommand::Create(args) => {
            let expires_at = args.expires.as_deref().map(span::ahead).transpose()?;
            let request = NewApiKey { name: args.name, scopes: args.scopes, expires_at };
            made(context, &project.create_api_key(&request).await?, args.quiet)
        }
        KeyCommand::Update(args) => {
            let key = find(&project, &args.key).await?;
            let change = ChangeApiKey {
                name: args.name,
                scopes: (!args.scopes.is_empty()).then_some(args.scopes),
                expires_at: args.expires.as_deref().map(span::ahead).transpose()?,
            };
            one(context, project.update_api_key(&key.id, &change).await?)
        }
        KeyCommand::Revoke { key } => {
            let key = find(&project, &key).await?;
            project.revoke_api_key(&key.id).await?;
            if !context.json {
                println!("The key {} is revoked.", key.name);
            }
            Ok(())
        }
        KeyCommand::Rotate { key, overlap, quiet } => {
            let overlap = span::seconds(&overlap)?;
            let key = find(&project, &key).await?;
            made(context, &project.rotate_api_key(&key.id, overlap).await?, quiet)
        }
    }
}

/// The key of a name, an id or a prefix: of several with one name, the one that is active.
async fn find(project: &ProjectClient, text: &str) -> Result<ApiKey> {
    if is_id(text) {
        return Ok(project.api_key(text).await?);
    }
    let mut keys = Page::all(async |page| project.api_keys(page).await).await?;
    keys.retain(|key| key.name == text || key.prefix == text);
    if keys.iter().any(|key| key.status == "active") {
        keys.retain(|key| key.status == "active");
    }
    only(keys, "key", text, "berth key list")
}

/// Shows a key for the only time.
fn made(context: &Context, made: &MadeApiKey, quiet: bool) -> Result<()> {
    if context.json {
        return output::json(made);
    }
    if quiet {
        println!("{}", made.key);
        return Ok(());
    }
    one(context, made.api_key.clone())?;
    println!("\n{}\n", made.key);
    eprintln!(
        "The key is not shown again. A program uses it as {API_KEY}, with BERTH_URL, BERTH_ORG and BERTH_PROJECT."
    );
    Ok(())
}

fn one(context: &Context, key: ApiKey) -> Result<()> {
    output::print(context.json, &key, |key| show(std::slice::from_ref(key)))
}

fn show(keys: &[ApiKey]) {
    let rows = keys.iter().map(|k| {
        let used = k.last_used_at.as_deref().map_or_else(|| "never".into(), output::age);
        [
            k.name.clone(),
            k.status.clone(),
            k.scopes.join(","),
            k.prefix.clone(),
            used,
            k.expires_at.clone().unwrap_or_else(|| "never".into()),
            output::age(&k.created_at),
            k.id.clone(),
        ]
    });
    let header = ["NAME", "STATUS", "SCOPES", "PREFIX", "USED", "ENDS", "AGE", "ID"];
    output::table(header, rows, "No keys. Make one: berth key create NAME --scope vm");
}
