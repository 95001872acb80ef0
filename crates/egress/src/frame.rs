//! Frames out of QEMU's stream: each is preceded by its length in four bytes, big-endian.
//!
//! QEMU itself takes frames of up to 68 KiB and treats a longer prefix as a broken stream (`net/net.c`,
//! `net_fill_rstate`), which is what happens here, too. In between lies what no Ethernet of this link carries:
//! such a frame is skipped. The buffer grows once a large frame comes, and is small again when nothing has come for a
//! while.

use std::io;

use crate::queue::PREFIX;

/// Largest frame that is looked at: header, a VLAN tag, and a packet.
pub(crate) const MAX: usize = 14 + 4 + crate::MTU;
/// Largest length that a stream in order can announce.
const INSANE: usize = 68 * 1024;
/// Bytes of the buffer, and those that it grows to.
const BUFFER: usize = 32 * 1024;
const LARGE: usize = 128 * 1024;

/// The reading side of a stream: bytes in, frames out.
pub(crate) struct Deframer {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    skip: usize,
}

impl Deframer {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER], start: 0, end: 0, skip: 0 }
    }

    /// Where to read to; never empty once [`Deframer::next`] has returned `None`.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        let pending = self.prefix().map_or(0, |(len, _)| len.min(MAX));
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start + PREFIX + pending > self.buffer.len() || self.buffer.len() - self.end < BUFFER / 4 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if PREFIX + pending > self.buffer.len() {
            self.buffer.resize(LARGE, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// Whether the buffer has grown.
    pub(crate) fn is_large(&self) -> bool {
        self.buffer.len() > BUFFER
    }

    /// Gives back what the buffer has grown by, unless something is in it.
    pub(crate) fn rest(&mut self) {
        if self.is_large() && self.start == self.end {
            *self = Self { skip: self.skip, ..Self::new() };
        }
    }

    /// The length that stands before the next frame, and what is there of the frame.
    fn prefix(&self) -> Option<(usize, usize)> {
        let (prefix, rest) = self.buffer[self.start..self.end].split_first_chunk::<PREFIX>()?;
        Some((u32::from_be_bytes(*prefix) as usize, rest.len()))
    }

    /// Notes that `count` bytes were read.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }

    /// The next whole frame of a size this link carries.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let skipped = self.skip.min(self.end - self.start);
            self.skip -= skipped;
            self.start += skipped;
            let Some((len, there)) = self.prefix() else { return Ok(None) };
            if len > INSANE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {len} bytes")));
            }
            if len > MAX {
                self.start += PREFIX;
                self.skip = len;
                continue;
            }
            if there < len {
                return Ok(None);
            }
            let at = self.start + PREFIX;
            self.start = at + len;
            return Ok(Some(&self.buffer[at..at + len]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(sizes: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            bytes.extend(u32::try_from(*size).unwrap().to_be_bytes());
            bytes.extend(std::iter::repeat_n(u8::try_from(index % 251).unwrap(), *size));
        }
        bytes
    }

    fn feed(bytes: &[u8], chunk: usize) -> io::Result<Vec<(usize, Option<u8>)>> {
        let mut deframer = Deframer::new();
        let mut frames = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let space = deframer.space();
            assert!(!space.is_empty());
            let count = rest.len().min(chunk).min(space.len());
            space[..count].copy_from_slice(&rest[..count]);
            deframer.filled(count);
            rest = &rest[count..];
            while let Some(frame) = deframer.next()? {
                frames.push((frame.len(), frame.first().copied()));
            }
        }
        Ok(frames)
    }

    #[test]
    fn both_sides_of_every_bound() {
        let sizes = feed(&framed(&[0, 1, MAX, MAX + 1, INSANE, 7]), 1000).unwrap();
        assert_eq!(sizes, [(0, None), (1, Some(1)), (MAX, Some(2)), (7, Some(5))]);
        assert!(feed(&framed(&[3, INSANE + 1]), 1000).is_err());
    }

    #[test]
    fn the_buffer_is_large_only_as_long_as_it_has_to_be() {
        let mut deframer = Deframer::new();
        let take = |deframer: &mut Deframer, bytes: &[u8]| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let count = deframer.space().len().min(rest.len());
                deframer.space()[..count].copy_from_slice(&rest[..count]);
                deframer.filled(count);
                rest = &rest[count..];
                while deframer.next().unwrap().is_some() {}
            }
        };
        take(&mut deframer, &framed(&[1500; 100]));
        assert!(!deframer.is_large());
        let bytes = framed(&[MAX, 1500]);
        take(&mut deframer, &bytes[..bytes.len() - 1]);
        deframer.rest();
        assert!(deframer.is_large(), "something is in it");
        take(&mut deframer, &bytes[bytes.len() - 1..]);
        deframer.rest();
        assert!(!deframer.is_large() && deframer.space().len() == BUFFER);
    }

    proptest! {
        #[test]
        fn frames_arrive_however_they_are_cut(
            sizes in prop::collection::vec(prop_oneof![0_usize..=MAX, 0_usize..=INSANE], 0..40),
            chunk in 1_usize..200_000,
        ) {
            let got = feed(&framed(&sizes), chunk).unwrap();
            let expected: Vec<_> = sizes.iter().enumerate().filter(|(_, size)| **size <= MAX)
                .map(|(i, size)| (*size, (*size > 0).then(|| u8::try_from(i % 251).unwrap()))).collect();
            prop_assert_eq!(got, expected);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..5000), chunk in 1_usize..5000) {
            let _ = feed(&bytes, chunk);
        }
    }
}
