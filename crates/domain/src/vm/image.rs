//! Images: what is cloned into root disks.
//!
//! ```text
//!   (import, upload) ─► importing ─► ready ─► deleting ─► deleted
//!   (found on the host) ──────────────▲ └─► failed ──▲
//! ```
//!
//! The platform's own images appear on the host by themselves, when their recipe is built; foreign ones
//! because somebody wished it. Either way the row follows what the host has, whole and undamaged.

mod import;

use crate::words;
pub use import::Import;

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

words! {
    /// What is to be done about an image.
    ImageStep {
        /// Fetch it and take it in.
        Import = "import",
        /// Remove its files.
        Remove = "remove",
        /// Record what the host has as ready.
        Record = "record",
        /// Record that the host has it no more.
        Miss = "miss",
    }
}

/// The next step for an image: its row (status and version), and the version the host has whole. None where they agree.
pub fn next(row: Option<(ImageStatus, &str)>, host: Option<&str>) -> Option<ImageStep> {
    match (row, host) {
        (Some((ImageStatus::Importing, _)), _) => Some(ImageStep::Import),
        (Some((ImageStatus::Deleting, _)), _) => Some(ImageStep::Remove),
        (Some((ImageStatus::Ready, known)), Some(version)) if known == version => None,
        (_, Some(_)) => Some(ImageStep::Record),
        (Some((ImageStatus::Ready, _)), None) => Some(ImageStep::Miss),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_comes_before_what_the_host_has() {
        for host in [None, Some("1")] {
            assert_eq!(next(Some((ImageStatus::Importing, "")), host), Some(ImageStep::Import));
            assert_eq!(next(Some((ImageStatus::Deleting, "1")), host), Some(ImageStep::Remove));
        }
    }

    #[test]
    fn the_row_follows_the_host() {
        assert_eq!(next(None, None), None);
        assert_eq!(next(None, Some("1")), Some(ImageStep::Record));
        assert_eq!(next(Some((ImageStatus::Deleted, "1")), None), None);
        assert_eq!(next(Some((ImageStatus::Deleted, "1")), Some("1")), Some(ImageStep::Record));
        assert_eq!(next(Some((ImageStatus::Failed, "1")), None), None);
        assert_eq!(next(Some((ImageStatus::Failed, "1")), Some("1")), Some(ImageStep::Record));
        assert_eq!(next(Some((ImageStatus::Ready, "1")), Some("1")), None);
        assert_eq!(next(Some((ImageStatus::Ready, "1")), Some("2")), Some(ImageStep::Record));
        assert_eq!(next(Some((ImageStatus::Ready, "1")), None), Some(ImageStep::Miss));
    }
}
