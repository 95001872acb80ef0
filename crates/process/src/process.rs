//! A process, held.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::note::Note;

/// A process that a note means: the handle means this one and none that has its number later.
#[derive(Debug)]
pub struct Process {
    handle: OwnedFd,
}

impl Process {
    /// The process of a note, if it lives and works for this folder.
    ///
    /// # Errors
    /// The kernel cannot hold it, as where no descriptor is free.
    pub fn hold(note: &Note, dir: &Path) -> io::Result<Option<Self>> {
        let Some(pid) = Pid::from_raw(note.pid.max(0)) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            // Its number may have become another one's before it was held.
            Ok(handle) => Ok(note.lives_for(dir).then_some(Self { handle })),
            Err(Errno::SRCH) => Ok(None),
            // A thread of another process has the number by now (EINVAL before Linux 6.16, ENOENT since).
            Err(Errno::INVAL | Errno::NOENT) if !note.lives_for(dir) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends it by force. Fine where it has ended.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.handle, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns when all of its threads have ended.
    ///
    /// # Errors
    /// The kernel cannot tell.
    pub async fn ended(&self) -> io::Result<()> {
        let handle = self.handle.try_clone()?;
        #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
        let handle = AsyncFd::with_interest(handle, Interest::READABLE)?;
        handle.readable().await.map(drop)?;
        // Where it was left to this process, as to the first one of a container, no zombie stays.
        let _ = waitid(WaitId::PidFd(handle.get_ref().as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::stat::Stat;

    #[test]
    fn a_number_that_became_a_thread_s_is_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let note = Note::of_self(dir.path()).unwrap();
        let in_thread = || {
            let pid = rustix::thread::gettid().as_raw_nonzero().get();
            let began = |pid: i32| Stat::of(pid).unwrap().started;
            // One that began in the same tick as its process cannot be told from it.
            let is_later = began(pid) > began(note.pid);
            is_later.then(|| Process::hold(&note.clone().numbered(pid), dir.path()).unwrap().is_none())
        };
        let is_none = loop {
            if let Some(is_none) = std::thread::scope(|scope| scope.spawn(in_thread).join().unwrap()) {
                break is_none;
            }
        };
        assert!(is_none);
    }

    #[tokio::test]
    async fn what_is_held_is_ended_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let note = Note::of(i32::try_from(child.id()).unwrap(), dir.path()).unwrap();
        let process = Process::hold(&note, dir.path()).unwrap().unwrap();
        process.kill().unwrap();
        process.ended().await.unwrap();
        process.kill().unwrap();
        assert!(Process::hold(&note, dir.path()).unwrap().is_none());
        assert!(child.wait().is_err(), "it was waited for");
    }
}
