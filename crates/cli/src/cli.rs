//! What can be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{disk, image, vm};

/// A cloud in one binary: virtual machines behind one API.
#[derive(Parser)]
#[command(name = "berth", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command that calls the service.
#[derive(Args)]
pub struct Global {
    /// Address of the service; by default the one you signed in to
    #[arg(long, global = true, env = "BERTH_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Organization, by slug or id
    #[arg(long, global = true, env = "BERTH_ORG", value_name = "ORG")]
    pub org: Option<String>,
    /// Project, by slug or id
    #[arg(long, short = 'P', global = true, env = "BERTH_PROJECT", value_name = "PROJECT")]
    pub project: Option<String>,
    /// Print JSON, as the API answers it
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the service
    Serve(ServeArgs),
    /// Stop every machine in good order, while the service is off
    Shutdown(ServeArgs),
    /// Tell what this machine can do and what is missing
    Doctor(ServeArgs),
    /// Sign in
    Login(LoginArgs),
    /// Make an account and sign in
    Signup(SignupArgs),
    /// Sign out
    Logout {
        /// End all sessions of the account
        #[arg(long)]
        all: bool,
    },
    /// Show who is signed in, where, and in which project
    Whoami,
    /// Organizations
    #[command(subcommand)]
    Org(OrgCommand),
    /// Projects
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Virtual machines
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Data disks and root disk volumes
    #[command(subcommand)]
    Disk(disk::DiskCommand),
    /// Images that machines boot from
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Regions, sizes and plans on offer
    Catalog,
    /// What the project uses and may use
    Quota,
    /// Print completions for a shell: source <(berth completions bash)
    Completions {
        /// Which shell
        shell: Shell,
    },
}

#[derive(Args)]
pub struct ServeArgs {
    /// Configuration file
    #[arg(long, env = "BERTH_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Args)]
pub struct LoginArgs {
    /// Address of the service, as http://127.0.0.1:8080
    #[arg(value_name = "URL")]
    pub service: Option<String>,
    /// Your address
    #[arg(long)]
    pub email: Option<String>,
    /// Read the password from standard input
    #[arg(long)]
    pub password_stdin: bool,
}

#[derive(Args)]
pub struct SignupArgs {
    #[command(flatten)]
    pub login: LoginArgs,
    /// Your name
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Subcommand)]
pub enum OrgCommand {
    /// List the organizations you belong to
    #[command(visible_alias = "ls")]
    List,
    /// Make an organization
    Create {
        /// Name
        name: String,
        /// Name in paths; made from the name if absent
        #[arg(long)]
        slug: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum ProjectCommand {
    /// List the projects you see
    #[command(visible_alias = "ls")]
    List,
    /// Make a project
    Create {
        /// Name
        name: String,
        /// Name in paths; made from the name if absent
        #[arg(long)]
        slug: Option<String>,
    },
    /// Make a project the one that commands mean
    Use {
        /// PROJECT, or ORG/PROJECT
        project: String,
    },
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
