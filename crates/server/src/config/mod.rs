//! Configuration: one struct for each concern, parsed once. Unknown keys are refused.
//!
//! A TOML file (`--config`, `BERTH_CONFIG`), and over it the environment variables of the contract, section 5. The
//! result is complete and valid: the rest of the service does not read the environment.

mod acceleration;
mod audit;
mod backup;
mod catalog;
mod disk_store;
mod engine;
mod http;
mod identity;
mod log;
mod lost;
mod mail;
pub mod model;
mod network;
mod price_list;
mod prices;
mod quota;
mod replica;
mod sandbox;
mod secrets;
mod traces;
mod vm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
pub use berth_domain::Secret;
use berth_domain::gateway::{Model, Voice};
use berth_domain::host::placement::Overcommit;
use berth_host::Machines;
use serde::Deserialize;

pub use self::http::Http;
pub use self::http::Tls;
pub use acceleration::Acceleration;
pub use audit::Audit;
pub use backup::{Backups, S3};
pub use catalog::{Catalog, Plan, Region, Share, VmConfig};
pub use disk_store::{DiskStore, DiskStores, Fencing};
pub use identity::{Identity, SignUpMode, VerifiedEmail};
pub use log::LogFormat;
pub use lost::Lost;
pub use mail::{Mail, Sms};
pub use model::Gateway;
pub use network::{Answered, Network, NetworkMode};
pub use prices::{Amount, PlanPrice, Prices};
pub use quota::Quota;
pub use replica::Replica;
pub use sandbox::Sandbox;
pub use secrets::Secrets;
pub use traces::Traces;
pub use vm::Vm;

/// The longest that a request may wait for the database, in seconds: by then its client is gone.
const MOST_DATABASE_WAIT: u64 = 600;
/// The fewest connections to PostgreSQL: one writes, another may still undo what was given up, and requests want to read.
const FEWEST_DATABASE_CONNECTIONS: u32 = 4;
/// The most: far more than a PostgreSQL of usual settings has.
const MOST_DATABASE_CONNECTIONS: u32 = 500;

/// Everything that the operator tells the service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the API.
    pub listen: SocketAddr,
    /// Folder of all that the service keeps.
    pub data_dir: PathBuf,
    /// `postgres://…` or `sqlite:PATH`; empty for SQLite in the data folder.
    pub database_url: String,
    /// Seconds that a request waits for the database before the answer is `service_unavailable`.
    pub database_wait_seconds: u64,
    /// Connections to PostgreSQL at most.
    pub database_connections: u32,
    /// Whether this data folder takes the database from the folder that keeps it.
    #[serde(skip)]
    pub take_over: bool,
    /// Address at which people reach the service; when empty `listen`, with `https://` where the service speaks TLS.
    pub base_url: String,
    /// How machines are accelerated.
    pub accel: Acceleration,
    /// Filter of the log, as `info` or `berth_server=debug,berth_host=debug,info`.
    pub log: String,
    /// Form of log lines.
    pub log_format: LogFormat,
    /// The first administrator's address; only the first start reads it.
    pub admin_email: String,
    /// The first administrator's password; only the first start reads it. When empty, that start makes one up and
    /// leaves it in a file.
    #[serde(skip)]
    pub admin_password: Secret,
    /// How clients reach the service.
    pub http: Http,
    /// How the service shares its database with others.
    pub replica: Replica,
    /// The key that seals secrets.
    pub secrets: Secrets,
    /// Records of what was done.
    pub audit: Audit,
    /// Things that no row owns.
    pub lost: Lost,
    /// Accounts, tokens, limits.
    pub identity: Identity,
    /// Mail.
    pub mail: Mail,
    /// Text messages.
    pub sms: Sms,
    /// The quotas of new projects and organizations.
    pub quota: Quota,
    /// How machines are confined.
    pub machines: Machines,
    /// Virtual machines.
    pub vm: Vm,
    /// Backups of disks.
    pub backups: Box<Backups>,
    /// Where disks lie that several hosts reach.
    pub disk_stores: DiskStores,
    /// Sandboxes.
    pub sandbox: Sandbox,
    /// The networks of machines.
    pub network: Network,
    /// The gateway to models.
    pub gateway: Gateway,
    /// Traces of requests to models.
    pub traces: Traces,
    /// Models of the configuration.
    #[serde(deserialize_with = "model::models")]
    pub models: Vec<Model>,
    /// Voices.
    #[serde(deserialize_with = "model::voices")]
    pub voices: Vec<Voice>,
    /// What an hour of everything without a plan costs.
    pub prices: Prices,
    /// What is on offer.
    #[serde(flatten)]
    pub catalog: Catalog,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            data_dir: PathBuf::new(),
            database_url: String::new(),
            database_wait_seconds: crate::db::WAIT.as_secs(),
            database_connections: crate::db::CONNECTIONS,
            take_over: false,
            base_url: String::new(),
            accel: Acceleration::Auto,
            log: "info".into(),
            log_format: LogFormat::Auto,
            admin_email: "admin@berth.local".into(),
            admin_password: Secret::default(),
            http: Http::default(),
            replica: Replica::default(),
            secrets: Secrets::default(),
            audit: Audit::default(),
            lost: Lost::default(),
            identity: Identity::default(),
            mail: Mail::default(),
            sms: Sms::default(),
            quota: Quota::default(),
            machines: Machines::default(),
            vm: Vm::default(),
            backups: Box::default(),
            disk_stores: DiskStores::default(),
            sandbox: Sandbox::default(),
            network: Network::default(),
            gateway: Gateway::default(),
            traces: Traces::default(),
            models: Vec::new(),
            voices: Voice::defaults(),
            prices: Prices::default(),
            catalog: Catalog::default(),
        }
    }
}

impl Config {
    /// How often the service promises a MiB of the host to each kind of machine.
    pub const fn overcommit(&self) -> Overcommit {
        Overcommit { vm: self.vm.memory_overcommit, sandbox: self.sandbox.memory_overcommit }
    }

    /// Reads the file and the variables that `env` returns.
    pub fn from_sources(file: Option<&Path>, env: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let file = file.map(Path::to_path_buf).or_else(|| env("BERTH_CONFIG").map(PathBuf::from));
        let text = match &file {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("the configuration file {} cannot be read", path.display()))?,
            None => String::new(),
        };
        let mut config = Self::parse(&text).with_context(|| match &file {
            Some(path) => format!("the configuration file {} is not valid", path.display()),
            None => "the configuration is not valid".into(),
        })?;
        config.apply(&env)?;
        config.complete(&env)?;
        let folder = file.as_deref().and_then(Path::parent);
        config.disk_stores.complete(folder, &config.catalog)?;
        Ok(config)
    }

    /// The address at which people reach the service, where it differs from the one on which it listens.
    pub fn public_url(&self) -> Option<&str> {
        (self.base_url != self.own_url()).then_some(self.base_url.as_str())
    }

    /// The URL of the address on which it listens.
    pub fn own_url(&self) -> String {
        let scheme = if self.http.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }

    /// Who may sign up.
    pub fn sign_up(&self) -> SignUpMode {
        let default = if self.is_loopback_only() { SignUpMode::Open } else { SignUpMode::Invited };
        self.identity.signup.unwrap_or(default)
    }

    /// Whether only this machine can reach the service, as far as the configuration says: the API's addresses are on
    /// loopback, no proxy is trusted to bring others' requests, and the base URL is no other address.
    pub fn is_loopback_only(&self) -> bool {
        let here = self.base_url.is_empty() || names_loopback(&self.base_url);
        let mut doors = std::iter::once(self.listen).chain(self.http.admin_listen);
        doors.all(|door| door.ip().to_canonical().is_loopback()) && self.http.trusted_proxies.is_empty() && here
    }

    fn parse(text: &str) -> Result<Self> {
        Ok(toml::from_str(text)?)
    }

    fn apply(&mut self, env: &impl Fn(&str) -> Option<String>) -> Result<()> {
        if let Some(listen) = env("BERTH_LISTEN") {
            self.listen = listen
                .parse()
                .with_context(|| format!("BERTH_LISTEN is '{listen}'; it must be an address like 127.0.0.1:8080"))?;
        }
        if let Some(accel) = env("BERTH_ACCEL") {
            self.accel = match accel.as_str() {
                "auto" => Acceleration::Auto,
                "kvm" => Acceleration::Kvm,
                "tcg" => Acceleration::Tcg,
                other => bail!("BERTH_ACCEL is '{other}'; it must be auto, kvm or tcg"),
            };
        }
        if let Some(format) = env("BERTH_LOG_FORMAT") {
            self.log_format = LogFormat::named(&format)?;
        }
        if let Some(listen) = env("BERTH_REPLICA_LISTEN") {
            self.replica.listen = Some(listen.parse().with_context(|| {
                format!("BERTH_REPLICA_LISTEN is '{listen}'; it must be an address like 10.0.0.1:8471")
            })?);
        }
        let texts: [(&str, &mut String); 8] = [
            ("BERTH_REPLICA_ADDRESS", &mut self.replica.address),
            ("BERTH_DATABASE_URL", &mut self.database_url),
            ("BERTH_BASE_URL", &mut self.base_url),
            ("BERTH_LOG", &mut self.log),
            ("BERTH_ADMIN_EMAIL", &mut self.admin_email),
            ("BERTH_ADMIN_PASSWORD", &mut self.admin_password.0),
            ("BERTH_SMTP_URL", &mut self.mail.smtp_url.0),
            ("BERTH_SMS_WEBHOOK_TOKEN", &mut self.sms.webhook_token.0),
        ];
        for (name, slot) in texts {
            if let Some(value) = env(name) {
                *slot = value;
            }
        }
        if let Some(dir) = env("BERTH_DATA_DIR") {
            self.data_dir = dir.into();
        }
        self.traces.apply(env);
        Ok(())
    }

    /// Fills in what follows from other values, and checks values against each other.
    fn complete(&mut self, env: &impl Fn(&str) -> Option<String>) -> Result<()> {
        if self.data_dir.as_os_str().is_empty() {
            self.data_dir = default_data_dir(env)?;
        }
        self.data_dir = std::path::absolute(&self.data_dir)?;
        if self.database_url.is_empty() {
            self.database_url = format!("sqlite:{}", self.data_dir.join("berth.db").display());
        }
        if self.base_url.is_empty() {
            self.base_url = self.own_url();
        }
        self.base_url = self.base_url.trim_end_matches('/').to_owned();
        self.secrets.complete(&self.data_dir, env)?;
        let on_loopback = self.is_loopback_only();
        self.identity.complete(on_loopback);
        self.network.complete(on_loopback, self.listen)?;
        check_base_url(&self.base_url)?;
        log::check(&self.log)?;
        // The address may hold a password, so the message does not repeat it.
        crate::db::check_address(&self.database_url)
            .map_err(|wrong| anyhow!("database_url (BERTH_DATABASE_URL) {wrong}"))?;
        ensure!(
            (1..=MOST_DATABASE_WAIT).contains(&self.database_wait_seconds),
            "database_wait_seconds must be 1 to {MOST_DATABASE_WAIT}"
        );
        ensure!(
            (FEWEST_DATABASE_CONNECTIONS..=MOST_DATABASE_CONNECTIONS).contains(&self.database_connections),
            "database_connections must be {FEWEST_DATABASE_CONNECTIONS} to {MOST_DATABASE_CONNECTIONS}"
        );
        self.http.check(self.listen)?;
        self.replica.check(&self.database_url)?;
        self.audit.check()?;
        self.lost.check()?;
        self.catalog.check()?;
        self.quota.check()?;
        self.machines.check().map_err(Error::msg)?;
        self.vm.check()?;
        self.backups.check()?;
        self.sandbox.check(self.backups.has_place())?;
        self.mail.check()?;
        self.sms.check()?;
        self.gateway.complete(&self.data_dir)?;
        self.traces.check()?;
        model::check(&self.models, &self.voices)?;
        self.identity.check()
    }
}

/// Whether a URL names this machine by its loopback.
fn names_loopback(url: &str) -> bool {
    let host = url.parse::<reqwest::Url>().ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|a| a.to_canonical().is_loopback())
}

/// Checks the URL with which links in mails begin, and to which callers come back.
fn check_base_url(url: &str) -> Result<()> {
    let parsed = url.parse::<::http::Uri>().ok();
    let host = parsed.as_ref().and_then(::http::Uri::host).unwrap_or_default();
    let scheme = parsed.as_ref().and_then(::http::Uri::scheme_str).unwrap_or_default();
    if host.is_empty() || !["http", "https"].contains(&scheme) || url.contains(['?', '#', '@']) {
        bail!("base_url is '{url}'; it must be scheme and host, and perhaps a path, like https://berth.example.com");
    }
    Ok(())
}

/// `$XDG_DATA_HOME/berth`, or `~/.local/share/berth`.
fn default_data_dir(env: &impl Fn(&str) -> Option<String>) -> Result<PathBuf> {
    if let Some(dir) = env("XDG_DATA_HOME") {
        return Ok(PathBuf::from(dir).join("berth"));
    }
    let home = env("HOME").context("neither HOME nor BERTH_DATA_DIR is set; set BERTH_DATA_DIR to a folder")?;
    Ok(PathBuf::from(home).join(".local/share/berth"))
}

#[cfg(test)]
mod tests;
