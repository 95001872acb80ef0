//! Options of every command: the service, the project, and the form of output.

use clap::Args;

use crate::output::{Format, Look};

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
    /// How to print: a table, a wide one with whole ids, JSON, or only names or ids
    #[arg(long, short, global = true, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Print tables without column names
    #[arg(long, global = true)]
    pub no_headers: bool,
    /// Print only ids: -o id
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
    /// How to print results.
    pub fn look(&self) -> Look {
        let format = match (self.json, self.quiet) {
            (true, _) => Format::Json,
            (false, true) => self.output.filter(|format| *format == Format::Json).unwrap_or(Format::Id),
            (false, false) => self.output.unwrap_or_default(),
        };
        Look { format, headers: !self.no_headers }
    }
}
