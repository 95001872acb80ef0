//! `berth sandbox cp`: files and directories into a sandbox and out of it.

mod download;
mod look;
mod pack;
mod place;
mod unpack;
mod upload;

pub use pack::Choice;
pub use upload::{packing, pieces};

use std::process::ExitCode;

use anyhow::Result;
use berth_client::{ProjectClient, Runtime};
use clap::Args;

use self::place::Place;
use super::find::{find, is_beyond};
use crate::failure::Failure;

#[derive(Args)]
pub struct CopyArgs {
    /// Source: a path, SANDBOX:PATH, or - for standard input
    from: String,
    /// Destination: SANDBOX:PATH, a path, or - for standard output; if it is a directory, the copy goes into it
    to: String,
    /// Account of the sandbox that reads or writes; paths inside then begin at its home
    #[arg(long, short, value_name = "NAME")]
    user: Option<String>,
}

pub async fn copy(project: &ProjectClient, args: CopyArgs) -> Result<ExitCode> {
    let interrupted = tokio::signal::ctrl_c();
    tokio::select! {
        // Dropping the copy removes what it wrote by half.
        _ = interrupted => Ok(ExitCode::from(130)),
        done = between(project, Place::parse(&args.from), Place::parse(&args.to), args.user.as_deref()) => done,
    }
}

/// The inside of a sandbox, and beyond the workspace if the path or the account is.
async fn inside(project: &ProjectClient, sandbox: &str, path: &str, user: Option<&str>) -> Result<Runtime> {
    let runtime = project.runtime(&find(project, sandbox).await?)?;
    Ok(if is_beyond(path) || user.is_some() { runtime.at_root(user) } else { runtime })
}

async fn between(project: &ProjectClient, from: Place, to: Place, user: Option<&str>) -> Result<ExitCode> {
    match (from, to) {
        (Place::Inside { sandbox, path }, to @ (Place::Local(_) | Place::Stream)) => {
            let runtime = inside(project, &sandbox, &path, user).await?;
            download::download(&runtime, &path, to).await
        }
        (from @ (Place::Local(_) | Place::Stream), Place::Inside { sandbox, path }) => {
            let runtime = inside(project, &sandbox, &path, user).await?;
            upload::upload(&runtime, from, &path).await?;
            Ok(ExitCode::SUCCESS)
        }
        (Place::Inside { .. }, Place::Inside { .. }) => Err(Failure::usage(
            "One of the two has to be of this machine. Between sandboxes: \
             berth sandbox cp A:FILE - | berth sandbox cp - B:FILE",
        )),
        (Place::Local(_) | Place::Stream, Place::Local(_) | Place::Stream) => {
            Err(Failure::usage("One of the two has to be in a sandbox: SANDBOX:PATH, with its name or id"))
        }
    }
}
