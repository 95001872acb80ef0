//! The service itself.

use std::process::ExitCode;

use anyhow::Result;
use berth_server::{app, config::Config};

use crate::cli::ServeArgs;

/// Runs the service until it is told to stop.
pub async fn serve(args: &ServeArgs) -> Result<ExitCode> {
    app::serve(Config::load(args.config.as_deref())?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Stops every machine while the service is off.
pub async fn shutdown(args: &ServeArgs) -> Result<ExitCode> {
    app::shut_down(Config::load(args.config.as_deref())?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Tells what this machine can do.
pub async fn doctor(args: &ServeArgs) -> Result<ExitCode> {
    let report = app::doctor(&Config::load(args.config.as_deref())?).await;
    println!("{report}");
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
