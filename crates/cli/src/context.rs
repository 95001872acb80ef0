//! Who calls which service, about which project: from the command line and the kept sign-in.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use berth_client::{Client, Inference, Mcp, ProjectClient, Tokens};

use crate::credentials::{Credentials, Store, signed_out};
use crate::failure::Failure;
use crate::global::Global;
use crate::output::Look;

/// The default address of a service.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080";
/// The variable of a project's API key; it wins over every sign-in.
pub const API_KEY: &str = "BERTH_API_KEY";

/// The API key for commands, if there is one.
pub fn api_key() -> Option<String> {
    std::env::var(API_KEY).ok().filter(|key| !key.is_empty())
}

/// What a command works with.
pub struct Context {
    /// The service, with a credential.
    pub client: Client,
    /// How to print results.
    pub look: Look,
    kept_as: Option<String>,
    org: Option<String>,
    project: Option<String>,
    typed_project: Option<String>,
    typed_org: Option<String>,
    named_project: Option<String>,
    named_org: Option<String>,
    usual: (Option<String>, Option<String>),
}

impl Context {
    /// The context of the caller: a program with `BERTH_API_KEY`, or a person.
    pub async fn any(global: &Global) -> Result<Self> {
        match api_key() {
            Some(key) => Self::with_api_key(global, key).await,
            None => Self::signed_in(global),
        }
    }

    /// The context of a person, for what an API key may not do.
    pub fn person(global: &Global) -> Result<Self> {
        match api_key() {
            Some(_) => Err(Failure::not_allowed(format!(
                "An API key is not good for this; it needs a sign-in. Type: unset {API_KEY}; berth login"
            ))),
            None => Self::signed_in(global),
        }
    }

    /// A key belongs to one project, so a person's kept sign-in says nothing about it: if the caller names no project,
    /// the service says which project is the key's.
    async fn with_api_key(global: &Global, key: String) -> Result<Self> {
        let client = Client::new(&address(global, None)?)?.with_api_key(key);
        let mut context = Self::new(global, client, None);
        if context.org.is_none() || context.project.is_none() {
            match context.client.own_api_key().await {
                Ok(own) => {
                    context.org.get_or_insert(own.organization.slug);
                    context.project.get_or_insert(own.project.slug);
                }
                // An older service does not say.
                Err(error) if error.status() == Some(404) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(context)
    }

    /// The context of a signed-in person; `BERTH_TOKEN` is a token for programs that keep none. It may belong to
    /// another person than the kept sign-in, so nothing of that is changed.
    fn signed_in(global: &Global) -> Result<Self> {
        let (url, kept) = kept(global)?;
        match (std::env::var("BERTH_TOKEN"), kept) {
            (Ok(token), kept) if !token.is_empty() => {
                let tokens = Tokens { access_token: token, refresh_token: String::new() };
                let client = Client::new(&url)?.with_tokens(tokens);
                Ok(Self { kept_as: None, ..Self::new(global, client, kept) })
            }
            (_, Some(kept)) => {
                let keeper = keeper(url.clone(), kept.tokens.refresh_token.clone());
                let client = Client::new(&url)?.with_tokens(kept.tokens.clone()).on_tokens(keeper);
                Ok(Self::new(global, client, Some(kept)))
            }
            (_, None) => Err(signed_out()),
        }
    }

    fn new(global: &Global, client: Client, kept: Option<Credentials>) -> Self {
        let kept_as = kept.as_ref().map(|kept| kept.name.clone());
        let (kept_org, kept_project) = kept.map(|k| (k.org, k.project)).unzip();
        let named = |given: Option<String>, kept: Option<String>| given.or(kept).filter(|n| !n.is_empty());
        // A typed option hides the environment.
        let unless_typed = |given: &Option<String>, typed: bool, variable: &str| {
            if typed { std::env::var(variable).ok().filter(|value| !value.is_empty()) } else { given.clone() }
        };
        let usual_org = unless_typed(&global.org, global.org_typed, "BERTH_ORG");
        let usual_project = unless_typed(&global.project, global.project_typed, "BERTH_PROJECT");
        Self {
            client,
            look: global.look(),
            kept_as,
            usual: (named(usual_org, kept_org.clone()), named(usual_project, kept_project.clone())),
            project: named(global.project.clone(), kept_project),
            org: named(global.org.clone(), kept_org),
            typed_project: global.project.clone().filter(|_| global.project_typed),
            typed_org: global.org.clone().filter(|_| global.org_typed),
            named_project: global.project.clone(),
            named_org: global.org.clone(),
        }
    }

    /// Whether to show no progress, because no person reads it.
    pub const fn is_quiet(&self) -> bool {
        !self.look.is_for_people()
    }

    /// The organization that commands use.
    pub fn org(&self) -> Result<&str> {
        self.org.as_deref().ok_or_else(|| Failure::usage("Name the organization: --org ORG, or BERTH_ORG"))
    }

    /// The project that commands use.
    pub fn project(&self) -> Result<ProjectClient> {
        let (org, project) = (self.org()?, self.project_name());
        let project = project.ok_or_else(|| Failure::usage("Name the project: --project PROJECT, or BERTH_PROJECT"))?;
        Ok(self.client.project(org, project))
    }

    /// The models of that project. A person's requests name it; an API key implies it.
    pub async fn inference(&self) -> Result<Inference> {
        if api_key().is_some() {
            return Ok(self.client.inference(None));
        }
        let project = self.project()?.get().await?;
        Ok(self.client.inference(Some(&project.id)))
    }

    /// The Model Context Protocol in that project.
    pub async fn mcp(&self) -> Result<Mcp> {
        if api_key().is_some() {
            return Ok(self.client.mcp(None));
        }
        let project = self.project()?.get().await?;
        Ok(self.client.mcp(Some(&project.id)))
    }

    /// Its name.
    pub fn project_name(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// Whether commands use this project of this organization by default; both are given as slugs.
    pub fn usually_means(&self, org: &str, project: &str) -> bool {
        let (usual_org, usual_project) = &self.usual;
        usual_org.as_deref() == Some(org) && usual_project.as_deref() == Some(project)
    }

    /// The project, only if it was typed: without it some commands concern the organization, with it the project.
    pub fn typed_project(&self) -> Option<&str> {
        self.typed_project.as_deref()
    }

    /// The organization, only if it was typed.
    pub fn typed_org(&self) -> Option<&str> {
        self.typed_org.as_deref()
    }

    /// The project, only if named by `--project` or `BERTH_PROJECT`.
    pub fn named_project(&self) -> Option<&str> {
        self.named_project.as_deref()
    }

    /// The organization, only if named by `--org` or `BERTH_ORG`.
    pub fn named_org(&self) -> Option<&str> {
        self.named_org.as_deref()
    }

    /// Makes commands use another project by default.
    pub fn choose(&self, org: &str, project: &str) -> Result<()> {
        let kept = self.keep(|kept| (kept.org, kept.project) = (org.to_owned(), project.to_owned()))?;
        if kept {
            Ok(())
        } else {
            Err(Failure::usage("No sign-in is kept here: set BERTH_ORG and BERTH_PROJECT instead"))
        }
    }

    /// Changes the kept sign-in, if there is one. It reads it again, since another command may have renewed its tokens
    /// meanwhile; tokens that this command renewed are kept already.
    pub fn keep(&self, change: impl FnOnce(&mut Credentials)) -> Result<bool> {
        let Some(name) = &self.kept_as else { return Ok(false) };
        Store::change(|store| Ok(store.named_mut(name).map(change).is_some()))
    }

    /// The name of the kept sign-in, if there is one.
    pub fn kept_as(&self) -> Option<&str> {
        self.kept_as.as_deref()
    }

    /// Forgets the kept sign-in; returns the names of the remaining ones.
    pub fn forget(&self) -> Result<Vec<String>> {
        Store::change(|store| {
            if let Some(name) = &self.kept_as {
                store.forget(name);
            }
            Ok(store.contexts.iter().map(|kept| kept.name.clone()).collect())
        })
    }
}

/// The address of the service, and the sign-in for it: the one that `--context` names, or one at the given address, or
/// the current one.
fn kept(global: &Global) -> Result<(String, Option<Credentials>)> {
    let store = Store::load()?;
    let url = address_of(&store, global, None)?;
    let kept = match &global.context {
        Some(name) => Some(store.find(name)?),
        None if global.url.is_some() => store.at(&url),
        None => store.current(),
    };
    if let Some(kept) = kept.filter(|kept| kept.url != url) {
        return Err(Failure::usage(format!(
            "The context '{}' is of {}, not of {url}: leave one out",
            kept.name, kept.url
        )));
    }
    Ok((url, kept.cloned()))
}

/// The address of the service; ignores kept sign-ins that cannot be read.
pub fn address(global: &Global, typed: Option<&str>) -> Result<String> {
    address_of(&Store::load().unwrap_or_default(), global, typed)
}

/// The address of the service: as typed, of the named context, from `BERTH_URL`, of the current sign-in, or the
/// default.
pub fn address_of(store: &Store, global: &Global, typed: Option<&str>) -> Result<String> {
    let of_context = || global.context.as_ref().and_then(|name| store.named(name)).map(|kept| kept.url.as_str());
    let url = typed
        .or(global.url.as_deref().filter(|_| global.url_typed))
        .or_else(of_context)
        .or(global.url.as_deref())
        .or_else(|| store.current().map(|kept| kept.url.as_str()))
        .unwrap_or(DEFAULT_URL);
    with_scheme(url)
        .ok_or_else(|| Failure::usage(format!("'{url}' is no address of a service; it looks like {DEFAULT_URL}")))
}

/// An address with its scheme. Without a typed scheme, this host gets http and any other https.
fn with_scheme(text: &str) -> Option<String> {
    let scheme = text.split_once("://").map(|(scheme, host)| (scheme, host.trim_end_matches('/')));
    let text = text.trim_end_matches('/');
    match scheme {
        Some(("http" | "https", host)) if !host.is_empty() => Some(text.to_owned()),
        Some(_) => None,
        None if text.is_empty() || text.contains(char::is_whitespace) => None,
        None if is_loopback(text) => Some(format!("http://{text}")),
        None => Some(format!("https://{text}")),
    }
}

/// Whether an address without its scheme, with or without a port, is this host's.
fn is_loopback(text: &str) -> bool {
    let authority = text.split('/').next().unwrap_or(text);
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Warns before a password goes over a network in clear, where others can read it.
pub fn warn_in_clear(url: &str) {
    if url.strip_prefix("http://").is_some_and(|host| !is_loopback(host)) {
        eprintln!(
            "berth: {url} is not encrypted: others on the network can read the password. Use https:// if you can."
        );
    }
}

/// Keeps renewed tokens in place of the spent ones, unless that sign-in was forgotten. Finds it by its tokens: its name
/// may belong to another one by then, and its account may have another sign-in.
fn keeper(url: String, spent: String) -> impl Fn(&Tokens) + Send + Sync {
    let spent = Mutex::new(spent);
    move |tokens| {
        let mut spent = spent.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = Store::change(|store| {
            store.renew(&url, &spent, tokens);
            Ok(())
        });
        tokens.refresh_token.clone_into(&mut spent);
        if let Err(error) = kept {
            eprintln!("berth: the renewed sign-in cannot be kept: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_people_type_them() {
        for (typed, meant) in [
            ("http://127.0.0.1:8080/", Some("http://127.0.0.1:8080")),
            ("https://berth.example.org", Some("https://berth.example.org")),
            ("localhost:18080", Some("http://localhost:18080")),
            ("127.0.0.1:8080", Some("http://127.0.0.1:8080")),
            ("[::1]:8080", Some("http://[::1]:8080")),
            ("berth.example.org", Some("https://berth.example.org")),
            ("10.0.0.1:8080", Some("https://10.0.0.1:8080")),
            ("localhost.example.org", Some("https://localhost.example.org")),
            ("ftp://berth.example.org", None),
            ("http://", None),
            ("", None),
            ("two words", None),
        ] {
            assert_eq!(with_scheme(typed).as_deref(), meant, "{typed}");
        }
    }
}
