//! What can be typed.

use std::path::PathBuf;

use berth_client::Page;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{
    account, admin, audit, chat, disk, image, invitation, key, member, model, org, project, quota, referral, sandbox,
    session, speak, template, usage, vm,
};

/// A cloud in one binary: virtual machines and sandboxes behind one API.
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
    /// Whether the project was typed, and does not come from the environment.
    #[arg(skip)]
    pub project_typed: bool,
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
    Login(session::LoginArgs),
    /// Make an account and sign in
    Signup(session::SignupArgs),
    /// Sign out
    Logout {
        /// End all sessions of the account
        #[arg(long)]
        all: bool,
    },
    /// Show who is signed in, where, and in which project
    Whoami,
    /// Your account: name, address, password, sessions
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// Organizations
    #[command(subcommand)]
    Org(org::OrgCommand),
    /// Members of the organization, or with --project of a project
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Invite somebody to the organization, by mail
    Invite(invitation::InviteArgs),
    /// Invitations to the organization, and to you
    #[command(subcommand)]
    Invitation(invitation::InvitationCommand),
    /// Projects
    #[command(subcommand)]
    Project(project::ProjectCommand),
    /// API keys of the project
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// What was done in the organization, by whom
    Audit(audit::AuditArgs),
    /// Your referral code, and whom you brought
    Referral {
        #[command(subcommand)]
        command: Option<referral::ReferralCommand>,
    },
    /// What administrators of the platform do
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// Virtual machines
    #[command(subcommand)]
    Vm(vm::VmCommand),
    /// Data disks and root disk volumes
    #[command(subcommand)]
    Disk(disk::DiskCommand),
    /// Images that machines boot from
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Sandboxes: small machines that are there at once, for programs that nobody has to trust
    #[command(subcommand)]
    Sandbox(sandbox::SandboxCommand),
    /// What sandboxes are made of
    #[command(subcommand)]
    Template(template::TemplateCommand),
    /// Models that programs and people talk to
    #[command(subcommand)]
    Model(model::ModelCommand),
    /// Talk to a model
    Chat(chat::ChatArgs),
    /// Speak a text, into a file or to whoever reads
    Speak(speak::SpeakArgs),
    /// What the project's requests to models took
    Usage(usage::UsageArgs),
    /// Regions, sizes and plans on offer
    Catalog,
    /// What the project uses and may use
    Quota {
        #[command(subcommand)]
        command: Option<quota::QuotaCommand>,
    },
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

/// Which page of a list.
#[derive(Args, Clone, Copy)]
pub struct PageArgs {
    /// Page, from 1
    #[arg(long, default_value_t = 1)]
    pub page: u32,
    /// Items on a page, 1 to 100
    #[arg(long, default_value_t = 100)]
    pub limit: u32,
}

impl From<PageArgs> for Page {
    fn from(args: PageArgs) -> Self {
        Self { page: args.page, limit: args.limit }
    }
}

impl Cli {
    /// What was typed; ends the program where it is not valid.
    pub fn read() -> Self {
        Self::of(&Self::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// Whether this process is the service itself.
    pub const fn runs_the_service(&self) -> bool {
        matches!(self.command, Command::Serve(_) | Command::Shutdown(_))
    }

    fn of(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(matches)?;
        cli.global.project_typed = matches.value_source("project") == Some(ValueSource::CommandLine);
        Ok(cli)
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    fn read(words: &[&str]) -> Cli {
        Cli::of(&Cli::command().try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_project_that_was_typed_is_known_as_such() {
        assert!(!read(&["berth", "member", "list"]).global.project_typed);
        for words in [["berth", "member", "list", "--project", "web"], ["berth", "--project", "web", "member", "list"]]
        {
            let cli = read(&words);
            assert!(cli.global.project_typed, "{words:?}");
            assert_eq!(cli.global.project.as_deref(), Some("web"), "{words:?}");
        }
    }
}
