//! Things that no row owns, set aside.
//!
//! A row exists before its thing and until after it, so a thing without a row should belong to nobody. But a service on
//! an older copy of its database would take everything made since for such things. So a search of the host deletes no
//! disk, layer, memory or upload: it moves them, within the data folder, to `lost/<day>/<kind>/`, from where a person
//! can put them back. The service removes a day's folder when it is old enough.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_domain::Timestamp;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::EngineError;
use crate::clock::Clock;

/// The folder, below the data folder.
pub const FOLDER: &str = "lost";
/// Seconds of a day.
const DAY: i64 = 86_400;
/// Between two looks at what is old enough to go.
const LOOK: Duration = Duration::from_mins(10);

/// Where things are set aside.
#[derive(Clone, Debug)]
pub struct Lost {
    folder: PathBuf,
    days: i64,
}

impl Lost {
    /// In a data folder, for so many whole days.
    pub fn new(data_dir: &Path, days: i64) -> Self {
        Self { folder: data_dir.join(FOLDER), days }
    }

    /// The folder for things of a kind that are set aside now; makes it if need be.
    pub async fn folder(&self, kind: &str, now: Timestamp) -> io::Result<PathBuf> {
        let folder = self.folder.join(now.date()).join(kind);
        tokio::fs::create_dir_all(&folder).await?;
        Ok(folder)
    }

    /// Removes what has been there long enough, at once and every few minutes until told to stop.
    pub async fn keep(self, clock: Clock, stop: CancellationToken) {
        loop {
            self.purge(clock.now()).await;
            if stop.run_until_cancelled(tokio::time::sleep(LOOK)).await.is_none() {
                return;
            }
        }
    }

    /// For how many whole days what was set aside is kept.
    pub const fn days(&self) -> i64 {
        self.days
    }

    /// Removes what was set aside so many whole days ago. What it cannot remove stays until the next time.
    pub async fn purge(&self, now: Timestamp) {
        let oldest_kept = now.plus_seconds(-self.days.saturating_mul(DAY)).date();
        for found in days(&self.folder) {
            let name = found.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if is_day(&name) && name < oldest_kept {
                tracing::warn!(folder = %found.display(), "removing what was set aside and nobody put back");
                if let Err(error) = tokio::fs::remove_dir_all(&found).await {
                    tracing::warn!(folder = %found.display(), %error, "it cannot be removed; trying again later");
                }
            }
        }
    }
}

/// The day of a folder that [`Lost::folder`] gave: where things are set aside on another host.
///
/// # Errors
/// Where it is no such folder.
pub fn day(folder: &Path) -> crate::Result<Timestamp> {
    let day = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    let wrong = |_| EngineError::Permanent(format!("{} is no folder of what was set aside on a day", folder.display()));
    Timestamp::parse(&format!("{day}T00:00:00Z")).map_err(wrong)
}

/// Moves a file or a folder into a folder; does nothing if it is missing. A thing of the same name there stays, too.
pub async fn put(thing: &Path, into: &Path) -> io::Result<()> {
    let name = thing.file_name().unwrap_or_default();
    let mut to = into.join(name);
    if tokio::fs::symlink_metadata(&to).await.is_ok() {
        let mut another = name.to_owned();
        another.push(format!(".{}", Uuid::now_v7()));
        to = into.join(another);
    }
    match tokio::fs::rename(thing, to).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn days(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_day(name: &str) -> bool {
    Timestamp::parse(&format!("{name}T00:00:00Z")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn what_was_set_aside_goes_after_its_days_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let lost = Lost { folder: dir.path().join("lost"), days: 7 };
        let now = Timestamp::parse("2026-03-01T23:59:59Z").unwrap();
        let file = dir.path().join("disk.raw");
        fs::write(&file, "a disk").unwrap();
        let kept = lost.folder("disks", now).await.unwrap();
        assert_eq!(day(&kept).unwrap(), Timestamp::parse("2026-03-01T00:00:00Z").unwrap());
        assert!(day(dir.path()).is_err());
        put(&file, &kept).await.unwrap();
        put(&file, &kept).await.unwrap();
        assert_eq!((file.exists(), fs::read_to_string(kept.join("disk.raw")).unwrap()), (false, "a disk".into()));
        fs::create_dir(dir.path().join("lost/mine")).unwrap();
        lost.purge(now.plus_seconds(7 * DAY)).await;
        assert!(kept.exists());
        lost.purge(now.plus_seconds(7 * DAY + 1)).await;
        assert_eq!((kept.exists(), days(&lost.folder).count()), (false, 1), "what a person put there stays");
    }

    #[tokio::test]
    async fn what_cannot_be_removed_keeps_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let lost = Lost { folder: dir.path().join("lost"), days: 7 };
        let now = Timestamp::parse("2026-03-01T00:00:00Z").unwrap();
        let days = ["2026-01-01", "2026-01-02", "2026-01-03"].map(|day| dir.path().join("lost").join(day));
        fs::create_dir(dir.path().join("lost")).unwrap();
        for (at, day) in days.iter().enumerate() {
            // A file is no folder, so removing it fails.
            if at == 1 { fs::write(day, "").unwrap() } else { fs::create_dir(day).unwrap() }
        }
        lost.purge(now).await;
        assert_eq!(days.map(|day| day.exists()), [false, true, false]);
    }

    #[tokio::test]
    async fn what_is_set_aside_twice_is_there_twice() {
        let dir = tempfile::tempdir().unwrap();
        let (file, into) = (dir.path().join("disk.raw"), dir.path().join("into"));
        fs::create_dir(&into).unwrap();
        for text in ["first", "second"] {
            fs::write(&file, text).unwrap();
            put(&file, &into).await.unwrap();
        }
        assert_eq!(fs::read_to_string(into.join("disk.raw")).unwrap(), "first");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 2);
    }
}
