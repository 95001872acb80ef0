//! The person's own SSH key: the one in their home, or one that `berth` makes and keeps beside the sign-in.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::credentials;

/// The public key in a file; `-` is standard input.
pub fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    }
    Ok(text.trim().to_owned())
}

/// The file of the person's public key: their own, else one that is made.
pub fn public() -> Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let own = ["id_ed25519.pub", "id_rsa.pub"].map(|name| home.join(".ssh").join(name));
    own.into_iter().find(|file| file.is_file()).map_or_else(made, Ok)
}

/// The private key that `berth` made, if any.
pub fn private() -> Result<Option<PathBuf>> {
    Ok(Some(credentials::folder()?.join("id_ed25519")).filter(|file| file.is_file()))
}

fn made() -> Result<PathBuf> {
    let file = credentials::folder()?.join("id_ed25519");
    let public = file.with_extension("pub");
    if !public.is_file() {
        let mut command = std::process::Command::new("ssh-keygen");
        command.args(["-q", "-t", "ed25519", "-N", "", "-C", "berth", "-f"]).arg(&file);
        let made = command.status().context("ssh-keygen is missing; install openssh-client, or use --no-ssh-key")?;
        anyhow::ensure!(made.success(), "no key could be made; make one: ssh-keygen -t ed25519");
        eprintln!("You have no SSH key; one was made: {}", file.display());
    }
    Ok(public)
}
