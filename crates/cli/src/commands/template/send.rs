//! Sends the files on this machine of which a template is built.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use berth_client::{CreateTemplate, Error, ProjectClient, Template, Upload};
use berth_domain::sandbox::dockerfile::pattern::Ignore;
use berth_domain::sandbox::request::UPLOAD;
use reqwest::Body;

use crate::commands::sandbox::copy::{Choice, packing, pieces};
use crate::failure::Failure;
use crate::progress::Meter;
use crate::typed::{Words, lines, retold};

/// The option for each field.
const WORDS: Words = &[
    ("name", "NAME"),
    ("image", "--image"),
    ("dockerfile", "--dockerfile"),
    ("context_id", "--context"),
    ("from_snapshot", "--from-snapshot"),
    ("vcpu", "--vcpu"),
    ("memory_mb", "--memory"),
    ("disk_gb", "--disk"),
    ("env", "--env"),
    ("start_command", "--start-command"),
    ("ready_command", "--ready-command"),
    ("replace", "--replace"),
];
/// Stands for the id of an upload that is not sent yet.
const TO_BE_SENT: &str = "00000000-0000-0000-0000-000000000000";
const IGNORE: &str = ".dockerignore";

/// The files to send.
pub enum Local {
    /// An image as `docker save` writes it.
    Image(PathBuf),
    /// The directory that a Dockerfile copies from.
    Context(PathBuf),
}

/// Starts to build a template; returns it with the id of its upload. Checks the request by the service's own rules
/// first, and sends nothing for one that breaks them. If the service refuses it all the same, removes the upload.
pub async fn begin(
    project: &ProjectClient,
    mut request: CreateTemplate,
    local: Option<Local>,
) -> Result<(Template, Option<String>)> {
    let Some(local) = local else {
        let made = project.create_template(&request).await;
        return Ok((made.map_err(|error| retold(error, WORDS))?, None));
    };
    local.name(&mut request, TO_BE_SENT);
    check(&request)?;
    let upload = local.send(project).await?;
    local.name(&mut request, &upload.id);
    let made = project.create_template(&request).await;
    if matches!(made, Err(Error::Api { .. })) {
        remove(project, &upload.id).await;
    }
    Ok((made.map_err(|error| retold(error, WORDS))?, Some(upload.id)))
}

/// Removes the upload, unless it is gone: the service itself removes a context after the build. If removing fails, the
/// service removes the upload after a day.
pub async fn remove(project: &ProjectClient, upload: &str) {
    match project.delete_upload(upload).await {
        Err(error) if error.status() != Some(404) => {
            eprintln!("berth: the upload could not be removed; the service removes it after a day: {error}");
        }
        _ => {}
    }
}

fn check(request: &CreateTemplate) -> Result<()> {
    let body = serde_json::to_value(request)?;
    let checked = berth_domain::sandbox::request::CreateTemplate::try_from(&body);
    checked.map(drop).map_err(|error| match error.details.as_slice() {
        [] => Failure::usage(error.message),
        details => Failure::usage(lines(details.iter().map(|d| (d.field.as_str(), d.message.as_str())), WORDS)),
    })
}

impl Local {
    /// Puts the upload's id into a request.
    fn name(&self, request: &mut CreateTemplate, id: &str) {
        match self {
            Self::Image(_) => request.image = Some(format!("{UPLOAD}{id}")),
            Self::Context(_) => request.context_id = Some(id.to_owned()),
        }
    }

    async fn send(&self, project: &ProjectClient) -> Result<Upload> {
        match self {
            Self::Image(file) => send_image(project, file).await,
            Self::Context(directory) => send_context(project, directory.clone()).await,
        }
    }
}

async fn send_image(project: &ProjectClient, file: &Path) -> Result<Upload> {
    let unreadable = || format!("{} cannot be read", file.display());
    let open = tokio::fs::File::open(file).await.with_context(unreadable)?;
    let length = open.metadata().await.with_context(unreadable)?.len();
    let meter = Meter::new(&file.to_string_lossy(), Some(length));
    Ok(project.upload(Body::wrap_stream(pieces(open, meter))).await?)
}

async fn send_context(project: &ProjectClient, directory: PathBuf) -> Result<Upload> {
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{} is no directory", directory.display())));
    }
    let choice = Kept::of(&directory)?;
    let (body, packed) = packing(directory, "context", choice);
    let sent = project.upload(body).await;
    // The failure on this side says more than the request that broke off because of it.
    match packed.await? {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(sent?),
    }
}

/// The files of a directory that its `.dockerignore` keeps.
#[derive(Default)]
struct Kept(Ignore);

impl Kept {
    fn of(directory: &Path) -> Result<Self> {
        let path = directory.join(IGNORE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ignore::parse(&text).map(Self).map_err(Failure::usage),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }
}

impl Choice for Kept {
    fn wants(&self, path: &Path) -> bool {
        // A name that is no text matches no pattern; the service also reads `.dockerignore` itself.
        path.to_str().is_none_or(|path| path == IGNORE || !self.0.leaves_out(path))
    }

    fn wants_below(&self, directory: &Path) -> bool {
        directory.to_str().is_none_or(|directory| self.0.takes_back_below(directory))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(text: &str) -> Kept {
        Kept(Ignore::parse(text).unwrap())
    }

    #[test]
    fn what_is_left_out_is_not_sent() {
        let kept = kept("\u{feff}node_modules\n# !comment\n*.log\n!keep.log\n.*\ndist\n ! dist/app/* \n");
        for wanted in [".dockerignore", "src", "src/node_modules", "keep.log", "dist/app/x", "dist/app/x/y"] {
            assert!(kept.wants(Path::new(wanted)), "{wanted}");
        }
        for unwanted in ["node_modules", "node_modules/a", "x.log", ".git", "dist", "dist/app", "dist/other/x"] {
            assert!(!kept.wants(Path::new(unwanted)), "{unwanted}");
        }
        assert!(kept.wants_below(Path::new("dist")) && kept.wants_below(Path::new("dist/app")));
        for closed in ["node_modules", ".git", "dist/other", "dist/app/x", "keep.log"] {
            assert!(!kept.wants_below(Path::new(closed)), "{closed}");
        }
        assert!(!Kept::default().wants_below(Path::new("a")));
        assert!(Ignore::parse("!../x").is_err());
    }

    #[test]
    fn patterns_of_any_depth_are_looked_for_everywhere() {
        let kept = kept("*\n!a/**/b\n!*/c/d\n");
        for open in ["a", "a/x/y/z", "x", "x/c"] {
            assert!(kept.wants_below(Path::new(open)), "{open}");
        }
        assert!(!kept.wants_below(Path::new("x/y/z")));
    }

    proptest! {
        #[test]
        fn nothing_that_is_wanted_lies_where_nobody_looks(
            lines in prop::collection::vec("!?[ab*?/]{1,6}(/\\*\\*)?(/[ab])?", 0..6),
            path in "[ab]{1,2}(/[ab]{1,2}){1,3}",
        ) {
            let kept = kept(&lines.join("\n"));
            let is_sent = kept.wants(Path::new(&path));
            for (at, _) in path.match_indices('/') {
                let above = Path::new(&path[..at]);
                prop_assert!(!is_sent || kept.wants(above) || kept.wants_below(above), "{lines:?} {above:?}");
            }
        }
    }
}
