//! Where the body of an HTTP/1 answer ends, and which of the received bytes are its content (RFC 9112, section 6).
//!
//! A decoder keeps a few words of state and no bytes, so that an answer that waits for its next piece holds no buffer.

/// Most digits of a chunk's size: 64 bits.
const DIGITS: u8 = 16;
/// Most bytes of all extensions and trailers of a body, which are ignored; hyper's figure.
const IGNORED: u32 = 16 << 10;

/// How a body's end is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By its length in bytes.
    Length(u64),
    /// By chunks, each with its length.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// The received bytes are not HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Finds a body's content in the bytes of a connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    ignored: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// So many bytes of content, and then the body ends.
    Length(u64),
    /// Content until the connection ends.
    Close,
    /// A chunk's size so far, and its digits.
    Size(u64, u8),
    /// Behind the digits of a size.
    Extension(u64),
    /// Before the line feed behind a size.
    SizeEnd(u64),
    /// So many bytes of a chunk's content.
    Data(u64),
    /// Before the carriage return behind a chunk.
    DataEnd,
    /// Before the line feed behind a chunk.
    DataFeed,
    /// At the beginning of a line behind the last chunk.
    Trailer,
    /// In a trailer.
    InTrailer,
    /// Before the line feed of the last line.
    LastFeed,
    /// Behind the body.
    Done,
}

impl Decoder {
    /// A decoder at the beginning of a body.
    pub const fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size(0, 0),
            Framing::Close => State::Close,
        };
        Self { state, ignored: 0 }
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the body is complete if the connection ends now.
    pub fn may_close(&self) -> bool {
        matches!(self.state, State::Done | State::Close)
    }

    /// Takes the next received bytes and passes their content to `content` in order. Returns how many of them belong to
    /// the body; fewer than all only if it ended.
    ///
    /// # Errors
    /// [`Malformed`] if the chunks are.
    pub fn decode(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.state {
                State::Done => break,
                State::Close => {
                    content(rest);
                    at = bytes.len();
                }
                State::Length(left) | State::Data(left) => {
                    let taken = usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()));
                    content(&rest[..taken]);
                    at += taken;
                    self.took(left - taken as u64);
                }
                state => {
                    self.state = self.step(state, rest[0])?;
                    at += 1;
                }
            }
        }
        Ok(at)
    }

    fn took(&mut self, left: u64) {
        self.state = match (self.state, left) {
            (State::Length(_), 0) => State::Done,
            (State::Length(_), left) => State::Length(left),
            (_, 0) => State::DataEnd,
            (_, left) => State::Data(left),
        };
    }

    /// The state after a byte that is no content.
    fn step(&mut self, state: State, byte: u8) -> Result<State, Malformed> {
        Ok(match (state, byte) {
            (State::Size(size, digits), byte) if byte.is_ascii_hexdigit() && digits < DIGITS => {
                State::Size(size << 4 | u64::from(value(byte)), digits + 1)
            }
            (State::Size(size, 1..) | State::Extension(size), b'\r') => State::SizeEnd(size),
            // Some servers pad their sizes with blanks.
            (State::Size(size, 1..), b' ' | b'\t' | b';') | (State::Extension(size), b' ' | b'\t') => {
                State::Extension(size)
            }
            (State::Extension(size), byte) if byte != b'\n' => self.ignore(State::Extension(size))?,
            (State::SizeEnd(0) | State::InTrailer, b'\n') => State::Trailer,
            (State::SizeEnd(size), b'\n') => State::Data(size),
            (State::DataEnd, b'\r') => State::DataFeed,
            (State::DataFeed, b'\n') => State::Size(0, 0),
            (State::Trailer, b'\r') => State::LastFeed,
            (State::Trailer | State::InTrailer, _) => self.ignore(State::InTrailer)?,
            (State::LastFeed, b'\n') => State::Done,
            _ => return Err(Malformed),
        })
    }

    fn ignore(&mut self, state: State) -> Result<State, Malformed> {
        self.ignored += 1;
        if self.ignored > IGNORED { Err(Malformed) } else { Ok(state) }
    }
}

/// The value of a hexadecimal digit.
const fn value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(decoder: &mut Decoder, bytes: &[u8]) -> Result<(Vec<u8>, usize), Malformed> {
        let mut content = Vec::new();
        let taken = decoder.decode(bytes, |piece| content.extend_from_slice(piece))?;
        Ok((content, taken))
    }

    fn chunked(bytes: &[u8]) -> Result<(Vec<u8>, usize, bool), Malformed> {
        let mut decoder = Decoder::new(Framing::Chunked);
        let (content, taken) = all(&mut decoder, bytes)?;
        Ok((content, taken, decoder.is_done()))
    }

    #[test]
    fn ends_where_it_says() {
        let mut decoder = Decoder::new(Framing::Length(3));
        assert_eq!(all(&mut decoder, b"ab").unwrap(), (b"ab".to_vec(), 2));
        assert!(!decoder.is_done() && !decoder.may_close());
        assert_eq!(all(&mut decoder, b"cd").unwrap(), (b"c".to_vec(), 1));
        assert!(decoder.is_done());
        assert!(Decoder::new(Framing::Length(0)).is_done());
        let mut decoder = Decoder::new(Framing::Close);
        assert_eq!(all(&mut decoder, b"ab").unwrap(), (b"ab".to_vec(), 2));
        assert!(!decoder.is_done() && decoder.may_close());
    }

    #[test]
    fn chunks_extensions_and_trailers() {
        let whole = b"3;a=\"b\"\r\nabc\r\n0A \r\n0123456789\r\n000\r\nx: y\r\nz: 1\r\n\r\nrest";
        assert_eq!(chunked(whole).unwrap(), (b"abc0123456789".to_vec(), whole.len() - 4, true));
        for none in [&b"\r\n"[..], b"g\r\n", b"3\nabc", b"3\r\nabcd", b"3\r\nabc\n", b"0\r\n\rx", b"-1\r\n", b"3;a\n"] {
            assert_eq!(chunked(none), Err(Malformed), "{none:?}");
        }
    }

    #[test]
    fn sizes_have_64_bits() {
        let (content, _, done) = chunked(b"ffffffffffffffff\r\nabc").unwrap();
        assert_eq!((content, done), (b"abc".to_vec(), false));
        assert_eq!(chunked(b"0ffffffffffffffff\r\nabc"), Err(Malformed));
    }

    #[test]
    fn what_is_not_read_has_a_limit() {
        for begin in ["0\r\n", "1;"] {
            let of = |length: usize| [begin.as_bytes(), &vec![b'x'; length]].concat();
            assert!(chunked(&of(IGNORED as usize)).is_ok());
            assert_eq!(chunked(&of(IGNORED as usize + 1)), Err(Malformed));
        }
    }

    proptest! {
        #[test]
        fn however_it_comes_in_pieces(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cuts in prop::collection::vec(1_usize..30, 0..60),
        ) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            let (mut decoder, mut content, mut rest) = (Decoder::new(Framing::Chunked), Vec::new(), &bytes[..]);
            for cut in cuts.into_iter().chain([usize::MAX]) {
                prop_assert!(rest.is_empty() == decoder.is_done());
                let (piece, later) = rest.split_at(cut.min(rest.len()));
                let (some, taken) = all(&mut decoder, piece).unwrap();
                prop_assert_eq!(taken, piece.len());
                content.extend(some);
                rest = later;
            }
            prop_assert!(decoder.is_done());
            prop_assert_eq!(content, chunks.concat());
        }

        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = Decoder::new(Framing::Chunked);
            if let Ok((content, taken)) = all(&mut decoder, &bytes) {
                prop_assert!(content.len() <= taken && taken <= bytes.len());
                prop_assert!(decoder.is_done() || taken == bytes.len());
            }
        }
    }
}
