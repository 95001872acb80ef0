//! `[secrets]`: the key that seals secrets in the database. It must not lie in the database itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use berth_domain::Secret;

/// Where the key lies: in a file, or in a variable of the environment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// Its file, which the first start makes; `secrets.key` of the data folder when empty.
    pub key_file: PathBuf,
    /// The variable that holds it, in place of a file.
    pub key_env: String,
    /// The content of the variable.
    #[serde(skip)]
    pub key: Secret,
    /// Whether the service gives up secrets sealed with another key, because that key is lost.
    #[serde(skip)]
    pub replaces_lost_key: bool,
}

impl Secrets {
    /// Where the key lies, for people.
    pub fn place(&self) -> String {
        if self.key_env.is_empty() {
            format!("the key file {}", self.key_file.display())
        } else {
            format!("the environment variable {}", self.key_env)
        }
    }

    pub(super) fn complete(&mut self, data_dir: &Path, env: &impl Fn(&str) -> Option<String>) -> Result<()> {
        if !self.key_env.is_empty() {
            let both = "secrets.key_file and secrets.key_env exclude each other; keep one";
            ensure!(self.key_file.as_os_str().is_empty(), both);
            let unset = || format!("secrets.key_env names {}, which is not set; set it to the key", self.key_env);
            self.key = Secret(env(&self.key_env).with_context(unset)?);
        } else if self.key_file.as_os_str().is_empty() {
            self.key_file = data_dir.join("secrets.key");
        }
        self.key_file = if self.key_env.is_empty() { std::path::absolute(&self.key_file)? } else { PathBuf::new() };
        Ok(())
    }
}
