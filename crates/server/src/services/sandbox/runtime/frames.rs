//! Frames of a program's output on their way out of a sandbox: only whole ones are passed on, so that the stream can end
//! with one that says why it broke off.

use berth_domain::agent::output::{self, FrameError, HEADER_LEN, Header, Kind};
use berth_domain::agent::runtime::OutputEvent;
use bytes::{Bytes, BytesMut};

/// Frames that come in pieces of any size.
#[derive(Default)]
pub(super) struct Frames {
    rest: BytesMut,
    ended: bool,
}

impl Frames {
    /// Takes bytes; gives the whole frames that are there now, as they are. Nothing is kept of what follows the last one:
    /// a guest may go on sending for ever.
    pub fn pass(&mut self, bytes: &Bytes) -> Result<Bytes, FrameError> {
        if self.ended {
            return Ok(Bytes::new());
        }
        let passed = self.pass_whole(bytes)?;
        if self.ended {
            self.rest = BytesMut::new();
        }
        Ok(passed)
    }

    fn pass_whole(&mut self, bytes: &Bytes) -> Result<Bytes, FrameError> {
        if self.rest.is_empty() {
            let whole = self.whole(bytes)?;
            self.rest.extend_from_slice(&bytes[whole..]);
            return Ok(bytes.slice(..whole));
        }
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let whole = self.whole(&rest)?;
        self.rest = rest;
        Ok(self.rest.split_to(whole).freeze())
    }

    /// How many bytes are whole frames. What follows an event that nothing follows is none.
    fn whole(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        let mut at = 0;
        while !self.ended
            && let Some(header) = Header::parse(&bytes[at..])?
            && let Some(payload) = bytes[at + HEADER_LEN..].get(..header.length)
        {
            at += HEADER_LEN + header.length;
            self.ended = header.kind == Kind::Event && output::event(payload)?.is_some_and(|event| event.is_last());
        }
        Ok(at)
    }

    /// Whether an event that nothing follows came through whole.
    pub fn ended(&self) -> bool {
        self.ended
    }
}

/// A frame after which nothing comes.
pub(super) fn last(code: &str, message: &str) -> Bytes {
    let mut out = Vec::new();
    output::write_event(&mut out, &OutputEvent::Error { code: code.to_owned(), message: message.to_owned() });
    out.into()
}

#[cfg(test)]
mod tests {
    use berth_domain::agent::runtime::Exit;
    use proptest::prelude::*;

    use super::*;

    fn exit() -> OutputEvent {
        OutputEvent::Exit(Exit { code: Some(0), signal: None, timed_out: false })
    }

    proptest! {
        #[test]
        fn whole_frames_pass_as_they_are(
            outputs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6), ends: bool, step in 1_usize..90,
            cut in 0.0_f64..1.0,
        ) {
            let (mut stream, mut borders) = (Vec::new(), vec![0]);
            for (offset, bytes) in outputs.iter().enumerate() {
                output::write(&mut stream, false, offset as u64, bytes);
                borders.push(stream.len());
            }
            if ends {
                output::write_event(&mut stream, &exit());
                borders.push(stream.len());
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place")]
            let cut = (cut * stream.len() as f64) as usize;
            let (mut frames, mut out) = (Frames::default(), Vec::new());
            for chunk in stream[..cut].chunks(step) {
                out.extend_from_slice(&frames.pass(&Bytes::copy_from_slice(chunk)).unwrap());
            }
            let whole = borders.iter().copied().filter(|border| *border <= cut).max().unwrap_or(0);
            prop_assert_eq!(&out[..], &stream[..whole]);
            prop_assert_eq!(frames.ended(), ends && cut == stream.len());
        }
    }

    #[test]
    fn nothing_follows_the_last_one_and_nonsense_ends_it() {
        let mut stream = last("a", "b").to_vec();
        let whole = stream.len();
        stream.extend_from_slice(b"more");
        let mut frames = Frames::default();
        assert_eq!(frames.pass(&stream.into()).unwrap().len(), whole);
        assert!(frames.ended() && frames.rest.is_empty());
        for _ in 0..100 {
            assert!(frames.pass(&vec![0; 1 << 16].into()).unwrap().is_empty() && frames.rest.is_empty());
        }
        assert!(Frames::default().pass(&Bytes::from_static(&[9; HEADER_LEN])).is_err());
    }
}
