//! Where a sign-in is kept: `credentials.json` in the folder of settings, for its owner's eyes only.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};
use berth_client::Tokens;
use serde::{Deserialize, Serialize};

/// A sign-in, and what commands mean by default.
#[derive(Clone, Deserialize, Serialize)]
pub struct Credentials {
    /// Address of the service.
    pub url: String,
    /// Who is signed in.
    pub email: String,
    /// Organization by default.
    pub org: String,
    /// Project by default.
    pub project: String,
    /// The session's tokens.
    pub tokens: Tokens,
}

/// `$XDG_CONFIG_HOME/berth`, or `~/.config/berth`; made if need be.
pub fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let dir = base.context("neither HOME nor XDG_CONFIG_HOME is set")?.join("berth");
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("the folder {} cannot be made", dir.display()))?;
    Ok(dir)
}

fn file() -> Result<PathBuf> {
    Ok(folder()?.join("credentials.json"))
}

impl Credentials {
    /// The sign-in, if there is one.
    pub fn load() -> Result<Option<Self>> {
        let path = file()?;
        match std::fs::read(&path) {
            Ok(bytes) => {
                let parsed = serde_json::from_slice(&bytes);
                parsed
                    .map(Some)
                    .with_context(|| format!("{} cannot be read; sign in again: berth login", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }

    /// Keeps it; whoever reads meanwhile sees the old or the new.
    pub fn save(&self) -> Result<()> {
        let path = file()?;
        let tmp = path.with_extension(format!("tmp-{}", std::process::id()));
        let write = || -> std::io::Result<()> {
            let mut open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&tmp)?;
            open.write_all(&serde_json::to_vec_pretty(self)?)?;
            std::fs::rename(&tmp, &path)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Forgets it.
    pub fn forget() -> Result<()> {
        match std::fs::remove_file(file()?) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
