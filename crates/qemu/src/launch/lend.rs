//! Lending a file: a program that opens it for reading and writing gets it for reading alone.
//!
//! QEMU before 8.2 opens the file of a memory for writing, though it maps it privately and writes nothing, and does not
//! start where it may not. The file is other machines' memory, too. So that one call is answered by the launcher, with a
//! descriptor of its own (seccomp_unotify(2)): the kernel asks it about every call that opens something for reading and
//! writing; all but that one go on as they are. Once the file is open the launcher ends, and with it such calls: QEMU makes
//! none any more, since later files are handed to it open.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// How long the program may take until it opens the file, whatever else it opens meanwhile.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest path that is looked at, with its end.
const LONGEST: usize = 4096;

/// What the launcher needs to lend a file.
pub(super) struct Lender {
    name: PathBuf,
    file: File,
    processes: OwnedFd,
    ours: OwnedFd,
    theirs: OwnedFd,
}

impl Lender {
    /// Opens what is lent, and what is needed to see who asks.
    pub(super) fn new(dir: &Path, name: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok(Self {
            name: name.to_path_buf(),
            file: File::open(dir.join(name))?,
            processes: openat(CWD, "/proc", flags, Mode::empty())?,
            ours,
            theirs,
        })
    }

    /// The end by which the process sends what the kernel asks it by.
    pub(super) fn end(&self) -> io::Result<OwnedFd> {
        self.theirs.try_clone()
    }

    /// Answers what the kernel asks about the program, until that has the file or is gone.
    pub(super) fn serve(self) -> io::Result<()> {
        let Self { name, file, processes, ours, theirs } = self;
        drop(theirs);
        let listener = received(&ours)?;
        kernel::can_answer(&listener, &file)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = left(deadline)?;
            let mut fds = [PollFd::new(&listener, PollFlags::IN)];
            if poll(&mut fds, Some(&left))? == 0 {
                return Err(late());
            }
            if !fds[0].revents().contains(PollFlags::IN) {
                return Ok(());
            }
            let Some(asked) = kernel::next(&listener)? else { continue };
            if path_of(&processes, &asked).is_some_and(|path| path == name) {
                return kernel::answer(&listener, &asked, &file);
            }
            kernel::go_on(&listener, &asked)?;
        }
    }
}

/// What is left of a time.
fn left(deadline: Instant) -> io::Result<Timespec> {
    let left = deadline.checked_duration_since(Instant::now()).ok_or_else(late)?;
    Timespec::try_from(left).map_err(io::Error::other)
}

fn late() -> io::Error {
    io::Error::other("the program does not open its memory")
}

/// The path that a process asks to open.
fn path_of(processes: &OwnedFd, asked: &kernel::Asked) -> Option<PathBuf> {
    let memory = openat(processes, format!("{}/mem", asked.pid), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut bytes = vec![0; LONGEST];
    let read = File::from(memory.ok()?).read_at(&mut bytes, asked.path).ok()?;
    bytes.truncate(bytes[..read].iter().position(|byte| *byte == 0)?);
    Some(std::ffi::OsString::from_vec(bytes).into())
}

/// Has the kernel ask the launcher from here on. In the process that becomes the program.
pub(super) fn have_asked(end: &OwnedFd) -> io::Result<()> {
    let listener = kernel::listen()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [listener.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(end, &[IoSlice::new(b"l")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn received(end: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(end, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.flatten().next().ok_or_else(|| io::Error::other("the process did not say how it is asked"))
}

/// What the kernel offers for this (Linux, `include/uapi/linux/seccomp.h`); no library has it.
#[expect(unsafe_code, reason = "the kernel's questions have no safe interface anywhere")]
mod kernel {
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

    /// Linux, `include/uapi/linux/audit.h`: calls of 64-bit x86.
    const ARCHITECTURE: u32 = 0xc000_003e;
    /// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND`, `_ADDFD`.
    const RECEIVE: libc::c_ulong = 0xc050_2100;
    const SEND: libc::c_ulong = 0xc018_2101;
    const ADD: libc::c_ulong = 0x4018_2103;
    /// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`, `SECCOMP_ADDFD_FLAG_SEND`.
    const CONTINUE: u32 = 1;
    const ANSWERS: u32 = 2;
    /// `SECCOMP_SET_MODE_FILTER`, `SECCOMP_FILTER_FLAG_NEW_LISTENER`.
    const FILTER: libc::c_long = 1;
    const NEW_LISTENER: libc::c_long = 8;
    /// Where `struct seccomp_data` has the call's number, its architecture, and the third argument.
    const NUMBER: u32 = 0;
    const MACHINE: u32 = 4;
    const FLAGS: u32 = 32;

    /// A question: `struct seccomp_notif`.
    #[repr(C)]
    #[derive(Default)]
    struct Notice {
        id: u64,
        pid: u32,
        flags: u32,
        number: i32,
        architecture: u32,
        instruction: u64,
        arguments: [u64; 6],
    }

    /// `struct seccomp_notif_resp`.
    #[repr(C)]
    struct Response {
        id: u64,
        value: i64,
        error: i32,
        flags: u32,
    }

    /// `struct seccomp_notif_addfd`.
    #[repr(C)]
    struct Added {
        id: u64,
        flags: u32,
        from: u32,
        to: u32,
        to_flags: u32,
    }

    /// What was asked.
    pub(super) struct Asked {
        id: u64,
        /// Who asks.
        pub(super) pid: u32,
        /// Where its memory has the path.
        pub(super) path: u64,
    }

    #[expect(clippy::cast_possible_truncation, reason = "codes are below 2^16")]
    const fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }

    /// Asks about `openat` with `O_RDWR` of a 64-bit program, and lets everything else pass.
    fn program() -> [libc::sock_filter; 9] {
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let result = libc::BPF_RET | libc::BPF_K;
        let openat = u32::try_from(libc::SYS_openat).unwrap_or_default();
        [
            op(load, 0, 0, MACHINE),
            op(equal, 0, 6, ARCHITECTURE),
            op(load, 0, 0, NUMBER),
            op(equal, 0, 4, openat),
            op(load, 0, 0, FLAGS),
            op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, libc::O_ACCMODE.unsigned_abs()),
            op(equal, 0, 1, libc::O_RDWR.unsigned_abs()),
            op(result, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
            op(result, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]
    }

    pub(super) fn listen() -> io::Result<OwnedFd> {
        let mut program = program();
        let length = u16::try_from(program.len()).unwrap_or_default();
        let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
        // SAFETY: the kernel reads the program, which lives until the call returns, and answers with a descriptor that is
        // nobody else's.
        unsafe {
            let fd = libc::syscall(libc::SYS_seccomp, FILTER, NEW_LISTENER, &raw const filter);
            let fd = RawFd::try_from(fd).unwrap_or(-1);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
        }
    }

    /// The next question; none where who asked is gone.
    pub(super) fn next(listener: &OwnedFd) -> io::Result<Option<Asked>> {
        let mut notice = Notice::default();
        // SAFETY: the kernel writes a notice, for which there is room, and which may hold any bits.
        let outcome = unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notice) };
        match checked(outcome) {
            Ok(()) => Ok(Some(Asked { id: notice.id, pid: notice.pid, path: notice.arguments[1] })),
            Err(error) if gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lets a call go on as it is.
    pub(super) fn go_on(listener: &OwnedFd, asked: &Asked) -> io::Result<()> {
        let mut response = Response { id: asked.id, value: 0, error: 0, flags: CONTINUE };
        // SAFETY: the kernel reads a response, which lives until the call returns.
        let outcome = unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut response) };
        checked(outcome).or_else(|error| if gone(&error) { Ok(()) } else { Err(error) })
    }

    /// Whether the kernel takes a descriptor for an answer (since 5.14): it looks at how that is asked for before it looks for
    /// the call, and there is none of this number.
    pub(super) fn can_answer(listener: &OwnedFd, file: &File) -> io::Result<()> {
        let none = Asked { id: 0, pid: 0, path: 0 };
        answer(listener, &none, file).or_else(|error| if gone(&error) { Ok(()) } else { Err(error) })
    }

    /// Answers a call with a descriptor for a file.
    pub(super) fn answer(listener: &OwnedFd, asked: &Asked, file: &File) -> io::Result<()> {
        let from = file.as_raw_fd().unsigned_abs();
        let added = Added { id: asked.id, flags: ANSWERS, from, to: 0, to_flags: libc::O_CLOEXEC.unsigned_abs() };
        // SAFETY: the kernel reads what is added, which lives until the call returns, and copies the descriptor.
        checked(unsafe { libc::ioctl(listener.as_raw_fd(), ADD, &raw const added) })
    }

    fn checked(outcome: i32) -> io::Result<()> {
        if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn gone(error: &io::Error) -> bool {
        matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_is_over_has_nothing_left() {
        let now = Instant::now();
        assert!(left(now + PATIENCE).unwrap().tv_sec <= 20);
        assert!(left(now).is_err(), "each question would begin it anew");
    }
}
