//! What the program begins with, whichever of its kinds it is: two sockets and nothing else.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

/// What whoever started it left to it.
pub(super) struct Given {
    /// The first conversation.
    pub(super) first: UnixStream,
    /// Where further ones come.
    pub(super) listener: UnixListener,
    /// Who may speak to it.
    pub(super) owner: u32,
    /// The user and group to become, where the service may choose.
    pub(super) user: Option<u32>,
}

impl Given {
    /// Takes it; what else it was left is closed.
    pub(super) fn take(user: Option<OsString>) -> io::Result<Self> {
        berth_process::close_inherited();
        let owner = rustix::process::geteuid().as_raw();
        let user = user.map(|text| text.to_str().and_then(|text| text.parse().ok()).ok_or(io::ErrorKind::InvalidInput));
        let first = UnixStream::from(given(rustix::stdio::stdin())?);
        let listener = UnixListener::from(given(rustix::stdio::stdout())?);
        first.set_nonblocking(true)?;
        listener.set_nonblocking(true)?;
        leave_given()?;
        Ok(Self { first, listener, owner, user: user.transpose()? })
    }
}

/// From here on the sockets are known by one number alone: that one of them is closed means that it ends.
fn leave_given() -> io::Result<()> {
    let nothing = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    Ok(rustix::stdio::dup2_stdout(&nothing)?)
}

/// A socket that whoever started this program left to it.
fn given(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    rustix::net::sockopt::socket_type(descriptor).map_err(|_| io::Error::other("it was given no socket"))?;
    descriptor.try_clone_to_owned()
}
