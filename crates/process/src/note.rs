//! Who a process is, written down.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::folder;
use crate::stat::{Stat, is_gone, unreadable};

/// Longest note that is read, in bytes.
const LONGEST: u64 = 4096;

/// A process, as the kernel knows it, and the folder that it works for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Its number, as the service sees it.
    pub pid: i32,
    /// When it began, in ticks since the host's boot.
    started: u64,
    /// The boot of the host.
    boot: String,
    /// Device and inode of the folder.
    folder: (u64, u64),
}

impl Note {
    /// The process that asks. `/proc` may be that of a namespace above its own, and tells the number there.
    ///
    /// # Errors
    /// The kernel does not tell, or there is no such folder.
    pub fn of_self(dir: &Path) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/stat")?;
        let pid = text.split(' ').next().and_then(|word| word.parse().ok()).ok_or_else(unreadable)?;
        Self::new(pid, &text, dir)
    }

    /// A process that lives.
    ///
    /// # Errors
    /// There is none of that number, or no such folder.
    pub fn of(pid: i32, dir: &Path) -> io::Result<Self> {
        Self::new(pid, &fs::read_to_string(Stat::path(pid))?, dir)
    }

    fn new(pid: i32, stat: &str, dir: &Path) -> io::Result<Self> {
        let started = Stat::parse(stat).ok_or_else(unreadable)?.started;
        Ok(Self { pid, started, boot: boot_id()?, folder: identity(dir)? })
    }

    /// The same of another number.
    #[cfg(test)]
    pub(crate) fn numbered(self, pid: i32) -> Self {
        Self { pid, ..self }
    }

    /// What a file says. One that holds no note, such as half of one, was left by a host that died, and with it every
    /// process: none.
    ///
    /// # Errors
    /// The file cannot be read. Who took that for none would start a second process on what the first one has.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        match folder::tail(path, LONGEST) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// The file or the one beside it, with the extension `tmp`, cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        folder::write(path, &serde_json::to_vec(self)?)
    }

    /// Whether the process lives and works for this folder. Where the kernel cannot be asked (no descriptor is free, for
    /// one) it does, as far as anybody may act on it.
    pub fn lives_for(&self, dir: &Path) -> bool {
        let is = |found: io::Result<bool>| found.unwrap_or_else(|error| !is_gone(&error));
        let is_alive =
            |text: String| Stat::parse(&text).is_some_and(|stat| stat.started == self.started && !stat.is_over());
        is(boot_id().map(|boot| boot == self.boot))
            && is(identity(dir).map(|folder| folder == self.folder))
            && is(fs::read_to_string(Stat::path(self.pid)).map(is_alive))
    }
}

/// The folder itself and not its path: it is the same in every mount namespace, and a copy is another one.
fn identity(dir: &Path) -> io::Result<(u64, u64)> {
    let found = fs::metadata(dir)?;
    Ok((found.dev(), found.ino()))
}

/// Identifies the present boot of the host.
///
/// # Errors
/// The kernel does not tell.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_note_is_the_process_it_was_made_of_and_no_other() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (dir, file) = (dir.path(), dir.path().join("note.json"));
        assert_eq!(Note::read(&file).unwrap(), None);
        assert_eq!(Note::read(&dir.join("none").join("note.json")).unwrap(), None);
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let note = Note::of(i32::try_from(child.id()).unwrap(), dir).unwrap();
        note.write(&file).unwrap();
        assert_eq!(Note::read(&file).unwrap(), Some(note.clone()));
        assert!(note.lives_for(dir));
        let another = Note { started: note.started + 1, ..note.clone() };
        let earlier = Note { boot: "another".into(), ..note.clone() };
        assert!(!another.lives_for(dir) && !earlier.lives_for(dir));
        assert!(!note.lives_for(copy.path()) && !note.lives_for(&dir.join("none")), "a copy's machine is not this one");
        drop(child.stdin.take());
        // A zombie until it is waited for.
        let over = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&child)), over).unwrap();
        assert!(!note.lives_for(dir));
        child.wait().unwrap();
        assert!(!note.lives_for(dir));
    }

    #[test]
    fn a_process_notes_itself() {
        let dir = tempfile::tempdir().unwrap();
        let note = Note::of_self(dir.path()).unwrap();
        assert_eq!(note, Note::of(i32::try_from(std::process::id()).unwrap(), dir.path()).unwrap());
        assert!(note.lives_for(dir.path()));
    }

    #[test]
    fn a_note_that_cannot_be_read_is_not_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("note.json");
        fs::write(&file, "{").unwrap();
        assert_eq!(Note::read(&file).unwrap(), None, "half a note");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(Note::read(&file).is_err());
    }
}
