//! The agent's end of a pseudo-terminal; a program has the other.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::Signal;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

use crate::accounts::Account;

/// Pause between two tries to read a terminal whose other end was closed once: a process may open it again, and tokio
/// takes it for ready for ever.
const SHUT: Duration = Duration::from_millis(20);
/// The value of `TERM`, unless somebody sets one.
pub const TERM: &str = "xterm-256color";
/// Columns and rows.
pub const SIZES: std::ops::RangeInclusive<u64> = 1..=10_000;

/// The agent's end.
pub struct Device {
    fd: AsyncFd<OwnedFd>,
    /// Whether its other end was closed once, as of the last wait.
    shut: AtomicBool,
    /// Whether the last try to read found nothing after that.
    idle: AtomicBool,
}

/// A size in characters.
pub fn size(cols: u16, rows: u16) -> Winsize {
    Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }
}

/// Opens a terminal: the agent's end and the other one.
pub fn pair(size: Winsize) -> io::Result<(Device, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags)?;
    rustix::termios::tcsetwinsize(&ours, size)?;
    rustix::fs::fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK)?;
    #[expect(deprecated, reason = "an owned descriptor stays the same and open, which is all its successor asks")]
    let fd = AsyncFd::new(ours)?;
    Ok((Device { fd, shut: AtomicBool::new(false), idle: AtomicBool::new(false) }, theirs))
}

/// The same, for an account's program: the streams that it gets.
pub fn open(size: Winsize, account: &Account) -> io::Result<(Device, [OwnedFd; 3])> {
    let (device, theirs) = pair(size)?;
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(&theirs, Some(account.uid()), None)?;
    }
    Ok((device, [theirs.try_clone()?, theirs.try_clone()?, theirs]))
}

impl Device {
    /// Returns once it may be worth a try to read.
    pub async fn readable(&self) -> io::Result<()> {
        let shut = self.fd.readable().await?.ready().is_read_closed();
        self.shut.store(shut, Relaxed);
        if shut && self.idle.load(Relaxed) {
            sleep(SHUT).await;
        }
        Ok(())
    }

    /// Reads what is there.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fd.try_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, buffer)?));
        let nothing = matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.idle.store(nothing && self.shut.load(Relaxed), Relaxed);
        read
    }

    /// Waits for output and reads it; returns the number of bytes. After 0 bytes no process has the other end open.
    pub async fn read(&self, buffer: &mut [u8]) -> usize {
        loop {
            match self.try_read(buffer) {
                Ok(n) => return n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return 0,
            }
            if self.readable().await.is_err() {
                return 0;
            }
        }
    }

    /// Types bytes in, until its program has `ended`.
    pub async fn type_in(&self, mut bytes: &[u8], ended: impl Fn() -> bool) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.fd.writable().await?;
            let is_shut = ready.ready().is_write_closed();
            match ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                Ok(written) => bytes = &bytes[written?..],
                Err(_would_block) if !is_shut => {}
                // No program reads it any more.
                Err(_would_block) if ended() => return Ok(()),
                Err(_would_block) => sleep(SHUT).await,
            }
        }
        Ok(())
    }

    /// Sets the window's size; the kernel signals the program.
    pub fn resize(&self, size: Winsize) -> io::Result<()> {
        Ok(rustix::termios::tcsetwinsize(self.fd.get_ref(), size)?)
    }

    /// Sends a signal to the process in the foreground.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let group = rustix::termios::tcgetpgrp(self.fd.get_ref())?;
        Ok(rustix::process::kill_process_group(group, signal)?)
    }
}
