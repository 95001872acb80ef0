//! The program that serves a model file on this machine: llama.cpp's own server, or the Python package that contains
//! it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use berth_qemu::host;
use tokio::process::Command;
use tokio::sync::Mutex;

/// The version of the package `xllamacpp` that the service installs.
const VERSION: &str = "2026.10.11549";
/// One installation at a time.
static INSTALLING: Mutex<()> = Mutex::const_new(());

/// The program that serves.
#[derive(Debug, PartialEq, Eq)]
pub enum Engine {
    /// llama.cpp's server, a program.
    Server(PathBuf),
    /// A Python with the package.
    Python(PathBuf),
}

/// Finds an engine, or installs one where there is none.
pub async fn find(data_dir: &Path, named: Option<&Path>) -> Result<Engine> {
    if let Some(server) = named.map(Path::to_owned).or_else(|| host::find("llama-server")) {
        return Ok(Engine::Server(server));
    }
    let venv = data_dir.join("venv-llama");
    for python in [venv.join("bin/python"), "python3".into()] {
        if serves(&python).await {
            return Ok(Engine::Python(python));
        }
    }
    let _one = INSTALLING.lock().await;
    let python = venv.join("bin/python");
    if !serves(&python).await {
        let package = format!("xllamacpp=={VERSION}");
        let dir = venv.display();
        tracing::info!("installing llama.cpp's server for model files, {package} of the Python registry, in {dir}");
        install(&venv, &package).await.with_context(|| {
            format!(
                "nothing serves it. Put llama-server on PATH, or type: \
                 python3 -m venv {dir} && {dir}/bin/pip install {package} \
                 (on Debian and Ubuntu after: apt-get install python3-venv)"
            )
        })?;
    }
    Ok(Engine::Python(python))
}

/// A command that gets only what it needs of the service's environment, and is killed when it is dropped.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().kill_on_drop(true);
    command.envs(["PATH", "HOME", "LANG"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

async fn serves(python: &Path) -> bool {
    let mut command = command(python);
    command.args(["-c", "import xllamacpp"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().await.is_ok_and(|status| status.success())
}

async fn install(venv: &Path, package: &str) -> Result<()> {
    let mut make = command("python3");
    succeeds(make.args(["-m", "venv"]).arg(venv)).await?;
    let mut pip = command(venv.join("bin/python"));
    // pip keeps what the operator set for registries, proxies and certificates.
    pip.envs(std::env::vars_os().filter(|(name, _)| of_the_network(&name.to_string_lossy())));
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    pip.args(["--only-binary", ":all:", package]);
    succeeds(&mut pip).await?;
    ensure!(serves(&venv.join("bin/python")).await, "{package} was installed and does not run on this machine");
    Ok(())
}

fn of_the_network(variable: &str) -> bool {
    let proxies = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"];
    let certificates = ["SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"];
    variable.starts_with("PIP_")
        || certificates.contains(&variable)
        || proxies.contains(&variable.to_ascii_lowercase().as_str())
}

/// Runs a command to its end; on failure, the error is the last line of its output.
async fn succeeds(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await.context("python3 cannot be started")?;
    // The module `venv` writes its errors to stdout.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    ensure!(output.status.success(), "{last}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_named_serves() {
        let found = find(Path::new("/nowhere"), Some(Path::new("/opt/llama-server"))).await.unwrap();
        assert_eq!(found, Engine::Server("/opt/llama-server".into()));
    }

    #[tokio::test]
    async fn a_python_without_the_package_does_not() {
        assert!(!serves(Path::new("/nowhere/python")).await);
        assert!(!serves(Path::new("false")).await);
        assert!(serves(Path::new("true")).await);
    }

    #[tokio::test]
    async fn a_failure_says_its_last_line() {
        let mut command = command("sh");
        let error = succeeds(command.args(["-c", "echo first; echo last >&2; echo; exit 1"])).await.unwrap_err();
        assert_eq!(error.to_string(), "last");
        assert!(succeeds(super::command("sh").args(["-c", "exit 0"])).await.is_ok());
    }

    #[test]
    fn what_the_tests_install_is_the_same() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/requirements.txt");
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.lines().any(|line| line == format!("xllamacpp=={VERSION}")), "{text}");
    }

    #[test]
    fn pip_is_told_of_the_network_and_of_no_secret() {
        for name in ["PIP_INDEX_URL", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE"] {
            assert!(of_the_network(name), "{name}");
        }
        for name in ["BERTH_ADMIN_PASSWORD", "OPENAI_API_KEY", "BERTH_DATABASE_URL"] {
            assert!(!of_the_network(name), "{name}");
        }
    }
}
