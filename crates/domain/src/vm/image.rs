//! Images: what is cloned into root disks.
//!
//! ```text
//!   (import, upload) ─► importing ─► ready ─► deleting ─► deleted
//!   (found on the host) ──────────────▲ └─► failed ──▲
//! ```
//!
//! The platform's own images appear on the host by themselves, when their recipe is built; foreign ones
//! because somebody wished it. Either way the row follows what the host has, whole and undamaged.

use crate::words;

words! {
    /// Where an image stands.
    ImageStatus {
        /// On its way in.
        Importing = "importing",
        /// Can be cloned.
        Ready = "ready",
        /// Could not be taken in, or was damaged.
        Failed = "failed",
        /// Is being removed; nobody sees it any more.
        Deleting = "deleting",
        /// Gone.
        Deleted = "deleted",
    }
}

/// What is to be done about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Rest,
    /// Fetch it and take it in.
    Import,
    /// Remove its files.
    Remove,
    /// Record what the host has as ready.
    Record,
    /// Record that the host has it no more.
    Miss,
}

/// The next step for an image: its row (status and version), and the version the host has whole.
pub fn next(row: Option<(ImageStatus, &str)>, host: Option<&str>) -> Step {
    match (row, host) {
        (Some((ImageStatus::Importing, _)), _) => Step::Import,
        (Some((ImageStatus::Deleting, _)), _) => Step::Remove,
        (Some((ImageStatus::Ready, known)), Some(version)) if known == version => Step::Rest,
        (_, Some(_)) => Step::Record,
        (Some((ImageStatus::Ready, _)), None) => Step::Miss,
        (_, None) => Step::Rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_comes_before_what_the_host_has() {
        for host in [None, Some("1")] {
            assert_eq!(next(Some((ImageStatus::Importing, "")), host), Step::Import);
            assert_eq!(next(Some((ImageStatus::Deleting, "1")), host), Step::Remove);
        }
    }

    #[test]
    fn the_row_follows_the_host() {
        assert_eq!(next(None, None), Step::Rest);
        assert_eq!(next(None, Some("1")), Step::Record);
        assert_eq!(next(Some((ImageStatus::Deleted, "1")), None), Step::Rest);
        assert_eq!(next(Some((ImageStatus::Deleted, "1")), Some("1")), Step::Record);
        assert_eq!(next(Some((ImageStatus::Failed, "1")), None), Step::Rest);
        assert_eq!(next(Some((ImageStatus::Failed, "1")), Some("1")), Step::Record);
        assert_eq!(next(Some((ImageStatus::Ready, "1")), Some("1")), Step::Rest);
        assert_eq!(next(Some((ImageStatus::Ready, "1")), Some("2")), Step::Record);
        assert_eq!(next(Some((ImageStatus::Ready, "1")), None), Step::Miss);
    }
}
