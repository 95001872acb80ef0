//! The command line: every command and its options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{
    account, admin, audit, chat, context, disk, host, image, invitation, key, member, model, network, org, project,
    quota, referral, sandbox, session, speak, ssh_key, template, usage, vm,
};
use crate::global::Global;

/// A cloud in one binary: virtual machines and sandboxes behind one API.
#[derive(Parser)]
#[command(name = "berth", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the service
    Serve {
        #[command(flatten)]
        service: ServiceArgs,
        /// Take the database from the data folder that keeps it: that folder is gone, or its database was moved here
        #[arg(long)]
        take_over: bool,
        /// Begin with another key of secrets, because the old one is lost: all access tokens become invalid
        #[arg(long)]
        new_secrets_key: bool,
    },
    /// Stop every machine in good order, while the service is off
    Shutdown(ServiceArgs),
    /// Copy the database into a new file, also while the service runs
    Backup {
        #[command(flatten)]
        service: ServiceArgs,
        /// The new file
        file: PathBuf,
    },
    /// This machine as a host of a platform whose service is on another one
    #[command(subcommand)]
    Host(host::HostCommand),
    /// Show what this machine can do and what is missing
    Doctor {
        #[command(flatten)]
        service: ServiceArgs,
        /// Look at its GPUs, and at what it takes to hand them out
        #[arg(long)]
        gpu: bool,
    },
    /// Sign in
    Login(session::LoginArgs),
    /// Make an account and sign in
    Signup(session::SignupArgs),
    /// Sign-ins that are kept on this machine: list them, and choose the one that commands use
    #[command(subcommand)]
    Context(context::ContextCommand),
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
    /// Your referral code, and the people who signed up with it
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
    /// Networks, in which VMs and sandboxes reach each other by name
    #[command(subcommand)]
    Network(network::NetworkCommand),
    /// SSH keys that are stored to choose them for VMs: yours, or with --project the project's
    #[command(subcommand)]
    SshKey(ssh_key::SshKeyCommand),
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
    /// Tools for agents by the Model Context Protocol, over standard input and output: for clients that start a program.
    /// Others connect to the service's address and /mcp
    Mcp,
    /// Talk to a model
    Chat(chat::ChatArgs),
    /// Speak a text, into a file or to standard output
    Speak(speak::SpeakArgs),
    /// What the project's requests to models took: tokens of prompts and answers, and cost
    Usage(usage::UsageArgs),
    /// Regions, sizes and plans on offer
    Catalog,
    /// What the project uses and may use
    Quota {
        #[command(subcommand)]
        command: Option<quota::QuotaCommand>,
    },
    /// Print a script with which a shell completes commands and names: source <(berth completions bash)
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The settings of a service; they win over the environment, which wins over the file.
#[derive(Args)]
pub struct ServiceArgs {
    /// Configuration file
    #[arg(long, env = "BERTH_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address of the API, like 127.0.0.1:8080 [env: BERTH_LISTEN]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Folder of everything the service keeps [env: BERTH_DATA_DIR]
    #[arg(long, value_name = "FOLDER")]
    pub data_dir: Option<PathBuf>,
    /// Address at which people reach the service, like https://berth.example.com [env: BERTH_BASE_URL]
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// What to log, like info or berth_server=debug,berth_host=debug,info [env: BERTH_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How log lines look: auto, json or text [env: BERTH_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl Cli {
    /// Whether this process is the service itself.
    pub const fn runs_the_service(&self) -> bool {
        matches!(self.command, Command::Serve { .. } | Command::Shutdown(_) | Command::Host(_))
    }
}
