//! A bounded queue of packets between tasks, stored as one run of bytes.
//!
//! Each packet is preceded by its length in four bytes, big-endian, which is also the form on QEMU's socket: a
//! queue is written to it as it is. Readers take everything at once by exchanging buffers, so that a packet
//! costs one copy and no allocation.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Bytes of the length before each packet.
pub(crate) const PREFIX: usize = 4;
/// A buffer above this is given back when there is nothing to do.
const KEEP: usize = 4096;

/// The queue.
pub(crate) struct Queue {
    state: Mutex<State>,
    capacity: usize,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    closed: bool,
    reader: Option<Waker>,
    writers: Vec<Waker>,
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Packets, now in the reader's buffer.
    Packets,
    /// The end.
    Closed,
}

impl Queue {
    /// A queue of so many bytes, prefixes included.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { state: Mutex::default(), capacity }
    }

    /// Appends a packet of `len` bytes, written by `fill`, if it fits.
    pub(crate) fn push(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let mut state = self.lock();
        let room = state.bytes.len() + PREFIX + len <= self.capacity;
        if room {
            append(&mut state, len, fill);
        }
        room
    }

    /// Appends a packet even to a full queue. For who has asked for room, and for the last words of a flow.
    pub(crate) fn push_over<R>(&self, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        append(&mut self.lock(), len, fill)
    }

    /// Whether there is room; if not, the task is woken when there is.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.bytes.len() < self.capacity {
            return Poll::Ready(());
        }
        if !state.writers.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.writers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Whether there is room now.
    pub(crate) fn room(&self) -> bool {
        self.lock().bytes.len() < self.capacity
    }

    /// Exchanges the packets for `into`, which must be empty; if there are none, the task is woken when there are.
    pub(crate) fn poll_take(&self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Taken> {
        let mut state = self.lock();
        if state.closed {
            return Poll::Ready(Taken::Closed);
        }
        if state.bytes.is_empty() {
            for buffer in [&mut state.bytes, into] {
                if buffer.capacity() > KEEP {
                    *buffer = Vec::new();
                }
            }
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        std::mem::swap(&mut state.bytes, into);
        let writers = std::mem::take(&mut state.writers);
        drop(state);
        writers.into_iter().for_each(Waker::wake);
        Poll::Ready(Taken::Packets)
    }

    /// Ends the queue for its reader.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.bytes = Vec::new();
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Waits for [`Queue::close`].
    pub(crate) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.closed {
            return Poll::Ready(());
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append<R>(state: &mut State, len: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
    let prefix = u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes();
    state.bytes.extend_from_slice(&prefix);
    let start = state.bytes.len();
    state.bytes.resize(start + len, 0);
    let result = fill(&mut state.bytes[start..]);
    if let Some(reader) = state.reader.take() {
        reader.wake();
    }
    result
}

/// The first packet of a run at or behind `at`, and where the next one begins.
pub(crate) fn packet(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let (prefix, rest) = bytes.get(at..)?.split_first_chunk::<PREFIX>()?;
    let len = u32::from_be_bytes(*prefix) as usize;
    Some((rest.get(..len)?, at + PREFIX + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bounded_and_wakes_both_sides() {
        let queue = Queue::new(14);
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = Vec::new();
        assert!(queue.poll_take(&mut cx, &mut taken).is_pending());
        assert!(queue.push(3, |b| b.copy_from_slice(b"abc")) && queue.room());
        assert!(!queue.push(4, |_| ()) && queue.room());
        assert!(queue.push(3, |b| b.copy_from_slice(b"def")) && !queue.room());
        assert!(!queue.push(0, |_| ()) && queue.poll_room(&mut cx).is_pending());
        queue.push_over(0, |_| ());
        assert_eq!(queue.poll_take(&mut cx, &mut taken), Poll::Ready(Taken::Packets));
        assert!(queue.poll_room(&mut cx).is_ready());
        let (first, at) = packet(&taken, 0).unwrap();
        let (second, at) = packet(&taken, at).unwrap();
        let (third, at) = packet(&taken, at).unwrap();
        assert_eq!((first, second, third), (&b"abc"[..], &b"def"[..], &b""[..]));
        assert!(packet(&taken, at).is_none());
        queue.close();
        assert_eq!(queue.poll_take(&mut cx, &mut Vec::new()), Poll::Ready(Taken::Closed));
    }
}
