//! What machines' processes can be confined to on this host: found out by trying, once.
//!
//! A process of the launcher's is given everything that a machine is to have. Where that fails, each part is tried alone,
//! so that what is missing has a name. From then on what was found is demanded of every start. Only what the kernel says it
//! does not do counts as missing: a lack of the moment, as of memory or descriptors, is an error of that start, and the next
//! one tries again, so that no busy hour takes the walls of all later machines away.

use std::path::Path;
use std::time::Duration;

use tokio::sync::OnceCell;
use uuid::Uuid;

use crate::error::at;
use crate::launch::{Order, Part, launch};
use crate::machine::Lock;
use crate::{Error, Result, groups, host};

/// How folders to try in are called.
const PROBE: &str = ".probe-";
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

/// What this host has, found out at the first question that can be answered. `dir` is a folder in which the service may
/// make others.
///
/// # Errors
/// It cannot be found out now.
pub async fn of_host(dir: &Path) -> Result<&'static Confinement> {
    static FOUND: OnceCell<Confinement> = OnceCell::const_new();
    FOUND.get_or_try_init(|| find(dir)).await
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

async fn find(dir: &Path) -> Result<Confinement> {
    let mut found = Confinement::default();
    // Without root, everything else is had within a namespace of users.
    let first: &[Part] = if rustix::process::geteuid().is_root() { &[] } else { &[Part::Users] };
    let all = [first, &Part::ALL].concat();
    if lack(has(dir, &all, false).await)?.is_none() {
        found.parts = all;
    } else {
        for part in &all {
            let alone = if first.contains(part) { vec![*part] } else { [first, &[*part]].concat() };
            match lack(has(dir, &alone, false).await)? {
                None => found.parts.push(*part),
                Some(reason) => found.missing.push(format!("{}: {reason}", name(*part))),
            }
        }
    }
    found.lends = lack(has(dir, &found.parts, true).await)?.is_none();
    if let Err(reason) = groups::possible() {
        let types = "run the service as root, or let systemd delegate control groups to it";
        found.missing.push(format!("limits of memory, threads and processors: {reason}; {types}"));
    }
    tracing::debug!(?found, "looked at how machines are confined");
    if !found.missing.is_empty() {
        tracing::warn!(missing = found.missing.join("; "), "machines run without some of their walls");
    }
    Ok(found)
}

/// What the host lacks, by how a try went; an error is of the moment.
fn lack(tried: Result<()>) -> Result<Option<String>> {
    match tried {
        Ok(()) => Ok(None),
        Err(Error::Unconfined(reason)) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
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
    remove_left(dir).await;
    let dir = dir.join(format!("{PROBE}{}", Uuid::now_v7()));
    std::fs::create_dir(&dir).map_err(at("cannot make a folder to try in", &dir))?;
    let tried = attempt(&dir, parts, lent).await;
    // What stays goes with the next try.
    let _ = std::fs::remove_dir_all(&dir);
    tried
}

/// Removes what tries left that were killed: their folders that nobody has locked. One that cannot be removed, as another
/// user's, harms nobody.
async fn remove_left(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PROBE)) {
        if let Ok(Some(_lock)) = Lock::take_within(&entry.path(), Duration::ZERO).await {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

async fn attempt(dir: &Path, parts: &[Part], lends: bool) -> Result<()> {
    let program = host::find(NOTHING).ok_or_else(|| Error::Invalid("there is no program to try with".into()))?;
    let lock = Lock::take(dir).await?.ok_or_else(|| Error::Invalid("the folder to try in is gone".into()))?;
    let lend = lends.then(|| LENT.into());
    if lends {
        std::fs::write(dir.join(LENT), "").map_err(|e| Error::io("cannot make a file to try with", e))?;
    }
    let order = Order { program, lend, dir: dir.to_path_buf(), parts: parts.to_vec(), ..Order::default() };
    launch(&order, &[], lock.share()?, &dir.join("log")).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_killed_try_left_is_gone_and_what_is_under_way_is_not() {
        let root = tempfile::tempdir().unwrap();
        let [left, under_way, other] =
            [".probe-left", ".probe-under-way", "machine"].map(|name| root.path().join(name));
        for dir in [&left, &under_way, &other] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join(LENT), "").unwrap();
        }
        let lock = Lock::take(&under_way).await.unwrap();
        remove_left(root.path()).await;
        assert_eq!([&left, &under_way, &other].map(|dir| dir.is_dir()), [false, true, true]);
        drop(lock);
        // A child of another test that was forked a moment ago has a copy of the lock until it executes its program.
        while under_way.is_dir() {
            remove_left(root.path()).await;
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn only_what_the_host_lacks_is_missing() {
        assert!(matches!(lack(Ok(())), Ok(None)));
        assert_eq!(lack(Err(Error::Unconfined("no namespaces".into()))).unwrap(), Some("no namespaces".into()));
        for error in [Error::NoMemory, Error::Timeout("the launcher"), Error::Qemu("Too many open files".into())] {
            assert!(lack(Err(error)).is_err());
        }
    }
}
