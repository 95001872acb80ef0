//! What a build takes from this machine, and what it tells.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use berth_client::{BuildEvent, Error, ProjectClient, Template, Upload};
use berth_domain::sandbox::dockerfile::pattern::Ignore;
use futures::StreamExt;
use reqwest::Body;

use crate::commands::sandbox::copy::{packing, pieces};
use crate::failure::Failure;
use crate::progress::Meter;

/// Pause before a log that broke off is read on.
const AGAIN: Duration = Duration::from_millis(500);
/// Times in a row that a log may break off before it is let be: the build goes on.
const MOST_BREAKS: u32 = 20;

/// Sends an image as `docker save` writes it.
pub async fn send_image(project: &ProjectClient, file: &Path) -> Result<Upload> {
    let unreadable = || format!("{} cannot be read", file.display());
    let open = tokio::fs::File::open(file).await.with_context(unreadable)?;
    let length = open.metadata().await.with_context(unreadable)?.len();
    let meter = Meter::new(&file.to_string_lossy(), Some(length));
    Ok(project.upload(Body::wrap_stream(pieces(open, meter))).await?)
}

/// Sends the files that a Dockerfile copies from, but for what their `.dockerignore` leaves out.
pub async fn send_context(project: &ProjectClient, directory: PathBuf) -> Result<Upload> {
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{} is no directory", directory.display())));
    }
    let ignore = ignored(&directory)?;
    let wanted = move |path: &Path| {
        // Names that are no text match no pattern, and the service reads the file itself.
        path.to_str().is_none_or(|path| path == IGNORE || !ignore.leaves_out(path))
    };
    let (body, packed) = packing(directory, "context", wanted);
    let sent = project.upload(body).await;
    // What went wrong on this side says more than a request that broke off.
    match packed.await? {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(sent?),
    }
}

const IGNORE: &str = ".dockerignore";

fn ignored(directory: &Path) -> Result<Ignore> {
    let path = directory.join(IGNORE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ignore::parse(&text).map_err(Failure::usage),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Ignore::default()),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
    }
}

/// Shows what a build tells, as it comes, until it is over or the time is.
pub async fn show(
    project: &ProjectClient,
    template: &Template,
    follow: bool,
    until: Option<Instant>,
    tell: &mut dyn FnMut(&str),
) -> Result<()> {
    let shown = follow_log(project, &template.id, follow, tell);
    let Some(until) = until else { return shown.await };
    // Whoever waits for the template says that it is late.
    tokio::time::timeout_at(until.into(), shown).await.unwrap_or(Ok(()))
}

async fn follow_log(project: &ProjectClient, id: &str, follow: bool, told: &mut dyn FnMut(&str)) -> Result<()> {
    let mut offset = 0;
    let mut breaks = 0;
    loop {
        let events = match project.build_log(id, offset, follow).await {
            Ok(events) => events,
            Err(error) if breaks == 0 || breaks == MOST_BREAKS || !passes(&error) => return Err(error.into()),
            Err(_) => {
                breaks += 1;
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let mut events = std::pin::pin!(events);
        while let Some(Ok(event)) = events.next().await {
            match event {
                BuildEvent::Log { text, offset: at } => {
                    told(&text);
                    (offset, breaks) = (at, 0);
                }
                BuildEvent::End => return Ok(()),
            }
        }
        breaks += 1;
        if breaks > MOST_BREAKS {
            return Ok(());
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Whether a failure may be over soon: the service restarts.
fn passes(error: &Error) -> bool {
    match error {
        Error::Api { status, .. } => *status >= 500,
        Error::Unreachable { .. } | Error::Protocol(_) => true,
        Error::File(_) => false,
    }
}
