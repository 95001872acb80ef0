//! Who calls which service, about which project: the command line over what was kept at sign-in.

use anyhow::Result;
use berth_client::{Client, ProjectClient, Tokens};

use crate::cli::Global;
use crate::credentials::Credentials;
use crate::failure::Failure;

/// Where a service listens by default.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// What a command works with.
pub struct Context {
    /// The service, signed in.
    pub client: Client,
    /// Whether to print JSON.
    pub json: bool,
    org: Option<String>,
    project: Option<String>,
}

impl Context {
    /// The context of a signed-in person; `BERTH_TOKEN` is a token for programs that keep none.
    pub fn signed_in(global: &Global) -> Result<Self> {
        let kept = Credentials::load()?;
        let url = global.url.clone().or_else(|| kept.as_ref().map(|k| k.url.clone()));
        let url = url.unwrap_or_else(|| DEFAULT_URL.into());
        // A sign-in is good for its own service only.
        let kept = kept.filter(|k| k.url == url.trim_end_matches('/'));
        let client = match (std::env::var("BERTH_TOKEN"), &kept) {
            (Ok(token), _) if !token.is_empty() => {
                Client::new(&url)?.with_tokens(Tokens { access_token: token, refresh_token: String::new() })
            }
            (_, Some(kept)) => Client::new(&url)?.with_tokens(kept.tokens.clone()).on_tokens(keeper(kept.clone())),
            (_, None) => return Err(Failure::signed_out()),
        };
        let org = global.org.clone().or_else(|| kept.as_ref().map(|k| k.org.clone()));
        let project = global.project.clone().or_else(|| kept.map(|k| k.project));
        Ok(Self { client, json: global.json, org, project })
    }

    /// The organization that commands mean.
    pub fn org(&self) -> Result<&str> {
        self.org.as_deref().ok_or_else(|| Failure::usage("Name the organization: --org ORG"))
    }

    /// The project that commands mean.
    pub fn project(&self) -> Result<ProjectClient> {
        let project = self.project.as_deref().ok_or_else(|| Failure::usage("Name the project: --project PROJECT"))?;
        Ok(self.client.project(self.org()?, project))
    }

    /// Its name.
    pub fn project_name(&self) -> Option<&str> {
        self.project.as_deref()
    }
}

fn keeper(kept: Credentials) -> impl Fn(&Tokens) + Send + Sync {
    move |tokens| {
        if let Err(error) = (Credentials { tokens: tokens.clone(), ..kept.clone() }).save() {
            eprintln!("berth: the renewed sign-in cannot be kept: {error:#}");
        }
    }
}
