//! Disks that are brought to the host: made of a backup, or of a file that somebody sent.
//!
//! From its row on such a disk is a wish like any other. What comes next is decided here of a few facts ([`Facts`]), wherever the
//! disk comes from.

use super::disk::DiskStatus;
use crate::Timestamp;
use crate::ids::{BackupId, DiskId};
use crate::words;

/// How long a disk may be made of what is brought, in seconds: from the request of a restore, from the reception of a file, and with
/// the wait for its turn. 2 TiB at 30 MB a second.
pub const LONGEST: i64 = 20 * 3600;

/// Least seconds until a disk is tried again for which the host had no room.
pub const ROOM_PAUSE: i64 = 300;

/// Seconds until a disk is tried again for which the host had no room: as long as it has waited, since what few bytes stand for
/// may fill the host each time. So it is tried fewer than ten times.
pub fn room_pause(created_at: Timestamp, now: Timestamp) -> i64 {
    ROOM_PAUSE.max(now.seconds() - created_at.seconds())
}

/// When a disk is given up that is not made by then.
pub const fn last_moment(created_at: Timestamp) -> Timestamp {
    created_at.plus_seconds(LONGEST)
}

/// Whether a disk that was asked for then took longer than it may.
pub fn is_late(created_at: Timestamp, now: Timestamp) -> bool {
    now >= last_moment(created_at)
}

/// Where a disk comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A backup.
    Backup(BackupId),
    /// A file that somebody sent.
    File,
}

impl Origin {
    /// What the file is called in the engine's staging folder of which a disk is made.
    pub fn staged(self, disk: DiskId) -> String {
        match self {
            Self::Backup(_) => format!("{disk}.restored"),
            Self::File => format!("{disk}.imported"),
        }
    }

    /// Whether a disk waits for room on the host: what was sent would have to be sent again, and a backup is restored again by a
    /// word.
    pub const fn waits_for_room(self) -> bool {
        matches!(self, Self::File)
    }

    /// Why no disk can be made any more; nothing of what it is made of is there where it is gone.
    pub fn why_not(self, is_gone: bool) -> String {
        let hours = LONGEST / 3600;
        match (self, is_gone) {
            (Self::Backup(_), true) => "the backup is not there any more".into(),
            (Self::File, true) => "the file is gone; delete this disk, and send the file again".into(),
            (Self::Backup(_), false) => {
                format!("it took longer than {hours} hours; delete this disk, and restore the backup again")
            }
            (Self::File, false) => {
                format!("it took longer than {hours} hours; delete this disk, and send the file again")
            }
        }
    }
}

words! {
    /// What the worker does next for a disk that is brought.
    BroughtStep {
        /// Take a place on the host, or fail for the lack of one.
        Place = "place",
        /// Fetch what it is made of and have it made, or record why that cannot be.
        Make = "make",
        /// Record that it cannot be made any more.
        Fail = "fail",
        /// Sweep what was fetched or sent, and leave the disk to its own worker.
        End = "end",
    }
}

/// What there is of a disk that is brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Where the disk stands; none where it is gone.
    pub disk: Option<DiskStatus>,
    /// Whether it took longer than it may ([`is_late`]).
    pub is_late: bool,
    /// Whether it waits until it is tried again.
    pub is_early: bool,
    /// Whether what it is made of is not there any more.
    pub is_gone: bool,
    /// Whether it has a turn among those that are made.
    pub has_turn: bool,
}

/// The next step for a disk that is brought; none where it waits: for its turn, or until it is tried again.
pub const fn next(facts: Facts) -> Option<BroughtStep> {
    match facts.disk {
        Some(DiskStatus::Pending) => Some(BroughtStep::Place),
        Some(DiskStatus::Provisioning) if facts.is_late || facts.is_gone => Some(BroughtStep::Fail),
        Some(DiskStatus::Provisioning) if facts.has_turn && !facts.is_early => Some(BroughtStep::Make),
        Some(DiskStatus::Provisioning) => None,
        Some(DiskStatus::Ready | DiskStatus::Failed | DiskStatus::Deleting | DiskStatus::Deleted) | None => {
            Some(BroughtStep::End)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURN: Facts =
        Facts { disk: Some(DiskStatus::Provisioning), is_late: false, is_early: false, is_gone: false, has_turn: true };

    #[test]
    fn what_is_made_or_unwanted_ends() {
        for &status in DiskStatus::ALL {
            let is_unmade = matches!(status, DiskStatus::Pending | DiskStatus::Provisioning);
            for (is_late, is_gone, has_turn) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)) {
                let facts = Facts { disk: Some(status), is_late, is_gone, has_turn, ..TURN };
                assert_eq!(next(facts) == Some(BroughtStep::End), !is_unmade, "{facts:?}");
            }
        }
        assert_eq!(next(Facts { disk: None, ..TURN }), Some(BroughtStep::End));
    }

    #[test]
    fn a_disk_is_late_after_twenty_hours_and_not_before() {
        let (asked, moment) = (Timestamp(7), 20 * 3600 * Timestamp::SECOND);
        assert!(!is_late(asked, Timestamp(7 + moment - 1)));
        assert!(is_late(asked, Timestamp(7 + moment)) && is_late(asked, last_moment(asked)));
    }

    #[test]
    fn a_disk_without_room_is_tried_again_fewer_than_ten_times() {
        let asked = Timestamp(0);
        let after = |seconds| room_pause(asked, asked.plus_seconds(seconds));
        assert_eq!([0, 300, 301, 3600].map(after), [300, 300, 301, 3600]);
        let tries = std::iter::successors(Some(asked), |at| Some(at.plus_seconds(room_pause(asked, *at))));
        assert_eq!(tries.take_while(|at| !is_late(asked, *at)).count(), 9);
    }

    #[test]
    fn a_disk_is_made_in_its_turn_and_in_time_of_what_is_there() {
        assert_eq!(next(TURN), Some(BroughtStep::Make));
        assert_eq!(next(Facts { has_turn: false, ..TURN }), None);
        assert_eq!(next(Facts { is_early: true, ..TURN }), None);
        for has_turn in [false, true] {
            assert_eq!(next(Facts { is_late: true, has_turn, ..TURN }), Some(BroughtStep::Fail));
            assert_eq!(next(Facts { is_gone: true, has_turn, ..TURN }), Some(BroughtStep::Fail));
            assert_eq!(next(Facts { is_late: true, is_early: true, has_turn, ..TURN }), Some(BroughtStep::Fail));
        }
        // It takes its place first: whoever looks on is told the same of all.
        let unplaced = Facts { disk: Some(DiskStatus::Pending), is_late: true, is_gone: true, has_turn: false, ..TURN };
        assert_eq!(next(unplaced), Some(BroughtStep::Place));
    }
}
