//! Commands of the service itself.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use berth_server::{app, config::Config};

use crate::cli::ServiceArgs;
use crate::failure::Failure;
use crate::output::{self, Look};

impl ServiceArgs {
    /// The configuration: typed options win over the variables that `env` returns, and those over the file.
    pub fn read(&self, env: impl Fn(&str) -> Option<String>) -> Result<Config> {
        Config::from_sources(self.config.as_deref(), |name| self.typed(name).or_else(|| env(name)))
    }

    fn load(&self) -> Result<Config> {
        self.read(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// A typed option in place of a variable.
    fn typed(&self, name: &str) -> Option<String> {
        match name {
            "BERTH_LISTEN" => self.listen.clone(),
            "BERTH_DATA_DIR" => self.data_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            "BERTH_BASE_URL" => self.base_url.clone(),
            "BERTH_LOG" => self.log.clone(),
            "BERTH_LOG_FORMAT" => self.log_format.clone(),
            _ => None,
        }
    }
}

/// Runs the service until it is told to stop.
pub async fn serve(args: &ServiceArgs, take_over: bool, new_secrets_key: bool) -> Result<ExitCode> {
    let mut config = Config { take_over, ..args.load()? };
    config.secrets.replaces_lost_key = new_secrets_key;
    Box::pin(app::serve(config)).await.map_err(ended)?;
    Ok(ExitCode::SUCCESS)
}

/// Gives the program a code of its own if another service took the database, so that no supervisor starts it again.
fn ended(error: anyhow::Error) -> anyhow::Error {
    if error.is::<app::TakenOver>() { Failure::of(7, error.to_string()) } else { error }
}

/// Stops every machine while the service is off.
pub async fn shutdown(args: &ServiceArgs) -> Result<ExitCode> {
    app::shut_down(args.load()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Copies the database into a new file.
pub async fn back_up(look: Look, args: &ServiceArgs, file: &Path) -> Result<ExitCode> {
    app::back_up(&args.load()?, file).await?;
    let path = file.display().to_string();
    let said = format!("The database lies in {path}. What else a backup needs: docs/operating.md");
    output::done(look, &path, &path, &said);
    Ok(ExitCode::SUCCESS)
}

/// Shows what this machine can do.
pub async fn doctor(args: &ServiceArgs, gpu: bool) -> Result<ExitCode> {
    let config = args.load()?;
    let report = if gpu { app::doctor_of_gpus(&config) } else { app::doctor(&config).await };
    println!("{report}");
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::ended;
    use crate::failure;

    #[test]
    fn a_service_that_was_taken_over_from_ends_with_a_code_of_its_own() {
        assert_eq!(failure::code(&ended(berth_server::app::TakenOver.into())), 7);
        assert_eq!(failure::code(&ended(anyhow::anyhow!("another reason"))), 1);
    }
}
