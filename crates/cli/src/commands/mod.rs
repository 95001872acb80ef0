//! One module for each noun; here the way to them.

mod account;
pub mod disk;
pub mod image;
mod offer;
mod project;
mod service;
pub mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::{Cli, Command};
use crate::context::Context;

/// Does what was typed.
pub async fn run(cli: Cli) -> Result<ExitCode> {
    let global = &cli.global;
    let (context, person) = (|| Context::any(global), || Context::person(global));
    match cli.command {
        Command::Serve(args) => return service::serve(&args).await,
        Command::Shutdown(args) => return service::shutdown(&args).await,
        Command::Doctor(args) => return service::doctor(&args).await,
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "berth", &mut std::io::stdout());
        }
        Command::Login(args) => account::login(global, args).await?,
        Command::Signup(args) => account::sign_up(global, args).await?,
        Command::Logout { all } => account::logout(&person()?, all).await?,
        Command::Whoami => account::whoami(&person()?).await?,
        Command::Org(command) => project::run_org(&person()?, command).await?,
        Command::Project(command) => project::run(&person()?, command).await?,
        Command::Vm(command) => return vm::run(&context()?, command).await,
        Command::Disk(command) => disk::run(&context()?, command).await?,
        Command::Image(command) => image::run(&context()?, command).await?,
        Command::Catalog => offer::catalog(&context()?).await?,
        Command::Quota => offer::quota(&context()?).await?,
    }
    Ok(ExitCode::SUCCESS)
}
