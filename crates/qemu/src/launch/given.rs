//! Descriptors that come with an order: what only the service may open, for the program to use.
//!
//! The launcher's standard input is a socket, and they come with its first byte (unix(7), SCM_RIGHTS). The launcher has
//! closed whatever it was left and has opened nothing, so they have the first numbers that are free, and the program is
//! told those. They are the only ones beside the first three that it begins with.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The number of the first descriptor that a program is given; the others follow.
pub(crate) const FIRST: RawFd = 3;
/// Most descriptors that come with an order: a network device, the kernel's help with it, and a connection to each disk that is
/// served.
const MOST: usize = 16;
/// What they come with: a space, which means nothing before an order.
const BEFORE: &[u8] = b" ";
/// Bytes that are read at once, and most of an order.
const PIECE: usize = 64 << 10;
const LONGEST: usize = 64 << 20;

/// Sends descriptors over a socket that nothing was written to yet.
pub(super) fn send(to: impl AsFd, given: &[BorrowedFd<'_>]) -> io::Result<()> {
    if given.is_empty() {
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There may be room for more than was asked for.
    if given.len() > MOST || !control.push(SendAncillaryMessage::ScmRights(given)) {
        return Err(io::Error::other("there are too many descriptors"));
    }
    sendmsg(to, &[IoSlice::new(BEFORE)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives everything that is sent, until the other side has nothing more to say: text, and the descriptors. What this
/// process executes has them, too.
pub(super) fn receive(from: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut text, mut given) = (Vec::new(), Vec::new());
    let mut piece = vec![0; PIECE];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&from, &mut [IoSliceMut::new(&mut piece)], &mut control, RecvFlags::empty())?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                given.extend(descriptors);
            }
        }
        text.extend_from_slice(&piece[..received.bytes]);
        if received.bytes == 0 || text.len() > LONGEST {
            return Ok((text, given));
        }
    }
}

/// Refuses descriptors that the program would not find: so many are to be there, from the first number on.
pub(super) fn check(given: &[OwnedFd], expected: usize) -> io::Result<()> {
    let is_found = given.iter().zip(FIRST..).all(|(one, number)| one.as_raw_fd() == number);
    if given.len() == expected && is_found {
        return Ok(());
    }
    Err(io::Error::other(format!("{expected} descriptors were to come, and {} did", given.len())))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_come_before_the_order() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (mut one, other) = UnixStream::pair().unwrap();
        send(&ours, &[one.as_fd(), other.as_fd()]).unwrap();
        drop(other);
        // Longer than a piece, and than what a socket takes at once.
        let order = "x".repeat(2 * PIECE + 1);
        let writer = std::thread::spawn(move || {
            ours.write_all(order.as_bytes()).unwrap();
            ours.shutdown(Shutdown::Write).unwrap();
            order
        });
        let (text, given) = receive(&theirs).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().trim_start(), writer.join().unwrap());
        assert_eq!(given.len(), 2);
        let mut second = UnixStream::from(given.into_iter().nth(1).unwrap());
        second.write_all(b"here").unwrap();
        drop(second);
        let mut heard = String::new();
        one.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "here");
    }

    #[test]
    fn an_order_comes_without_descriptors_too_and_no_more_of_them_than_a_machine_has() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&ours, &[]).unwrap();
        assert!(send(&ours, &[ours.as_fd(); MOST + 1]).is_err());
        drop(ours);
        let (text, given) = receive(&theirs).unwrap();
        assert!(text.is_empty() && given.is_empty());
        assert!(check(&given, 0).is_ok());
        assert!(check(&given, 1).unwrap_err().to_string().contains("1 descriptors were to come, and 0 did"));
        // A process that has others open has not got the number that its program is told.
        assert!(check(&[theirs.into()], 1).is_err());
    }
}
