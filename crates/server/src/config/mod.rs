//! Configuration: one struct for each concern, parsed once, unknown keys refused.
//!
//! A TOML file (`--config`, `BERTH_CONFIG`), and over it the environment variables of the contract,
//! section 5. What leaves here is complete and valid: nobody asks the environment again.

mod catalog;
mod identity;
mod mail;
pub mod model;
mod sandbox;
mod traces;
mod vm;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use berth_domain::gateway::{Model, Voice};
use berth_qemu::accel::Request;
use serde::Deserialize;

pub use catalog::{Catalog, Plan, Region, VmConfig};
pub use identity::Identity;
pub use mail::{Mail, Sms};
pub use model::Gateway;
pub use sandbox::Sandbox;
pub use traces::Traces;
pub use vm::Vm;

/// How machines are accelerated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Acceleration {
    /// KVM where a boot under it works, else TCG.
    #[default]
    Auto,
    /// KVM; starting a machine fails where it does not work.
    Kvm,
    /// Software emulation.
    Tcg,
}

impl Acceleration {
    /// The same as the engine asks for it.
    pub(crate) const fn request(self) -> Request {
        match self {
            Self::Auto => Request::Auto,
            Self::Kvm => Request::Kvm,
            Self::Tcg => Request::Tcg,
        }
    }
}

/// Everything the service is told from outside.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address of the API.
    pub listen: SocketAddr,
    /// Folder of everything the service keeps.
    pub data_dir: PathBuf,
    /// `postgres://…`, or empty for SQLite in the data folder.
    pub database_url: String,
    /// Address people reach the service at; `http://` and `listen` when empty.
    pub base_url: String,
    /// How machines are accelerated.
    pub accel: Acceleration,
    /// Filter of the log, as `info` or `berth_server=debug,info`.
    pub log: String,
    /// The first administrator's address; read at the first start only.
    pub admin_email: String,
    /// The first administrator's password; read at the first start only, made up when empty.
    #[serde(skip)]
    pub admin_password: Secret,
    /// Accounts, tokens, limits.
    pub identity: Identity,
    /// Mail.
    pub mail: Mail,
    /// Text messages.
    pub sms: Sms,
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
            base_url: String::new(),
            accel: Acceleration::Auto,
            log: "info".into(),
            admin_email: "admin@berth.local".into(),
            admin_password: Secret::default(),
            identity: Identity::default(),
            mail: Mail::default(),
            sms: Sms::default(),
            vm: Vm::default(),
            sandbox: Sandbox::default(),
            gateway: Gateway::default(),
            traces: Traces::default(),
            models: Vec::new(),
            voices: Voice::defaults(),
            catalog: Catalog::default(),
        }
    }
}

impl Config {
    /// Reads the file, if one is named, and the environment.
    pub fn load(file: Option<&Path>) -> Result<Self> {
        Self::from_sources(file, |name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

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
        (self.base_url != format!("http://{}", self.listen)).then_some(self.base_url.as_str())
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
        let texts: [(&str, &mut String); 6] = [
            ("BERTH_DATABASE_URL", &mut self.database_url),
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
            self.base_url = format!("http://{}", self.listen);
        }
        self.base_url = self.base_url.trim_end_matches('/').to_owned();
        self.catalog.check()?;
        self.vm.check()?;
        self.sandbox.check()?;
        self.mail.check()?;
        self.sms.check()?;
        self.gateway.check()?;
        self.traces.check()?;
        model::check(&self.models, &self.voices)?;
        self.identity.check()
    }
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
    fn mistakes_are_named() {
        for (text, env, word) in [
            ("lissten = 1", &[][..], "lissten"),
            ("[identity]\nfoo = 1", &[], "foo"),
            ("[vm]\nstop_seconds = 0", &[], "stop_seconds"),
            ("[sandbox]\nmax_sandboxes = 0", &[], "max_sandboxes"),
            ("[sandbox]\nupload_mb = 0", &[], "upload_mb"),
            ("[sandbox]\nbuild_seconds = 3601", &[], "build_seconds"),
            ("[gateway]\nkeep_alive_millis = 0", &[], "keep_alive_millis"),
            ("[traces]\nendpoint = \"collector\"", &[], "traces.endpoint"),
            ("[traces]\nurl = \"http://h\"", &[], "url"),
            ("[[models]]\nid = \"a\"\n", &[], "upstreams"),
            ("[[models]]\nid = \"a\"\nupstream = []\n", &[], "'upstream'"),
            ("[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", wait = 1 }]\n", &[], "'wait'"),
            ("[[models]]\nid = \"a\"\nprice = { put = 1 }\nupstreams = [{ url = \"http://h\" }]\n", &[], "'put'"),
            (
                "[[models]]\nid = \"a\"\nupstreams = [{ url = \"http://h\", api_key_env = \"NOT_SET_ANYWHERE\" }]\n",
                &[],
                "NOT_SET_ANYWHERE",
            ),
            ("[[voices]]\nid = \"a\"\n", &[], "espeak"),
            ("", &[("BERTH_ACCEL", "fast")], "BERTH_ACCEL"),
            ("", &[("BERTH_LISTEN", "x")], "BERTH_LISTEN"),
            ("[[vm_configs]]\nid = \"a\"\nvcpu = 0\nmemory_mb = 1\n", &[], "vcpu"),
        ] {
            let error = format!("{:#}", with(text, env).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
