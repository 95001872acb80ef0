//! Messages over a socket that keeps them apart: packets between a machine's program and a switch.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, recv, send, sockopt};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Bytes that may be under way, if the kernel lets a process have as many: some of the largest packets.
const UNDER_WAY: usize = 1 << 20;

/// One end of a pair of sockets.
pub(crate) struct Messages {
    /// It keeps messages apart, as one for datagrams does, and tells when the other end is gone.
    socket: UnixDatagram,
}

/// What a look for a message came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A message: so many bytes of the buffer.
    Message(usize),
    /// One that is too long, and gone.
    TooLong,
    /// Nothing yet.
    Nothing,
    /// The other end is gone.
    End,
}

impl Messages {
    /// The end that a socket is.
    ///
    /// # Errors
    /// It is no socket of this kind.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is no socket for messages"));
        }
        fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
        // The kernel gives as much of it as it lets processes have.
        let _ = sockopt::set_socket_send_buffer_size(&socket, UNDER_WAY);
        Ok(Self { socket: UnixDatagram::from_std(socket.into())? })
    }

    /// Sends a message, or drops it where the other end does not keep up or is gone.
    pub(crate) fn send(&self, message: &[u8]) {
        let sent = send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        if let Err(error) = sent {
            tracing::trace!(%error, "a packet between machines is dropped");
        }
    }

    /// Waits until there may be a message.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await
    }

    /// Looks for a message of so many bytes at most.
    pub(crate) fn receive(&self, into: &mut Vec<u8>, most: usize) -> Received {
        into.resize(most + 1, 0);
        let receive = || Ok(recv(&self.socket, &mut into[..], RecvFlags::DONTWAIT)?.0);
        let received = self.socket.try_io(Interest::READABLE, receive);
        match received {
            Ok(0) => Received::End,
            Ok(length) if length > most => Received::TooLong,
            Ok(length) => Received::Message(length),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Received::Nothing,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }
}

/// A pair of ends, not yet anybody's.
///
/// # Errors
/// No socket can be made.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
