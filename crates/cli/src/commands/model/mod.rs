//! Models on offer. Administrators of the platform see their state, and add and remove them.

mod add;
mod serve;
mod show;

pub use show::NONE;

use anyhow::Result;
use berth_client::{Error, Page};
use clap::Subcommand;

use crate::context::{Context, api_key};
use crate::global::Global;
use crate::output;

#[derive(Subcommand)]
pub enum ModelCommand {
    /// List models; for administrators with their upstreams and state
    #[command(visible_alias = "ls")]
    List,
    /// Show one model
    #[command(visible_alias = "show")]
    Get {
        /// Its id
        model: String,
    },
    /// Offer a model of servers that speak OpenAI's protocol (administrators)
    Add(add::AddArgs),
    /// Offer the model of a file; the service runs a server for it (administrators)
    Serve(serve::ServeArgs),
    /// Remove a model; answers under way go on to their end (administrators)
    #[command(visible_alias = "rm")]
    Remove {
        /// Its id
        model: String,
    },
}

/// Runs the typed command.
pub async fn run(global: &Global, command: ModelCommand) -> Result<()> {
    match command {
        ModelCommand::List => list(&Context::any(global).await?).await,
        ModelCommand::Get { model } => get(&Context::any(global).await?, &model).await,
        ModelCommand::Add(args) => add::run(&Context::person(global)?, args).await,
        ModelCommand::Serve(args) => serve::run(&Context::person(global)?, args).await,
        ModelCommand::Remove { model } => {
            let context = Context::person(global)?;
            context.client.delete_model(&model).await?;
            output::done(context.look, &model, &model, &format!("{model} removed"));
            Ok(())
        }
    }
}

async fn list(context: &Context) -> Result<()> {
    let client = &context.client;
    if let Some(first) = as_administrator(async || client.admin_models(Page::default()).await).await? {
        if context.look.is_json() && first.pagination.total_pages <= 1 {
            return output::json(&first);
        }
        let models = Page::all(async |page| client.admin_models(page).await).await?;
        return output::rows(context.look, &models, |models| show::administrators(context.look, models));
    }
    let models = context.inference().await?.models().await?;
    output::rows(context.look, &models, |models| show::users(&models.data))
}

async fn get(context: &Context, id: &str) -> Result<()> {
    if let Some(model) = as_administrator(async || context.client.admin_model(id).await).await? {
        return output::print(context.look, &model, &model.id, &model.id, |model| show::one(context.look, model));
    }
    let model = context.inference().await?.model(id).await?;
    output::rows(context.look, &model, |model| show::users(std::slice::from_ref(model)))
}

/// The answer for administrators; `None` for other callers.
async fn as_administrator<T>(call: impl AsyncFnOnce() -> Result<T, Error>) -> Result<Option<T>> {
    if api_key().is_some() {
        return Ok(None);
    }
    match call().await {
        Err(error) if error.code() == Some("forbidden") => Ok(None),
        other => Ok(Some(other?)),
    }
}
