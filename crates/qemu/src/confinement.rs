//! What machines' processes can be confined to on this host: found out by trying, once.
//!
//! A process of the launcher's is given everything that a machine is to have. Where that fails, each part is tried alone,
//! so that what is missing has a name. From then on what was found is demanded of every start.

use std::path::Path;

use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::launch::{Order, Part, launch};
use crate::machine::Lock;
use crate::{Error, Result, groups, host};

/// A file to try with.
const LENT: &str = "lent";
/// A program that every host has and that does nothing.
const NOTHING: &str = "true";

/// What holds on this host, and what does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    parts: Vec<Part>,
    lends: bool,
    missing: Vec<String>,
}

/// What this host has, found out at the first question. `dir` is a folder in which the service may make others.
pub async fn of_host(dir: &Path) -> &'static Confinement {
    static FOUND: OnceCell<Confinement> = OnceCell::const_new();
    FOUND.get_or_init(|| find(dir)).await
}

impl Confinement {
    /// What a machine's process has to itself.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether a file can be lent to it that it would else write to.
    pub(crate) fn lends(&self) -> bool {
        self.lends
    }

    /// What it does not have: a sentence for each, for an operator.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Refuses where something is missing, with all of it.
    pub(crate) fn require(&self) -> Result<()> {
        if self.missing.is_empty() { Ok(()) } else { Err(Error::Unconfined(self.missing.join("; "))) }
    }
}

async fn find(dir: &Path) -> Confinement {
    let mut found = Confinement::default();
    // Without root, everything else is had within a namespace of users.
    let first: &[Part] = if rustix::process::geteuid().is_root() { &[] } else { &[Part::Users] };
    let all = [first, &Part::ALL].concat();
    if has(dir, &all, false).await.is_ok() {
        found.parts = all;
    } else {
        for part in &all {
            let alone = if first.contains(part) { vec![*part] } else { [first, &[*part]].concat() };
            match has(dir, &alone, false).await {
                Ok(()) => found.parts.push(*part),
                Err(error) => found.missing.push(format!("{}: {error}", name(*part))),
            }
        }
    }
    found.lends = has(dir, &found.parts, true).await.is_ok();
    if let Err(reason) = groups::possible() {
        found.missing.push(format!("limits of memory, threads and processors: {reason}"));
    }
    tracing::debug!(?found, "looked at how machines are confined");
    found
}

const fn name(part: Part) -> &'static str {
    match part {
        Part::Users => "users of its own (user namespaces; or run the service as root)",
        Part::Network => "a network of its own",
        Part::Processes => "processes of its own",
        Part::Files => "a tree of files of its own",
        Part::Names => "names and shared memory of its own",
    }
}

/// Starts a program that does nothing, confined to some parts, with a file lent to it or without.
async fn has(dir: &Path, parts: &[Part], lent: bool) -> Result<()> {
    let dir = dir.join(format!(".probe-{}", Uuid::now_v7()));
    let failed = |what: &'static str| move |e| Error::io(what, e);
    std::fs::create_dir_all(&dir).map_err(failed("cannot make a folder to try in"))?;
    let tried = attempt(&dir, parts, lent).await;
    // What stays is an empty folder, and told where folders are looked through.
    let _ = std::fs::remove_dir_all(&dir);
    tried
}

async fn attempt(dir: &Path, parts: &[Part], lends: bool) -> Result<()> {
    let program = host::find(NOTHING).ok_or_else(|| Error::Invalid("there is no program to try with".into()))?;
    let lock = Lock::take(dir).await?.ok_or_else(|| Error::Invalid("the folder to try in is gone".into()))?;
    let lend = lends.then(|| LENT.into());
    if lends {
        std::fs::write(dir.join(LENT), "").map_err(|e| Error::io("cannot make a file to try with", e))?;
    }
    let order = Order { program, lend, dir: dir.to_path_buf(), parts: parts.to_vec(), ..Order::default() };
    launch(&order, lock.share()?, &dir.join("log")).await
}
