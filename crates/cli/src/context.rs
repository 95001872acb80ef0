//! Who calls which service, about which project: the command line over what was kept at sign-in.

use anyhow::Result;
use berth_client::{Client, Inference, ProjectClient, Tokens};

use crate::cli::Global;
use crate::credentials::Credentials;
use crate::failure::Failure;

/// Where a service listens by default.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// The variable of a project's API key; it wins over every sign-in.
pub const API_KEY: &str = "BERTH_API_KEY";

/// The API key that commands call with, if there is one.
pub fn api_key() -> Option<String> {
    std::env::var(API_KEY).ok().filter(|key| !key.is_empty())
}

/// What a command works with.
pub struct Context {
    /// The service, with a credential.
    pub client: Client,
    /// Whether to print JSON.
    pub json: bool,
    org: Option<String>,
    project: Option<String>,
    typed_project: Option<String>,
}

impl Context {
    /// The context of whoever calls: a program with `BERTH_API_KEY`, or a person.
    pub fn any(global: &Global) -> Result<Self> {
        match api_key() {
            Some(key) => Self::with_api_key(global, key),
            None => Self::signed_in(global),
        }
    }

    /// The context of a person, for what no API key may do.
    pub fn person(global: &Global) -> Result<Self> {
        match api_key() {
            Some(_) => Err(Failure::not_allowed(format!(
                "An API key is not good for this; it needs a sign-in. Type: unset {API_KEY}; berth login"
            ))),
            None => Self::signed_in(global),
        }
    }

    /// A key belongs to one project, so that what was kept of a person's sign-in says nothing about it.
    fn with_api_key(global: &Global, key: String) -> Result<Self> {
        let client = Client::new(&address(global, None)?)?.with_api_key(key);
        Ok(Self::new(global, client, None))
    }

    /// The context of a signed-in person; `BERTH_TOKEN` is a token for programs that keep none.
    fn signed_in(global: &Global) -> Result<Self> {
        let kept = Credentials::load()?;
        let url = address(global, None)?;
        // A sign-in is good for its own service only.
        let kept = kept.filter(|k| k.url == url);
        let client = match (std::env::var("BERTH_TOKEN"), &kept) {
            (Ok(token), _) if !token.is_empty() => {
                Client::new(&url)?.with_tokens(Tokens { access_token: token, refresh_token: String::new() })
            }
            (_, Some(kept)) => Client::new(&url)?.with_tokens(kept.tokens.clone()).on_tokens(keeper(kept.clone())),
            (_, None) => return Err(Failure::signed_out()),
        };
        Ok(Self::new(global, client, kept))
    }

    fn new(global: &Global, client: Client, kept: Option<Credentials>) -> Self {
        let (kept_org, kept_project) = kept.map(|k| (k.org, k.project)).unzip();
        let named = |given: &Option<String>, kept: Option<String>| given.clone().or(kept).filter(|n| !n.is_empty());
        Self {
            client,
            json: global.json,
            project: named(&global.project, kept_project),
            org: named(&global.org, kept_org),
            typed_project: global.project.clone().filter(|_| global.project_typed),
        }
    }

    /// The organization that commands mean.
    pub fn org(&self) -> Result<&str> {
        self.org.as_deref().ok_or_else(|| Failure::usage("Name the organization: --org ORG, or BERTH_ORG"))
    }

    /// The project that commands mean.
    pub fn project(&self) -> Result<ProjectClient> {
        let (org, project) = (self.org()?, self.project_name());
        let project = project.ok_or_else(|| Failure::usage("Name the project: --project PROJECT, or BERTH_PROJECT"))?;
        Ok(self.client.project(org, project))
    }

    /// The models of that project. An API key tells its project by itself; a person's requests name it.
    pub async fn inference(&self) -> Result<Inference> {
        if api_key().is_some() {
            return Ok(self.client.inference(None));
        }
        let project = self.project()?.get().await?;
        Ok(self.client.inference(Some(&project.id)))
    }

    /// Its name.
    pub fn project_name(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// The project, only if it was typed: what is about the organization without it, is about the project with it.
    pub fn typed_project(&self) -> Option<&str> {
        self.typed_project.as_deref()
    }

    /// Makes commands mean another project by default.
    pub fn choose(&self, org: &str, project: &str) -> Result<()> {
        let kept = self.keep(|kept| (kept.org, kept.project) = (org.to_owned(), project.to_owned()))?;
        if kept {
            Ok(())
        } else {
            Err(Failure::usage("No sign-in is kept here: set BERTH_ORG and BERTH_PROJECT instead"))
        }
    }

    /// Changes the sign-in that was kept, if there is one.
    pub fn keep(&self, change: impl FnOnce(&mut Credentials)) -> Result<bool> {
        let Some(mut kept) = Credentials::load()?.filter(|k| k.url == self.client.base()) else { return Ok(false) };
        // A call before may have renewed the tokens.
        kept.tokens = self.client.tokens().filter(|t| !t.refresh_token.is_empty()).unwrap_or(kept.tokens);
        change(&mut kept);
        kept.save()?;
        Ok(true)
    }
}

/// The address of the service: as typed, from `BERTH_URL`, of the sign-in that was kept, or the default.
pub fn address(global: &Global, typed: Option<&str>) -> Result<String> {
    let given = typed.or(global.url.as_deref()).map(str::to_owned);
    let url = match given {
        Some(url) => url,
        None => Credentials::load().ok().flatten().map_or_else(|| DEFAULT_URL.into(), |k| k.url),
    };
    if url.starts_with("http://") || url.starts_with("https://") {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    Err(Failure::usage(format!("'{url}' is no address of a service; it looks like {DEFAULT_URL}")))
}

fn keeper(kept: Credentials) -> impl Fn(&Tokens) + Send + Sync {
    move |tokens| {
        if let Err(error) = (Credentials { tokens: tokens.clone(), ..kept.clone() }).save() {
            eprintln!("berth: the renewed sign-in cannot be kept: {error:#}");
        }
    }
}
