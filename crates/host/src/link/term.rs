//! In which terms a host was asked.
//!
//! One service of a platform asks its hosts at a time, each in its term ([`berth_domain::replica`]). A host notes the
//! latest term before it answers in it, does nothing for an earlier one any more, and drops what is under way for it, as
//! if whoever asked had left: whoever was stopped and wakes up cannot go on where another one has begun.
//!
//! The note is written in its place, which it has from the first start on: a host whose disk is full has to answer who comes
//! to free some of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use berth_domain::replica::Hearing;
use tokio::sync::watch;

use super::LinkError;

/// The file that notes the latest term.
const FILE: &str = "term";
/// Bytes of it: a number, and blanks.
const LONG: usize = 32;

/// The latest term that a host was asked in.
pub struct Terms {
    file: File,
    latest: watch::Sender<i64>,
    /// Held by whoever notes a later one.
    noting: Mutex<()>,
}

impl Terms {
    /// As a host's folder has it.
    ///
    /// # Errors
    /// The note cannot be read, or is none.
    pub fn open(dir: &Path) -> Result<Self, LinkError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()).open(dir.join(FILE))?;
        let mut text = [b' '; LONG];
        let length = file.read_at(&mut text, 0)?;
        let said = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).trim().to_owned();
        // A start that was interrupted leaves an empty one.
        let latest = if said.is_empty() { Ok(0) } else { said.parse() };
        let latest = latest.map_err(|_| LinkError::Unreadable("the note of the latest term is no number"))?;
        let terms = Self { file, latest: watch::Sender::new(latest), noting: Mutex::default() };
        terms.write(latest)?;
        File::open(dir)?.sync_all()?;
        Ok(terms)
    }

    fn write(&self, term: i64) -> io::Result<()> {
        self.file.write_all_at(format!("{term:<LONG$}").as_bytes(), 0)?;
        self.file.sync_data()
    }

    /// Lets somebody ask in a term, which is noted first where it is a later one; `false` where it is an earlier one.
    ///
    /// # Errors
    /// It cannot be noted.
    pub fn admit(&self, term: i64) -> io::Result<bool> {
        match Hearing::of(term, self.latest()) {
            Hearing::Later => {}
            heard => return Ok(heard == Hearing::Present),
        }
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may have noted one meanwhile.
        let heard = Hearing::of(term, self.latest());
        if heard == Hearing::Later {
            self.write(term)?;
            self.latest.send_replace(term);
        }
        Ok(heard != Hearing::Over)
    }

    /// The latest one.
    pub(super) fn latest(&self) -> i64 {
        *self.latest.borrow()
    }

    /// Returns once somebody asks in a later term than this one.
    pub(super) async fn outdone(&self, term: i64) {
        // The sender lives as long as this does.
        let _ = self.latest.subscribe().wait_for(|latest| *latest > term).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_term_is_over_once_a_later_one_began_also_for_who_starts_anew() {
        let dir = tempfile::tempdir().unwrap();
        let terms = Terms::open(dir.path()).unwrap();
        assert!(terms.admit(0).unwrap() && terms.admit(3).unwrap() && terms.admit(3).unwrap());
        assert!(!terms.admit(2).unwrap());
        let mut outdone = Box::pin(terms.outdone(3));
        assert!(futures::poll!(&mut outdone).is_pending());
        assert!(terms.admit(4).unwrap());
        outdone.await;
        let again = Terms::open(dir.path()).unwrap();
        assert!(!again.admit(3).unwrap() && again.admit(4).unwrap());
        assert_eq!(again.latest(), 4);
        std::fs::write(dir.path().join(FILE), "half a").unwrap();
        assert!(Terms::open(dir.path()).is_err());
    }
}
