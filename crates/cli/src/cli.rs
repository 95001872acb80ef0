//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use berth_client::Page;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::commands::{
    account, admin, audit, chat, context, disk, image, invitation, key, member, model, org, project, quota, referral,
    sandbox, session, speak, template, usage, vm,
};
use crate::output::{Format, Look};
use crate::{grammar, tips};

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
#[derive(Args, Clone)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Address of the service; by default the one you signed in to
    #[arg(long, global = true, env = "BERTH_URL", value_name = "URL")]
    pub url: Option<String>,
    /// Sign-in to use, with its service and project: berth context list
    #[arg(long, global = true, env = "BERTH_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Organization, by slug or id
    #[arg(long, global = true, env = "BERTH_ORG", value_name = "ORG")]
    pub org: Option<String>,
    /// Project, by slug or id
    #[arg(long, short = 'P', global = true, env = "BERTH_PROJECT", value_name = "PROJECT")]
    pub project: Option<String>,
    /// Print JSON, as the API answers it: -o json
    #[arg(long, global = true)]
    pub json: bool,
    /// How to print: a table, a wide one with whole ids, JSON, or names or ids alone
    #[arg(long, short, global = true, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Print tables without the names of their columns
    #[arg(long, global = true)]
    pub no_headers: bool,
    /// Print ids alone: -o id
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Whether the project was typed, and does not come from the environment.
    #[arg(skip)]
    pub project_typed: bool,
    /// Whether the organization was typed, and does not come from the environment.
    #[arg(skip)]
    pub org_typed: bool,
    /// Whether the address was typed, and does not come from the environment.
    #[arg(skip)]
    pub url_typed: bool,
}

impl Global {
    /// How to print what is asked for.
    pub fn look(&self) -> Look {
        let format = match (self.json, self.quiet) {
            (true, _) => Format::Json,
            (false, true) => self.output.filter(|format| *format == Format::Json).unwrap_or(Format::Id),
            (false, false) => self.output.unwrap_or_default(),
        };
        Look { format, headers: !self.no_headers }
    }
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
        /// Begin with another key of secrets, because the old one is lost: everybody's access token ends
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
    /// Tell what this machine can do and what is missing
    Doctor(ServiceArgs),
    /// Sign in
    Login(session::LoginArgs),
    /// Make an account and sign in
    Signup(session::SignupArgs),
    /// Sign-ins that are kept here: which there are, and which one commands use
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
    /// What the project's requests to models took: tokens of prompts and answers, and cost
    Usage(usage::UsageArgs),
    /// Regions, sizes and plans on offer
    Catalog,
    /// What the project uses and may use
    Quota {
        #[command(subcommand)]
        command: Option<quota::QuotaCommand>,
    },
    /// Print what a shell reads to complete commands and names: source <(berth completions bash)
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// What a service is told; it wins over the environment, which wins over the file.
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
    /// Address people reach the service at, like https://berth.example.com [env: BERTH_BASE_URL]
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// What is logged, like info or berth_server=debug,info [env: BERTH_LOG]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How log lines look: auto, json or text [env: BERTH_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
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
    /// What was typed; where it is not valid, what the program ends with, once that is said.
    pub fn read() -> Result<Self, ExitCode> {
        let matches = grammar::command().try_get_matches().map_err(tips::better);
        matches.and_then(|matches| Self::of(&matches)).map_err(|error| refuse(&error))
    }

    /// Whether this process is the service itself.
    pub const fn runs_the_service(&self) -> bool {
        matches!(self.command, Command::Serve { .. } | Command::Shutdown(_))
    }

    fn of(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut cli = Self::from_arg_matches(matches)?;
        let typed = |name: &str| matches.value_source(name) == Some(ValueSource::CommandLine);
        let global = &mut cli.global;
        (global.project_typed, global.org_typed, global.url_typed) = (typed("project"), typed("org"), typed("url"));
        // A shell says it has no value by an empty one.
        for value in [&mut global.url, &mut global.context, &mut global.org, &mut global.project] {
            value.take_if(|value| value.is_empty());
        }
        Ok(cli)
    }
}

/// Whether words that make no valid line ask for JSON all the same.
fn ask_for_json(words: impl Iterator<Item = OsString>) -> bool {
    let words: Vec<_> = words.take_while(|word| word != "--").collect();
    let is_one = |word: &OsString, all: &[&str]| all.iter().any(|one| word == one);
    words.iter().any(|word| is_one(word, &["--json", "--output=json", "-o=json", "-ojson"]))
        || words.windows(2).any(|pair| is_one(&pair[0], &["--output", "-o"]) && pair[1] == "json")
}

/// Says what is wrong with what was typed, or what help there is, with the program's exit code; to a program as JSON.
fn refuse(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && ask_for_json(std::env::args_os()) {
        let text = error.render().to_string();
        let said = text.split("\n\nUsage:").next().unwrap_or_default().trim_start_matches("error: ");
        let message = said.split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!("{}", serde_json::json!({"code": "usage", "message": message}));
        return ExitCode::from(2);
    }
    error.exit()
}

#[cfg(test)]
mod tests {
    use super::{Cli, Format};
    use crate::grammar;

    fn read(words: &[&str]) -> Cli {
        Cli::of(&grammar::command().try_get_matches_from(words).unwrap()).unwrap()
    }

    #[test]
    fn one_vocabulary_says_how_to_print() {
        for (words, format) in [
            (&["berth", "vm", "list"][..], Format::Table),
            (&["berth", "vm", "list", "-o", "wide"], Format::Wide),
            (&["berth", "-o", "name", "disk", "list"], Format::Name),
            (&["berth", "sandbox", "list", "-q"], Format::Id),
            (&["berth", "sandbox", "create", "--quiet"], Format::Id),
            (&["berth", "key", "get", "ci", "--json"], Format::Json),
            (&["berth", "key", "create", "ci", "--scope", "vm", "--quiet", "--json"], Format::Json),
            (&["berth", "image", "list", "--output", "json", "-q"], Format::Json),
        ] {
            assert_eq!(read(words).global.look().format, format, "{words:?}");
        }
        assert!(!read(&["berth", "vm", "list", "--no-headers"]).global.look().headers);
    }

    #[test]
    fn a_file_to_speak_into_is_no_format() {
        let cli = read(&["berth", "speak", "hello", "-o", "hello.mp3"]);
        assert_eq!(cli.global.look().format, Format::Table);
        let super::Command::Speak(_) = cli.command else { unreachable!() };
    }

    #[test]
    fn a_service_is_told_by_flags_which_win_over_variables() {
        use super::Command::Serve;
        let words =
            ["berth", "serve", "--listen", "127.0.0.1:1", "--data-dir", "/srv/b", "--take-over", "--new-secrets-key"];
        let Serve { service, take_over, new_secrets_key } = read(&words).command else { unreachable!() };
        let config = service.read(|name| (name == "BERTH_LISTEN").then(|| "127.0.0.1:2".to_owned())).unwrap();
        assert_eq!((config.listen.port(), config.data_dir.to_str()), (1, Some("/srv/b")));
        assert!(take_over && new_secrets_key);
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
