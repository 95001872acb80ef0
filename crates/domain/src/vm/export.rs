//! Which disks can be exported, and which part of the file a request asks for.
//!
//! An export is of a moment that does not change. A snapshot and an image are such a moment once they are ready; a disk is one
//! while no machine has it. Whoever wants the disk of a VM that runs makes a snapshot, which takes no time of the VM's, and
//! exports that.

use super::disk::DiskStatus;
use super::model::Status;
use crate::error::{Code, Error, Result};
use crate::host::export::Part;
use crate::ids::{DiskId, VmId};

/// Whether a disk can be exported that a VM has, or none.
pub fn of_disk(disk: DiskId, status: DiskStatus, holder: Option<(VmId, Status)>) -> Result<()> {
    if status != DiskStatus::Ready {
        return Err(not_ready(Code::Conflict, ("disk", disk), status.as_str()));
    }
    match holder {
        None | Some((_, Status::Stopped | Status::Failed | Status::Suspended)) => Ok(()),
        Some((vm, status)) => Err(Error::new(
            Code::DiskInUse,
            format!(
                "The VM {vm} is {status} and writes to the disk {disk}. Make a snapshot of it (POST …/disk_snapshots) and \
                 export that, or stop the VM first."
            ),
        )),
    }
}

/// What is told of a thing that is not ready to be exported, with the code that it has wherever it would be used.
pub fn not_ready(code: Code, (what, id): (&str, impl std::fmt::Display), status: &str) -> Error {
    Error::new(code, format!("The {what} {id} is {status}. Only one that is ready can be exported."))
}

/// A part of a file that a request asks for by `Range` (RFC 9110, section 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// From a byte to another one, that one included.
    Between(u64, u64),
    /// From a byte on.
    From(u64),
    /// The last bytes.
    Last(u64),
}

impl Range {
    /// Reads a header. None where it is to be ignored: another unit, several parts, or no range at all.
    pub fn parse(header: &str) -> Option<Self> {
        let (unit, range) = header.split_once('=')?;
        if !unit.trim().eq_ignore_ascii_case("bytes") {
            return None;
        }
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            // One that is larger than any file is beyond all of them.
            digits.then(|| text.parse().unwrap_or(u64::MAX))
        };
        let (first, last) = range.trim().split_once('-')?;
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Some(Self::Between(first, last)),
            (Some(first), None) if last.is_empty() => Some(Self::From(first)),
            (None, Some(last)) if first.is_empty() => Some(Self::Last(last)),
            _ => None,
        }
    }

    /// The part of a file of so many bytes; none where the file has nothing of it.
    pub fn of(self, bytes: u64) -> Option<Part> {
        let (from, end) = match self {
            Self::Between(first, last) => (first, last.saturating_add(1).min(bytes)),
            Self::From(first) => (first, bytes),
            Self::Last(count) => (bytes.saturating_sub(count), bytes),
        };
        (from < end).then(|| Part { from, bytes: end - from })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_disk_is_exported_while_nobody_writes_to_it() {
        let (disk, vm) = (DiskId(Uuid::nil()), VmId(Uuid::nil()));
        for &status in DiskStatus::ALL {
            assert_eq!(of_disk(disk, status, None).is_ok(), status == DiskStatus::Ready, "{status}");
        }
        for &status in Status::ALL {
            let rests = matches!(status, Status::Stopped | Status::Failed | Status::Suspended);
            let judged = of_disk(disk, DiskStatus::Ready, Some((vm, status)));
            assert_eq!(judged.is_ok(), rests, "{status}");
            if let Err(error) = judged {
                assert!(error.code == Code::DiskInUse && error.message.contains("disk_snapshots"));
            }
        }
    }

    #[test]
    fn ranges_are_read_and_cut_to_the_file() {
        let part = |from, bytes| Some(Part { from, bytes });
        for (header, found) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=2-", part(2, 8)),
            ("bytes=2-100", part(2, 8)),
            ("bytes=2-99999999999999999999999", part(2, 8)),
            ("Bytes = 9-9", part(9, 1)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=10-", None),
            ("bytes=10-12", None),
            ("bytes=-0", None),
        ] {
            assert_eq!(Range::parse(header).unwrap().of(10), found, "{header}");
        }
        for ignored in
            ["bytes", "bytes=", "bytes=-", "lines=1-2", "bytes=3-2", "bytes=1-2,4-5", "bytes=+1-2", "bytes=a-"]
        {
            assert_eq!(Range::parse(ignored), None, "{ignored}");
        }
        assert_eq!(Range::From(0).of(0), None);
    }
}
