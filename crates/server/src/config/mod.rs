//! Configuration: one struct for each concern, parsed once, unknown keys refused.
//!
//! A TOML file (`--config`, `BERTH_CONFIG`), and over it the environment variables of the contract,
//! section 5. What leaves here is complete and valid: nobody asks the environment again.

mod acceleration;
mod audit;
mod catalog;
mod http;
mod identity;
mod log;
mod lost;
mod mail;
pub mod model;
mod prices;
mod quota;
mod sandbox;
mod secrets;
mod traces;
mod vm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use berth_domain::gateway::{Model, Voice};
use serde::Deserialize;

pub use self::http::Http;
pub use self::http::Tls;
pub use acceleration::Acceleration;
pub use audit::Audit;
pub use catalog::{Catalog, Plan, Region, VmConfig};
pub use identity::{Identity, SignUpMode, VerifiedEmail};
pub use log::LogFormat;
pub use lost::Lost;
pub use mail::{Mail, Sms};
pub use model::Gateway;
pub use prices::{Amount, PlanPrice, Prices};
pub use quota::Quota;
pub use sandbox::Sandbox;
pub use secrets::Secrets;
pub use traces::Traces;
pub use vm::Vm;

/// Everything the service is told from outside.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the API.
    pub listen: SocketAddr,
    /// Folder of everything the service keeps.
    pub data_dir: PathBuf,
    /// `postgres://…` or `sqlite:PATH`; empty for SQLite in the data folder.
    pub database_url: String,
    /// Whether the data folder takes the database from the one that keeps it.
    #[serde(skip)]
    pub take_over: bool,
    /// Address people reach the service at; when empty `listen`, with `https://` where the service speaks TLS.
    pub base_url: String,
    /// How machines are accelerated.
    pub accel: Acceleration,
    /// Filter of the log, as `info` or `berth_server=debug,info`.
    pub log: String,
    /// How log lines look.
    pub log_format: LogFormat,
    /// The first administrator's address; read at the first start only.
    pub admin_email: String,
    /// The first administrator's password; read at the first start only, made up and left in a file when empty.
    #[serde(skip)]
    pub admin_password: Secret,
    /// How the service is reached.
    pub http: Http,
    /// The key that secrets are sealed with.
    pub secrets: Secrets,
    /// Records of what was done.
    pub audit: Audit,
    /// What no row owns.
    pub lost: Lost,
    /// Accounts, tokens, limits.
    pub identity: Identity,
    /// Mail.
    pub mail: Mail,
    /// Text messages.
    pub sms: Sms,
    /// What new projects and organizations may have.
    pub quota: Quota,
    /// Machines.
    pub vm: Vm,
    /// Sandboxes.
    pub sandbox: Sandbox,
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
    /// What an hour of everything costs that has no plan.
    pub prices: Prices,
    /// What is on offer.
    #[serde(flatten)]
    pub catalog: Catalog,
}

/// A text that never shows itself.
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            data_dir: PathBuf::new(),
            database_url: String::new(),
            take_over: false,
            base_url: String::new(),
            accel: Acceleration::Auto,
            log: "info".into(),
            log_format: LogFormat::Auto,
            admin_email: "admin@berth.local".into(),
            admin_password: Secret::default(),
            http: Http::default(),
            secrets: Secrets::default(),
            audit: Audit::default(),
            lost: Lost::default(),
            identity: Identity::default(),
            mail: Mail::default(),
            sms: Sms::default(),
            quota: Quota::default(),
            vm: Vm::default(),
            sandbox: Sandbox::default(),
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
    /// Reads the file and what `env` answers.
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
        Ok(config)
    }

    /// The address people reach the service at, where it is more than the one it listens on.
    pub fn public_url(&self) -> Option<&str> {
        (self.base_url != self.own_url()).then_some(self.base_url.as_str())
    }

    /// The address that it listens on.
    pub fn own_url(&self) -> String {
        let scheme = if self.http.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.listen)
    }

    /// Who may sign up.
    pub fn sign_up(&self) -> SignUpMode {
        let default = if self.is_loopback_only() { SignUpMode::Open } else { SignUpMode::Invited };
        self.identity.signup.unwrap_or(default)
    }

    /// Whether nobody but this machine can reach the service, as far as the configuration tells: what has the API is on
    /// loopback, no proxy is trusted to bring others' requests, and no other address is the one that people reach it at.
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
        let texts: [(&str, &mut String); 7] = [
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

    /// Fills in what follows from the rest, and checks what only fits together.
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
        check_base_url(&self.base_url)?;
        log::check(&self.log)?;
        // The address may hold a password: it is not repeated.
        crate::db::check_address(&self.database_url)
            .map_err(|wrong| anyhow!("database_url (BERTH_DATABASE_URL) {wrong}"))?;
        self.http.check(self.listen)?;
        self.audit.check()?;
        self.lost.check()?;
        self.catalog.check()?;
        self.quota.check()?;
        self.vm.check()?;
        self.sandbox.check()?;
        self.mail.check()?;
        self.sms.check()?;
        self.gateway.complete(&self.data_dir)?;
        self.traces.check()?;
        model::check(&self.models, &self.voices)?;
        self.identity.check()
    }
}

/// Whether a URL's host is this machine by its loopback.
fn names_loopback(url: &str) -> bool {
    let host = url.parse::<reqwest::Url>().ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|a| a.to_canonical().is_loopback())
}

/// Links in mails begin with it, and callers are told to come back to it.
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
mod tests {
    use super::*;

    fn with(text: &str, env: &[(&str, &str)]) -> Result<Config> {
        let dir = tempfile::tempdir()?;
        let file = dir.path().join("berth.toml");
        std::fs::write(&file, text)?;
        Config::from_sources(Some(&file), |name| {
            if name == "HOME" {
                return Some("/home/someone".into());
            }
            env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn defaults_are_complete() {
        let config = with("", &[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        assert_eq!(config.data_dir, Path::new("/home/someone/.local/share/berth"));
        assert_eq!(config.database_url, "sqlite:/home/someone/.local/share/berth/berth.db");
        assert_eq!(config.base_url, "http://127.0.0.1:8080");
        assert!(config.catalog.vm_configs.iter().any(|c| c.id == "tiny" && c.memory_mb == 512));
    }

    #[test]
    fn who_speaks_tls_is_reached_by_https() {
        let config = with("[http]\ntls = { cert = \"/c.pem\", key = \"/k.pem\" }\n", &[]).unwrap();
        assert_eq!((config.base_url.as_str(), config.public_url()), ("https://127.0.0.1:8080", None));
        let config = with("base_url = \"https://berth.example.com/\"", &[]).unwrap();
        assert_eq!(config.public_url(), Some("https://berth.example.com"));
    }

    #[test]
    fn models_and_voices_are_read() {
        let text = "[[models]]\nid = \"acme/tiny\"\naliases = [\"tiny\"]\nprice = { input = 0.15, output = 0.60 }\n\
                    [[models.upstreams]]\nurl = \"http://127.0.0.1:9101/v1\"\nweight = 3\n\
                    [[voices]]\nid = \"alloy\"\nespeak = \"de\"\n[[voices]]\nid = \"anna\"\nespeak = \"de+f2\"\n";
        let config = with(text, &[]).unwrap();
        let model = &config.models[0];
        assert_eq!((model.id.as_str(), model.upstreams[0].weight, model.price.input.0), ("acme/tiny", 3, 150_000_000));
        assert_eq!(config.voices.len(), 7, "one more than there are, and one in another's place");
        assert_eq!(with("", &[]).unwrap().voices, Voice::defaults());
    }

    #[test]
    fn proxies_are_trusted_by_network_or_address() {
        assert!(with("", &[]).unwrap().http.trusted_proxies.is_empty());
        let text = "[http]\ntrusted_proxies = [\"10.0.0.0/8\", \"127.0.0.1\", \"2001:db8::/32\"]\n";
        let networks = with(text, &[]).unwrap().http.trusted_proxies;
        let shown: Vec<String> = networks.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.0.0.0/8", "127.0.0.1/32", "2001:db8::/32"]);
    }

    #[test]
    fn what_others_reach_is_not_on_loopback_only() {
        for (text, expected) in [
            ("", true),
            ("listen = \"[::1]:8080\"\n", true),
            ("listen = \"127.0.0.1:80\"\nbase_url = \"http://localhost:80\"\n", true),
            ("base_url = \"http://127.0.0.2\"\n", true),
            ("listen = \"0.0.0.0:8080\"\n", false),
            ("listen = \"[::]:8080\"\n", false),
            ("listen = \"192.0.2.1:8080\"\n", false),
            ("base_url = \"https://berth.example.com\"\n", false),
            ("[http]\ntrusted_proxies = [\"127.0.0.1\"]\n", false),
            ("[http]\nadmin_listen = \"192.0.2.1:8443\"\n", false),
            ("[http]\nadmin_listen = \"127.0.0.1:8443\"\n", true),
            ("[http]\nmetrics_listen = \"0.0.0.0:9090\"\n", true),
        ] {
            let config = with(text, &[]).unwrap();
            let mode = if expected { SignUpMode::Open } else { SignUpMode::Invited };
            assert_eq!((config.is_loopback_only(), config.sign_up()), (expected, mode), "{text}");
            let told = with(&format!("{text}\n[identity]\nsignup = \"closed\"\n"), &[]).unwrap();
            assert_eq!(told.sign_up(), SignUpMode::Closed);
        }
    }

    #[test]
    fn environment_wins_over_the_file() {
        let config = with(
            "listen = \"127.0.0.1:1\"\n[identity]\naccess_token_seconds = 60\n",
            &[("BERTH_LISTEN", "127.0.0.1:2")],
        )
        .unwrap();
        assert_eq!(config.listen.port(), 2);
        assert_eq!(config.identity.access_token_seconds, 60);
    }

    #[test]
    fn what_an_address_is_verified_for_follows_from_where_the_service_listens() {
        for (text, expected) in [
            ("", VerifiedEmail::Never),
            ("listen = \"0.0.0.0:8080\"\n", VerifiedEmail::Acting),
            ("listen = \"[::1]:8080\"\n", VerifiedEmail::Never),
            ("[identity]\nrequire_verified_email = false\n", VerifiedEmail::Acting),
            ("[identity]\nrequire_verified_email = true\n", VerifiedEmail::SignIn),
            ("listen = \"0.0.0.0:1\"\n[identity]\nrequire_verified_email = \"never\"\n", VerifiedEmail::Never),
        ] {
            assert_eq!(with(text, &[]).unwrap().identity.require_verified_email, expected, "{text}");
        }
    }

    /// A configuration, its environment, and a word of the error it gives.
    type Mistake = (&'static str, &'static [(&'static str, &'static str)], &'static str);

    fn refused(mistakes: &[Mistake]) {
        for (text, env, word) in mistakes {
            let error = format!("{:#}", with(text, env).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        refused(&[
            ("lissten = 1", &[], "lissten"),
            ("[identity]\nfoo = 1", &[], "foo"),
            ("[http]\ntrusted_proxies = [\"10.0.0.0/33\"]", &[], "10.0.0.0/33"),
            ("[http]\ntrusted_proxies = [\"proxy.internal\"]", &[], "trusted_proxies"),
            ("[http]\ntrusted = []", &[], "trusted"),
            ("[audit]\nretention_days = -1", &[], "retention_days"),
            ("[audit]\nrefusals = 999", &[], "audit.refusals"),
            ("[audit]\nrefusals = 1000000001", &[], "audit.refusals"),
            ("[lost]\ndays = 0", &[], "lost.days"),
            ("[lost]\ndays = 3651", &[], "lost.days"),
            ("[secrets]\nfile = \"x\"", &[], "file"),
            ("[secrets]\nkey_env = \"NOT_SET\"", &[], "NOT_SET"),
            ("[secrets]\nkey_env = \"K\"\nkey_file = \"k\"", &[("K", "x")], "exclude each other"),
            ("[identity]\nrequire_verified_email = \"no\"", &[], "never"),
            ("[identity]\nsignup = \"maybe\"", &[], "signup"),
            ("[identity]\nsignups_per_minute_per_network = 0", &[], "signups_per_minute_per_network"),
            ("[identity]\nlogin_failures_ceiling = 4", &[], "login_failures_ceiling"),
            ("[identity]\nended_sessions_days = 0", &[], "ended_sessions_days"),
            ("[vm]\nstop_seconds = 0", &[], "stop_seconds"),
            ("[quota.project]\nvms = -1", &[], "quota.project.vms"),
            ("[quota.organization]\nspend_per_month = 1000000001", &[], "quota.organization.spend_per_month"),
            ("[quota.project]\nwms = 1", &[], "wms"),
            ("[quota]\norganizations_per_person = -1", &[], "organizations_per_person"),
            ("[quota.organization]\nprojects = -1", &[], "quota.organization.projects"),
            ("[quota.project]\nprojects = 5", &[], "quota.organization.projects"),
            ("[sandbox]\norganization_stored_gb = 0", &[], "organization_stored_gb"),
            ("[sandbox]\nmax_sandboxes = 0", &[], "max_sandboxes"),
            ("[sandbox]\nupload_mb = 0", &[], "upload_mb"),
            ("[sandbox]\nbuild_seconds = 3601", &[], "build_seconds"),
            ("[gateway]\nkeep_alive_millis = 0", &[], "keep_alive_millis"),
            ("[gateway]\nmax_requests_per_project = 0", &[], "max_requests_per_project"),
            ("[gateway]\nbody_mb = 63", &[], "gateway.body_mb "),
            ("[gateway]\nbody_mb_per_project = 1048577", &[], "body_mb_per_project"),
            ("[gateway]\nkey_env = [\"*\"]", &[], "key_env"),
            ("[traces]\nendpoint = \"collector\"", &[], "traces.endpoint"),
            ("[traces]\nurl = \"http://h\"", &[], "url"),
            ("[[models]]\nid = \"a\"\n", &[], "upstreams"),
            ("[[models]]\nid = \"a\"\nupstream = []\n", &[], "upstream: no such field"),
            ("[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", wait = 1 }]\n", &[], "wait: no such field"),
            (
                "[[models]]\nid = \"a\"\nprice = { put = 1 }\nupstreams = [{ url = \"http://h\" }]\n",
                &[],
                "price.put: no such field",
            ),
            (
                "[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", api_key_env = \"NOT_SET_ANYWHERE\" }]\n",
                &[],
                "NOT_SET_ANYWHERE",
            ),
            ("[[voices]]\nid = \"a\"\n", &[], "espeak"),
            ("", &[("BERTH_ACCEL", "fast")], "BERTH_ACCEL"),
            ("", &[("BERTH_LISTEN", "x")], "BERTH_LISTEN"),
        ]);
    }

    #[test]
    fn mistakes_of_where_it_is_reached_are_named() {
        refused(&[
            ("[http]\ncors_origins = [\"app.example.com\"]", &[], "like https://app.example.com"),
            ("[http]\ncors_origins = [\"https://app.example.com/\"]", &[], "cors_origins"),
            ("[http]\ntls = { cert = \"a.pem\" }", &[], "key"),
            ("[http]\nmax_connections = 0", &[], "max_connections"),
            ("[http]\nmax_connections_per_client = 0", &[], "max_connections_per_client"),
            ("[http]\nhead_seconds = 0", &[], "head_seconds"),
            ("[http]\nidle_seconds = 0", &[], "idle_seconds"),
            ("[http]\nbody_grace_seconds = 0", &[], "body_grace_seconds must be 1 to 600"),
            ("[http]\nbody_grace_seconds = 601", &[], "body_grace_seconds must be 1 to 600"),
            ("[http]\nmetrics_listen = \"127.0.0.1:8080\"", &[], "metrics_listen"),
            ("[http]\nmetrics_listen = \"[::1]:1\"\nadmin_listen = \"[::1]:1\"", &[], "different addresses"),
            ("", &[("BERTH_LOG", "loud")], "off, error, warn, info, debug, trace"),
            ("log = \"foo=bar=baz\"", &[], "'foo=bar=baz'"),
            ("", &[("BERTH_LOG_FORMAT", "xml")], "auto, json or text"),
            ("base_url = \"berth.example.com\"", &[], "like https://berth.example.com"),
            ("base_url = \"ftp://berth.example.com\"", &[], "like https://berth.example.com"),
            ("base_url = \"https://\"", &[], "base_url"),
            ("base_url = \"https://h/?a=b\"", &[], "base_url"),
            ("", &[("BERTH_DATABASE_URL", "mysql://x")], "sqlite:PATH"),
            ("database_url = \"postgress://h/x\"", &[], "postgress:"),
            ("[[vm_configs]]\nid = \"a\"\nvcpu = 0\nmemory_mb = 1\n", &[], "vcpu"),
        ]);
    }
}
