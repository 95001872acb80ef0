//! One module for each noun, and the dispatch of commands to them.

pub mod account;
pub mod admin;
pub mod audit;
pub mod chat;
pub mod context;
pub mod disk;
mod firewall;
pub mod host;
pub mod image;
pub mod invitation;
pub mod key;
pub mod mcp;
pub mod member;
pub mod model;
pub mod network;
mod offer;
pub mod org;
pub mod project;
pub mod quota;
pub mod referral;
mod resource_usage;
pub mod sandbox;
mod service;
pub mod session;
pub mod speak;
pub mod ssh_key;
pub mod template;
pub mod usage;
mod usage_group;
pub mod vm;

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::{Cli, Command};
use crate::complete;
use crate::context::Context;

/// Runs the typed command.
pub async fn run(cli: Cli) -> Result<ExitCode> {
    let global = &cli.global;
    let (any, person) = (|| Context::any(global), || Context::person(global));
    match cli.command {
        Command::Serve { service, take_over, new_secrets_key } => {
            return Box::pin(service::serve(&service, take_over, new_secrets_key)).await;
        }
        Command::Backup { service, file } => return service::back_up(global.look(), &service, &file).await,
        Command::Shutdown(args) => return Box::pin(service::shutdown(&args)).await,
        Command::Host(command) => return Box::pin(host::run(command)).await,
        Command::Doctor { service, gpu } => return service::doctor(&service, gpu).await,
        Command::Completions { shell } => {
            complete::register(shell)?;
        }
        Command::Login(args) => session::login(global, args).await?,
        Command::Signup(args) => session::sign_up(global, args).await?,
        Command::Context(command) => context::run(global.look(), command).await?,
        Command::Logout { all } => session::logout(&person()?, all).await?,
        Command::Whoami => session::whoami(&person()?).await?,
        Command::Account(command) => account::run(global, command).await?,
        Command::Org(command) => org::run(&person()?, command).await?,
        Command::Member(command) => member::run(&person()?, command).await?,
        Command::Invite(args) => invitation::invite(&person()?, args).await?,
        Command::Invitation(command) => invitation::run(global, command).await?,
        Command::Project(command) => project::run(&person()?, command).await?,
        Command::Key(command) => key::run(&person()?, command).await?,
        Command::Audit(args) => audit::run(&person()?, args).await?,
        Command::Referral { command } => referral::run(&person()?, command).await?,
        Command::Admin(command) => admin::run(&person()?, command).await?,
        Command::Vm(command) => return vm::run(&any().await?, command).await,
        Command::Disk(command) => disk::run(&any().await?, command).await?,
        Command::Network(command) => network::run(&any().await?, command).await?,
        Command::SshKey(command) => ssh_key::run(&any().await?, command).await?,
        Command::Image(command) => image::run(&any().await?, command).await?,
        Command::Sandbox(command) => return sandbox::run(&any().await?, command).await,
        Command::Template(command) => template::run(&any().await?, command).await?,
        Command::Model(command) => model::run(global, command).await?,
        Command::Mcp => mcp::run(&any().await?).await?,
        Command::Chat(args) => return chat::run(&any().await?, args).await,
        Command::Speak(args) => speak::run(&any().await?, args).await?,
        Command::Usage(args) => usage::run(&any().await?, args).await?,
        Command::Catalog => offer::catalog(&any().await?).await?,
        Command::Quota { command: None } => quota::show(&any().await?).await?,
        Command::Quota { command: Some(command) } => quota::run(&person()?, command).await?,
    }
    Ok(ExitCode::SUCCESS)
}
