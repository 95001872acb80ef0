//! In which terms a host was asked.
//!
//! One service of a platform asks its hosts at a time, each in its term ([`berth_domain::replica`]). A host notes the
//! latest term before it answers in it, does nothing for an earlier one any more, and drops what is under way for it, as
//! if whoever asked had left: whoever was stopped and wakes up cannot go on where another one has begun.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use berth_process::folder;
use tokio::sync::watch;

use super::LinkError;

/// The file that notes the latest term.
const FILE: &str = "term";
/// Most bytes of it: a number.
const LONGEST: u64 = 32;

/// The latest term that a host was asked in.
pub struct Terms {
    file: PathBuf,
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
        let file = dir.join(FILE);
        let latest = match folder::read(&file, LONGEST) {
            Ok(text) => {
                let read = String::from_utf8_lossy(&text).trim().parse();
                read.map_err(|_| LinkError::Unreadable("the note of the latest term is no number"))?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { file, latest: watch::Sender::new(latest), noting: Mutex::default() })
    }

    /// Lets somebody ask in a term, which is noted first where it is a later one; `false` where it is an earlier one.
    pub(super) fn admit(&self, term: i64) -> io::Result<bool> {
        let latest = *self.latest.borrow();
        if term <= latest {
            return Ok(term == latest);
        }
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = *self.latest.borrow();
        if term > latest {
            folder::write(&self.file, term.to_string().as_bytes())?;
            self.latest.send_replace(term);
        }
        Ok(term >= latest)
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
