//! The guest's end of a TCP flow, and the bytes that it may hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smoltcp::wire::TcpPacket;

use crate::packet::Key;
use crate::pool::{Claim, Pool};
use crate::queue::Queue;

/// The window of a flow, which is also the size of its buffer for each direction, in bytes. A large one holds eight of the
/// largest segments, so that several go over the link at once: each time that one side waits for the other costs as much
/// as a segment.
const LARGE: usize = 512 * 1024;
/// That of a flow of a machine that has some, with two of the largest segments, so that one is on its way while the other
/// is worked on; and of one that has many.
const MEDIUM: usize = 128 * 1024;
const SMALL: usize = 8 * 1024;

/// The guest's end of a flow.
pub(crate) struct Flow {
    pub(super) key: Key,
    pub(super) inbox: Queue,
    open: AtomicBool,
    answered: AtomicBool,
    pub(super) room: Room,
}

/// The bytes that a flow may hold.
pub(crate) struct Room {
    pub(super) window: usize,
    _bytes: Claim,
}

impl Room {
    /// Room for one more flow: a large one of the first quarter of the bytes, a medium one of the second.
    pub(crate) fn take(buffers: &Arc<Pool>) -> Option<Self> {
        let claim = |window: usize, left| Some(Self { window, _bytes: buffers.claim(cost(window), left)? });
        let half = buffers.most() / 2;
        claim(LARGE, half + half / 2).or_else(|| claim(MEDIUM, half)).or_else(|| claim(SMALL, 0))
    }
}

/// Bytes of packets that wait for a flow, of whatever size. More than its window, so that a guest that respects it loses nothing.
const fn inbox(window: usize) -> usize {
    window + window / 2
}

/// Bytes that a flow of a window holds at most: both buffers, and packets that wait and that are read.
const fn cost(window: usize) -> usize {
    2 * window + 2 * inbox(window)
}

impl Flow {
    /// A flow that the guest has begun.
    pub(crate) fn new(key: Key, room: Room) -> Self {
        let (open, answered) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { key, inbox: Queue::new(inbox(room.window)), open, answered, room }
    }

    /// A flow that somebody outside has begun.
    pub(crate) fn arriving(key: Key, room: Room) -> Self {
        let (open, answered) = (AtomicBool::new(true), AtomicBool::new(false));
        Self { open, answered, ..Self::new(key, room) }
    }

    /// Takes a segment of the guest. As long as the outside is not connected only a reset matters.
    pub(crate) fn segment(&self, segment: &TcpPacket<&[u8]>, packet: &[u8]) {
        if self.open.load(Ordering::Acquire) {
            self.inbox.push(packet.len(), |buffer| buffer.copy_from_slice(packet));
        } else if segment.rst() {
            self.inbox.close();
        }
    }

    /// From now on the flow takes every segment, beginning with this packet.
    pub(super) fn begin(&self, syn: &[u8]) {
        self.inbox.push(syn.len(), |buffer| buffer.copy_from_slice(syn));
        self.open.store(true, Ordering::Release);
    }

    /// Notes that the guest has said that it takes part.
    pub(super) fn answered(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// The guest says that the other end cannot reach it. That ends nothing but an attempt (RFC 5461, 4).
    pub(crate) fn unreachable(&self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.revoke();
        }
    }

    /// Ends the flow with a reset on both sides.
    pub(crate) fn revoke(&self) {
        self.inbox.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_flows_there_are_the_smaller_they_are() {
        let buffers = Pool::new(crate::Limits::default().buffers);
        let rooms: Vec<_> = std::iter::from_fn(|| Room::take(&buffers)).collect();
        let of = |window| rooms.iter().filter(|room| room.window == window).count();
        assert_eq!((of(LARGE), of(MEDIUM), of(SMALL)), (8, 32, 1024));
        assert!(rooms.is_sorted_by_key(|room| std::cmp::Reverse(room.window)));
        drop(rooms);
        assert_eq!(Room::take(&buffers).unwrap().window, LARGE);
    }
}
