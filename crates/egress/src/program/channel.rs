//! Lines with descriptors beside them, over a unix socket, bounded in both.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, take};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// Most descriptors beside one line: a VM has at most 10 ports and SSH's.
const MOST_DESCRIPTORS: usize = 16;

/// A connection over which lines go.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    longest: usize,
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// A line, and what came beside it.
#[derive(Debug)]
pub(super) struct Message {
    pub line: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

impl Channel {
    /// One whose lines have fewer bytes than this.
    pub(super) fn new(stream: UnixStream, longest: usize) -> Self {
        Self { stream, longest, bytes: Vec::new(), descriptors: Vec::new() }
    }

    /// Sends a line, which is given without its end, with descriptors beside it.
    pub(super) async fn send(&mut self, mut line: Vec<u8>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if line.len() >= self.longest || descriptors.len() > MOST_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message is too long"));
        }
        line.push(b'\n');
        let stream = &self.stream;
        let sent = stream.async_io(Interest::WRITABLE, || send_now(stream, &line, descriptors)).await?;
        self.stream.write_all(line.get(sent..).unwrap_or_default()).await
    }

    /// The next line; none where the other side ended. Who speaks waits for its answer, so whatever came until the end
    /// of a line belongs to it.
    pub(super) async fn receive(&mut self) -> io::Result<Option<Message>> {
        // What was looked at has no end in it: a long line comes in many parts.
        let mut looked_at = 0;
        loop {
            let fresh = self.bytes.iter().skip(looked_at).position(|byte| *byte == b'\n');
            if let Some(end) = fresh.map(|end| looked_at + end) {
                let rest = self.bytes.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.bytes, rest);
                line.truncate(end);
                return Ok(Some(Message { line, descriptors: take(&mut self.descriptors) }));
            }
            if self.bytes.len() >= self.longest || self.descriptors.len() > MOST_DESCRIPTORS {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
            }
            looked_at = self.bytes.len();
            if self.read().await? == 0 {
                return if self.bytes.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    async fn read(&mut self) -> io::Result<usize> {
        let mut chunk = vec![0; 4096];
        let stream = &self.stream;
        let (count, descriptors) = stream.async_io(Interest::READABLE, || receive_now(stream, &mut chunk)).await?;
        self.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
        self.descriptors.extend(descriptors);
        Ok(count)
    }
}

fn send_now(stream: &UnixStream, line: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    Ok(sendmsg(stream, &[IoSlice::new(line)], &mut control, SendFlags::NOSIGNAL)?)
}

fn receive_now(stream: &UnixStream, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors"));
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    /// Bytes of the longest line here.
    const LONGEST: usize = 128 << 10;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one, LONGEST), Channel::new(other, LONGEST))
    }

    #[tokio::test]
    async fn lines_come_with_what_was_beside_them() {
        let (mut one, mut other) = pair();
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let beside = [near.as_fd(); MOST_DESCRIPTORS];
        one.send(b"first".to_vec(), &beside).await.unwrap();
        let first = other.receive().await.unwrap().unwrap();
        assert_eq!((first.line.as_slice(), first.descriptors.len()), (&b"first"[..], MOST_DESCRIPTORS));
        one.send(b"second".to_vec(), &[]).await.unwrap();
        one.send(Vec::new(), &[]).await.unwrap();
        for line in [&b"second"[..], b""] {
            let message = other.receive().await.unwrap().unwrap();
            assert_eq!((message.line.as_slice(), message.descriptors.len()), (line, 0));
        }
        drop(one);
        assert!(other.receive().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn what_is_too_long_is_refused_on_both_sides() {
        let (mut one, mut other) = pair();
        let longest = vec![b'x'; LONGEST - 1];
        let (sent, received) = tokio::join!(one.send(longest.clone(), &[]), other.receive());
        sent.unwrap();
        assert_eq!(received.unwrap().unwrap().line, longest);
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(one.send(vec![b'x'; LONGEST], &[]).await.is_err());
        assert!(one.send(Vec::new(), &[near.as_fd(); MOST_DESCRIPTORS + 1]).await.is_err());
        let endless = vec![b'x'; 2 * LONGEST];
        let (_, received) = tokio::join!(one.stream.write_all(&endless), async {
            let received = other.receive().await;
            drop(other);
            received
        });
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn half_a_line_is_none() {
        let (mut one, mut other) = pair();
        one.stream.write_all(b"half").await.unwrap();
        drop(one);
        assert_eq!(other.receive().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
