//! Who a machine's process is: what was noted of it before it became a program.
//!
//! A number alone may be another process' by now, and what a process says of itself (its command line, its name) it can
//! overwrite. The kernel says when a process began, and that cannot be changed: number, beginning and boot of the host
//! together are nobody else's. They are written into the machine's folder by the process itself, as one of its last steps
//! before it becomes QEMU, so that there is no machine without a note. QEMU cannot write to the note: it has no way to the
//! folder any more when its guest begins, or, without root, sees the note as a file that is only read.

use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::error::at;
use crate::host::boot_id;

/// The note's file, in the machine's folder.
pub(crate) const NOTE: &str = "process.json";
/// Longest note that is read.
const LONGEST: u64 = 4096;

/// A process, as the kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// Its number, as the service sees it.
    pub(crate) pid: i32,
    /// When it began, in ticks since the host's boot: the 22nd field of `/proc/PID/stat` (proc(5)).
    started: u64,
    /// The boot of the host.
    boot: String,
}

impl Note {
    /// The process that asks. `/proc` may be that of a namespace above its own, and tells the number there.
    pub(crate) fn of_self() -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/stat")?;
        let pid = text.split(' ').next().and_then(|word| word.parse().ok());
        let missing = || io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat cannot be read");
        Self::from(pid.ok_or_else(missing)?, &text).ok_or_else(missing)
    }

    /// A process that lives.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::from(pid, &fs::read_to_string(stat_of(pid)).ok()?)
    }

    fn from(pid: i32, stat: &str) -> Option<Self> {
        Some(Self { pid, started: Stat::parse(stat)?.started, boot: boot_id() })
    }

    /// What is noted in a folder. A file that cannot be read is an error: who took it for none would start a second
    /// machine on the same disk. One that holds no note was left by a host that died, and with it every process.
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>> {
        use std::io::Read;
        let path = dir.join(NOTE);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(at("cannot open", &path)(error)),
        };
        let mut text = Vec::new();
        file.take(LONGEST).read_to_end(&mut text).map_err(at("cannot read", &path))?;
        Ok(serde_json::from_slice(&text).ok())
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let tmp = dir.join("process.tmp");
        fs::write(&tmp, serde_json::to_vec(self)?)?;
        fs::rename(tmp, dir.join(NOTE))
    }

    /// Whether the process lives. Where the kernel cannot be asked (no descriptor is free, for one) it does, as far as
    /// anybody may act on it.
    pub(crate) fn lives(&self) -> bool {
        if self.boot != boot_id() {
            return false;
        }
        match fs::read_to_string(stat_of(self.pid)) {
            Ok(text) => Stat::parse(&text).is_some_and(|stat| stat.started == self.started && !stat.is_over()),
            Err(error) => !is_gone(&error),
        }
    }
}

/// Where the kernel tells of a process.
fn stat_of(pid: i32) -> String {
    format!("/proc/{pid}/stat")
}

/// Whether a failed look means that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// What the kernel says of a process.
struct Stat {
    state: char,
    threads: u64,
    started: u64,
}

impl Stat {
    /// The name in parentheses may hold anything; what follows the last one is fixed.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self { state: fields.first()?.chars().next()?, threads: number(17)?, started: number(19)? })
    }

    /// A process whose first thread ended looks like a dead one while others of its threads go on.
    fn is_over(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x') && self.threads <= 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_note_is_the_process_it_was_made_of_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Note::read(dir.path()).unwrap(), None);
        assert_eq!(Note::read(&dir.path().join("none")).unwrap(), None);
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let note = Note::of(i32::try_from(child.id()).unwrap()).unwrap();
        note.write(dir.path()).unwrap();
        assert_eq!(Note::read(dir.path()).unwrap(), Some(note.clone()));
        assert!(note.lives());
        let another = Note { started: note.started + 1, ..note.clone() };
        let earlier = Note { boot: "another".into(), ..note.clone() };
        assert!(!another.lives() && !earlier.lives());
        drop(child.stdin.take());
        // A zombie until it is waited for.
        let handle = rustix::process::Pid::from_child(&child);
        let over = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(handle), over).unwrap();
        assert!(!note.lives());
        child.wait().unwrap();
        assert!(!note.lives());
    }

    #[test]
    fn a_process_notes_itself() {
        let note = Note::of_self().unwrap();
        assert_eq!(Some(&note), Note::of(i32::try_from(std::process::id()).unwrap()).as_ref());
        assert!(note.lives());
    }

    #[test]
    fn a_note_that_cannot_be_read_is_not_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NOTE), "{").unwrap();
        assert_eq!(Note::read(dir.path()).unwrap(), None, "half a note");
        fs::remove_file(dir.path().join(NOTE)).unwrap();
        fs::create_dir(dir.path().join(NOTE)).unwrap();
        assert!(Note::read(dir.path()).is_err());
    }

    #[test]
    fn a_process_whose_first_thread_ended_is_still_there() {
        let line = |state: char, threads: u32| {
            format!("7 (a b) c) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0")
        };
        for (state, threads, over) in [('S', 1, false), ('Z', 2, false), ('Z', 1, true), ('X', 0, true)] {
            let stat = Stat::parse(&line(state, threads)).unwrap();
            assert_eq!((stat.is_over(), stat.started), (over, 4711), "{state} {threads}");
        }
        assert!(Stat::parse("7 (a").is_none() && Stat::parse("").is_none());
    }
}
