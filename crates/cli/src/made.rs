//! Things that are made after they were asked for, and waiting for them.

use anyhow::Result;
use berth_client::{Backup, DataDisk, DiskSnapshot, ProjectImage, RestoredDisk, Snapshot};

use crate::progress::{Progress, Stage, watch};

/// A thing that is made after it was asked for.
pub trait Made {
    /// Its id, what it is called, and where it stands.
    fn told(&self) -> (&str, &str, &str);

    /// The step under way, or the reason of a failure.
    fn message(&self) -> Option<&str>;
}

macro_rules! made {
    ($($thing:ty),*) => {$(
        impl Made for $thing {
            fn told(&self) -> (&str, &str, &str) {
                (&self.id, &self.name, &self.status)
            }

            fn message(&self) -> Option<&str> {
                self.message.as_deref()
            }
        }
    )*};
}

made!(Backup, DataDisk, DiskSnapshot, ProjectImage);

impl Made for Snapshot {
    fn told(&self) -> (&str, &str, &str) {
        (&self.id, self.name.as_deref().unwrap_or(&self.id), &self.status)
    }

    fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl Made for RestoredDisk {
    fn told(&self) -> (&str, &str, &str) {
        match self {
            Self::Root(disk) => (&disk.id, &disk.name, &disk.status),
            Self::Data(disk) => disk.told(),
        }
    }

    fn message(&self) -> Option<&str> {
        match self {
            Self::Root(disk) => disk.message.as_deref(),
            Self::Data(disk) => disk.message(),
        }
    }
}

/// Waits until a thing is made, so many seconds at most, or as long as the service goes on. `look` gives the thing with an id.
pub async fn wait<T: Made>(
    thing: T,
    seconds: Option<u64>,
    quiet: bool,
    look: impl AsyncFn(&str) -> berth_client::Result<T>,
) -> Result<T> {
    let id = thing.told().0.to_owned();
    let stage = |thing: &T| {
        let (_, name, status) = thing.told();
        Stage::of_made(name, status, thing.message(), seconds.unwrap_or_default())
    };
    watch(Progress::new(quiet), seconds, thing, stage, async || Ok(look(&id).await?)).await
}
