//! API keys of a project. A key has a name, an id and a prefix; commands take all three.

use anyhow::{Result, ensure};
use berth_client::{ApiKey, ChangeApiKey, MadeApiKey, NewApiKey, Page, ProjectClient};
use berth_domain::e2b;
use clap::{Args, Subcommand};
use serde_json::json;

use crate::context::{API_KEY, Context};
use crate::id::is_id;
use crate::output::{self, Table};
use crate::page::PageArgs;
use crate::pick::Noun;
use crate::several::{Outcome, find_all};
use crate::span;
use crate::typed::{Words, retold};

const KEY: Noun = Noun { one: "key", list: "berth key list" };

/// The option for each field of a new key.
const NEW: Words =
    &[("name", "NAME"), ("scopes", "--scope"), ("expires_at", "--expires"), ("source_networks", "--from")];
/// The option for each field of a change.
const CHANGES: Words =
    &[("name", "--name"), ("scopes", "--scope"), ("expires_at", "--expires"), ("source_networks", "--from")];
/// The option for each field of a rotation.
const ROTATION: Words = &[("overlap_seconds", "--overlap")];
/// The scope that E2B's SDKs want of a key.
const SANDBOX: &str = "sandbox";
/// The word for every network.
const ANYWHERE: &str = "anywhere";

#[derive(Subcommand)]
pub enum KeyCommand {
    /// List the keys of the project
    #[command(visible_alias = "ls")]
    List(PageArgs),
    /// Show one key; its secret is only shown when it is made
    #[command(visible_alias = "show")]
    Get {
        /// Name, id or prefix
        key: String,
    },
    /// Make a key
    Create(CreateArgs),
    /// Change name, scopes, networks or expiry of a key
    Update(UpdateArgs),
    /// Revoke keys, at once
    #[command(visible_alias = "rm")]
    Revoke {
        /// Names, ids or prefixes
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Replace a key by a new one
    Rotate {
        /// Name, id or prefix
        key: String,
        /// How long the old key stays valid beside the new one, as 1h
        #[arg(long, default_value = "0s", value_name = "SPAN")]
        overlap: String,
        /// Print only the key
        #[arg(long, short)]
        quiet: bool,
    },
}

#[derive(Args)]
pub struct CreateArgs {
    /// Name
    name: String,
    /// What it may be used for: vm, sandbox, inference; repeated
    #[arg(long = "scope", required = true, value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
    /// When it expires: 30d, or a time like 2030-01-31T12:00:00Z; by default never
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// Network or address that it may be used from, as 198.51.100.0/24; repeated; by default everywhere
    #[arg(long = "from", value_delimiter = ',', value_name = "NETWORK")]
    networks: Vec<String>,
    /// Print only the key
    #[arg(long, short)]
    quiet: bool,
    /// Print what E2B's SDKs read, for a shell: eval "$(berth key create NAME --scope sandbox --e2b)"
    #[arg(long, conflicts_with = "quiet")]
    e2b: bool,
    /// Print what clients of the Model Context Protocol read, as .mcp.json of a project
    #[arg(long, conflicts_with_all = ["quiet", "e2b"])]
    mcp: bool,
}

#[derive(Args)]
pub struct UpdateArgs {
    /// Name, id or prefix
    key: String,
    /// New name
    #[arg(long, required_unless_present_any = ["scopes", "expires", "networks"])]
    name: Option<String>,
    /// All that it may be used for from now on; repeated
    #[arg(long = "scope", value_delimiter = ',', value_name = "SCOPE")]
    scopes: Vec<String>,
    /// When it expires: 30d, or a time like 2030-01-31T12:00:00Z
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// All networks and addresses from which it may be used; repeated; 'anywhere' allows all
    #[arg(long = "from", value_delimiter = ',', value_name = "NETWORK")]
    networks: Vec<String>,
}

/// Runs the typed command.
pub async fn run(context: &Context, command: KeyCommand) -> Result<()> {
    let project = context.project()?;
    match command {
        KeyCommand::List(page) => output::list(context.look, &project.api_keys(page.into()).await?, show),
        KeyCommand::Get { key } => one(context, find(&project, &key).await?),
        KeyCommand::Create(args) => {
            ensure!(!args.e2b || args.scopes.iter().any(|scope| scope == SANDBOX), "--e2b goes with --scope {SANDBOX}");
            let expires_at = args.expires.as_deref().map(span::ahead).transpose()?;
            let request =
                NewApiKey { name: args.name, scopes: args.scopes, expires_at, source_networks: args.networks };
            let key = project.create_api_key(&request).await.map_err(|error| retold(error, NEW))?;
            // Prints the key first: it is shown only this once.
            match (args.e2b, args.mcp) {
                (true, _) => variables(context, &key),
                (_, true) => servers(context, &key),
                _ => made(context, &key, args.quiet),
            }?;
            tell_shared(context, &project, &request.name).await;
            Ok(())
        }
        KeyCommand::Update(args) => {
            let key = find(&project, &args.key).await?;
            let change = ChangeApiKey {
                name: args.name,
                scopes: (!args.scopes.is_empty()).then_some(args.scopes),
                expires_at: args.expires.as_deref().map(span::ahead).transpose()?,
                source_networks: networks(args.networks),
            };
            one(context, project.update_api_key(&key.id, &change).await.map_err(|error| retold(error, CHANGES))?)
        }
        KeyCommand::Revoke { keys } => revoke(context, &project, &keys).await,
        KeyCommand::Rotate { key, overlap, quiet } => {
            let overlap = span::seconds(&overlap)?;
            let key = find(&project, &key).await?;
            let rotated = project.rotate_api_key(&key.id, overlap).await;
            made(context, &rotated.map_err(|error| retold(error, ROTATION))?, quiet)
        }
    }
}

async fn revoke(context: &Context, project: &ProjectClient, texts: &[String]) -> Result<()> {
    let keys = find_all(texts, async |text: &str| find(project, text).await).await?;
    let mut outcome = Outcome::of(keys.len(), context.look);
    for ApiKey { name, id, .. } in keys {
        let answer = project.revoke_api_key(&id).await.map_err(Into::into);
        if outcome.of_one(&name, answer).is_some() {
            output::done(context.look, &name, &id, &format!("The key {name} is revoked."));
        }
    }
    outcome.end()
}

/// Says that a new key shares its name with other active ones.
async fn tell_shared(context: &Context, project: &ProjectClient, name: &str) {
    let count = async || {
        let keys = Page::all(async |page| project.api_keys(page).await).await?;
        Ok(keys.iter().map(|key| i64::from(key.name == name && key.status == "active")).sum())
    };
    KEY.tell_shared(context, name, count).await;
}

/// The typed networks, if any.
fn networks(typed: Vec<String>) -> Option<Vec<String>> {
    match typed.as_slice() {
        [] => None,
        [word] if word == ANYWHERE => Some(Vec::new()),
        _ => Some(typed),
    }
}

/// The key with a name, an id or a prefix: of several with one name, the active one.
async fn find(project: &ProjectClient, text: &str) -> Result<ApiKey> {
    if is_id(text) {
        return Ok(project.api_key(text).await?);
    }
    let mut keys = Page::all(async |page| project.api_keys(page).await).await?;
    let is_called = |key: &ApiKey| key.name == text || key.prefix == text;
    if keys.iter().any(|key| is_called(key) && key.status == "active") {
        keys.retain(|key| key.status == "active");
    }
    KEY.of(keys, text, |key| &key.id, is_called)
}

/// Prints what E2B's SDKs read, so that a shell takes it: with the key in the form that all of them take.
fn variables(context: &Context, made: &MadeApiKey) -> Result<()> {
    let (key, base) = (e2b::key::written(&made.key), context.client.base());
    let pairs = [("E2B_API_KEY", key), ("E2B_API_URL", format!("{base}/e2b")), ("E2B_SANDBOX_URL", base.to_owned())];
    if context.look.is_json() {
        return output::json(&std::collections::BTreeMap::from(pairs));
    }
    for (name, value) in pairs {
        println!("export {name}={value}");
    }
    Ok(())
}

/// Prints where the tools for agents are and the key for them, in the form that most clients read.
fn servers(context: &Context, made: &MadeApiKey) -> Result<()> {
    let headers = json!({"Authorization": format!("Bearer {}", made.key)});
    let server = json!({"type": "http", "url": format!("{}/mcp", context.client.base()), "headers": headers});
    output::json(&json!({"mcpServers": {"berth": server}}))
}

/// Shows a new key, for the only time.
fn made(context: &Context, made: &MadeApiKey, quiet: bool) -> Result<()> {
    if context.look.is_json() {
        return output::json(made);
    }
    if quiet {
        println!("{}", made.key);
        return Ok(());
    }
    one(context, made.api_key.clone())?;
    if context.look.is_for_people() {
        println!("\n{}\n", made.key);
    } else {
        eprintln!("{}", made.key);
    }
    eprintln!("The key is not shown again. A program uses it as {API_KEY}, with BERTH_URL; it knows its project.");
    Ok(())
}

fn one(context: &Context, key: ApiKey) -> Result<()> {
    output::rows(context.look, &key, |key| show(std::slice::from_ref(key)))
}

fn show(keys: &[ApiKey]) -> Table {
    let rows = keys.iter().map(|k| {
        let used = k.last_used_at.as_deref().map_or_else(|| "never".into(), output::age);
        let from = if k.source_networks.is_empty() { ANYWHERE.into() } else { k.source_networks.join(",") };
        let owner = k.owner.as_ref().and_then(|owner| owner.email.as_deref());
        let ends = k.expires_at.as_deref().map_or_else(|| "never".into(), output::time);
        [
            k.name.clone(),
            k.status.clone(),
            k.scopes.join(","),
            k.prefix.clone(),
            output::or_dash(owner),
            from,
            used,
            output::or_dash(k.last_used_address.as_deref()),
            if k.exceeds_max_life { format!("{ends} (beyond the organization's limit)") } else { ends },
            output::age(&k.created_at),
            k.id.clone(),
        ]
    });
    let header = ["NAME", "STATUS", "SCOPES", "PREFIX", "+OWNER", "+FROM", "USED", "+BY", "+ENDS", "AGE", "ID"];
    Table::new(header, rows, "No keys. Make one: berth key create NAME --scope vm")
}
