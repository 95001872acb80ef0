//! Where an event ends in bytes, and what its lines say.
//!
//! Nothing here builds an event: [`end_of_event`] tells how many bytes of what has arrived are whole, and [`data`]
//! borrows, for who passes bytes on as they came. Whether a line break ends an event depends only on the bytes just
//! before it, never on where the search began. So a search goes on where the last one stopped, every byte is looked
//! at once however the network cut the stream, and a split never changes what is found.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// A byte order mark in UTF-8. The standard allows one before the first event.
pub(super) const MARK: &[u8] = b"\xEF\xBB\xBF";

/// Index after the blank line that ends the first event of `bytes`. `from` is how many of them an earlier call has
/// searched in vain; 0 for the first.
///
/// Lines end with LF, CRLF or CR, in any mixture. A CR that is the very last byte is not decided yet, since the LF of
/// the same line break may follow; what is left when a stream ends is an event the server did not finish.
pub fn end_of_event(bytes: &[u8], from: usize) -> Option<usize> {
    // The one byte that an earlier search left undecided is a CR at its end.
    let mut at = from.saturating_sub(1);
    loop {
        at += memchr2(b'\n', b'\r', bytes.get(at..)?)?;
        let end = end_of_line(bytes, at)?;
        if blank(bytes, at) {
            return Some(end);
        }
        at = end;
    }
}

/// Index after the line break whose CR or LF stands at `at`; `None` where it may go on.
fn end_of_line(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes[at] == b'\n' {
        return Some(at + 1);
    }
    bytes.get(at + 1).map(|next| if *next == b'\n' { at + 2 } else { at + 1 })
}

/// Whether the line that ends at the break at `at` is empty. The search may have begun between a CR and its LF.
fn blank(bytes: &[u8], at: usize) -> bool {
    let inside = bytes[at] == b'\n' && at > 0 && bytes[at - 1] == b'\r';
    let start = if inside { at - 1 } else { at };
    start == 0 || matches!(bytes[start - 1], b'\n' | b'\r')
}

/// The data of an event: its `data` lines joined by LF, borrowed where there is one; `None` where there is none, as in
/// comments. A byte order mark at the front and one space after the colon are dropped.
pub fn data(event: &[u8]) -> Option<Cow<'_, [u8]>> {
    let event = event.strip_prefix(MARK).unwrap_or(event);
    let mut values = fields(event).filter(|(name, _)| *name == b"data").map(|(_, value)| value);
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
    let mut all = first.to_vec();
    for value in std::iter::once(second).chain(values) {
        all.push(b'\n');
        all.extend_from_slice(value);
    }
    Some(Cow::Owned(all))
}

/// Names and values of the lines of an event: without comments, and without one space after the colon. A line without a
/// colon is a field with an empty value.
pub(super) fn fields(event: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = Lines(event).filter(|line| !matches!(line, [] | [b':', ..]));
    lines.map(|line| match memchr(b':', line) {
        None => (line, &[][..]),
        Some(at) => {
            let value = &line[at + 1..];
            (&line[..at], value.strip_prefix(b" ").unwrap_or(value))
        }
    })
}

/// Lines without their breaks.
pub(super) struct Lines<'a>(pub &'a [u8]);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let at = memchr2(b'\n', b'\r', self.0).unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(at);
        let one = rest.get(1..).unwrap_or_default();
        self.0 = rest.strip_prefix(b"\r\n").unwrap_or(one);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Cuts a stream as a relay does: pieces go to a buffer, whole events leave it, the rest comes last.
    fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let (mut buffer, mut searched, mut events) = (Vec::new(), 0, Vec::new());
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let Some(end) = end_of_event(&buffer, searched) {
                events.push(buffer.drain(..end).collect());
                searched = 0;
            }
            searched = buffer.len();
        }
        if !buffer.is_empty() {
            events.push(buffer);
        }
        events
    }

    fn says(event: &str) -> Option<String> {
        data(event.as_bytes()).map(|data| String::from_utf8(data.into_owned()).unwrap())
    }

    /// The same by the standard's words: line by line, from the front.
    fn by_the_book(stream: &[u8]) -> Vec<Vec<u8>> {
        let (mut events, mut event, mut at, mut line) = (Vec::new(), Vec::new(), 0, 0);
        while at < stream.len() {
            let end = match &stream[at..] {
                [b'\r', b'\n', ..] => 2,
                [b'\n', ..] | [b'\r', _, ..] => 1,
                _ => 0,
            };
            event.extend_from_slice(&stream[at..at + end.max(1)]);
            at += end.max(1);
            if end == 0 {
                line += 1;
            } else if line == 0 {
                events.push(std::mem::take(&mut event));
            } else {
                line = 0;
            }
        }
        if !event.is_empty() {
            events.push(event);
        }
        events
    }

    #[test]
    fn every_short_stream_is_cut_by_the_book() {
        for length in 0..=7 {
            for number in 0..3_usize.pow(length) {
                let letter = |place| b"\r\na"[number / 3_usize.pow(place) % 3];
                let stream: Vec<u8> = (0..length).map(letter).collect();
                let expected = by_the_book(&stream);
                assert_eq!(events([&stream[..]]), expected, "{stream:?}");
                assert_eq!(events(stream.chunks(1)), expected, "{stream:?} byte by byte");
                assert_eq!(events(stream.chunks(2)), expected, "{stream:?} in pairs");
            }
        }
    }

    #[test]
    fn a_carriage_return_at_the_end_is_not_decided() {
        assert_eq!(end_of_event(b"data: x\r\n\r", 0), None);
        assert_eq!(end_of_event(b"data: x\r\n\r\n", 10), Some(11));
        assert_eq!(end_of_event(b"data: x\r\n\rd", 10), Some(10));
        assert_eq!(end_of_event(b"data: x\n", 100), None);
        assert_eq!(end_of_event(b"", 0), None);
        assert_eq!(end_of_event(b"\n\n", 0), Some(1));
    }

    #[test]
    fn data_of_all_shapes() {
        assert_eq!(says("data: [DONE]\n\n").as_deref(), Some("[DONE]"));
        assert_eq!(says("data:{}\r\n\r\n").as_deref(), Some("{}"));
        assert_eq!(says("\u{feff}data:  two spaces\n\n").as_deref(), Some(" two spaces"));
        assert_eq!(says("event: x\ndata: {\r: a comment\rdata:}\r\ndata\nid: 1\n\n").as_deref(), Some("{\n}\n"));
        assert_eq!(says("data:\n\n").as_deref(), Some(""));
        assert_eq!(says("data: not finished").as_deref(), Some("not finished"));
        for none in [": ping\n\n", "\n", "", "database: 1\n\n", "Data: 1\n\n", " data: 1\n\n", "event: data\n\n"] {
            assert_eq!(says(none), None, "{none:?}");
        }
    }

    #[test]
    fn one_line_is_borrowed() {
        assert!(matches!(data(b": hm\nid: 1\ndata: x\n\n"), Some(Cow::Borrowed(b"x"))));
        assert!(matches!(data(b"data: x\ndata: y\n\n"), Some(Cow::Owned(_))));
    }

    const LINES: [(&str, Option<&str>); 8] = [
        ("data: a", Some("a")),
        ("data:b", Some("b")),
        ("data", Some("")),
        ("data:  ü: {}", Some(" ü: {}")),
        (": ping", None),
        ("event: error", None),
        ("id", None),
        ("datä: x", None),
    ];

    /// Writes events with the line breaks that `breaks` tells, over and over.
    fn written(script: &[Vec<usize>], breaks: &[&str]) -> String {
        let (mut stream, mut breaks) = (String::new(), breaks.iter().cycle());
        for lines in script {
            for line in lines {
                stream += LINES[*line].0;
                stream += breaks.next().unwrap();
            }
            // LF alone after CR would be the other half of the same line break.
            let blank = *breaks.next().unwrap();
            stream += if stream.ends_with('\r') && blank == "\n" { "\r\n" } else { blank };
        }
        stream
    }

    proptest! {
        #[test]
        fn no_split_and_no_line_break_changes_the_events(
            script in prop::collection::vec(prop::collection::vec(0..LINES.len(), 1..5), 1..8),
            breaks in prop::collection::vec(prop::sample::select(vec!["\n", "\r", "\r\n"]), 1..9),
            sizes in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let stream = written(&script, &breaks);
            let mut pieces = Vec::new();
            let mut rest = stream.as_bytes();
            for size in sizes.iter().cycle() {
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                pieces.push(piece);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            let found = events(pieces);
            prop_assert_eq!(&found, &events(stream.as_bytes().chunks(1)));
            prop_assert_eq!(found.concat(), stream.as_bytes());
            let said: Vec<_> = found.iter().map(|event| data(event).map(Cow::into_owned)).collect();
            let expected: Vec<_> = script
                .iter()
                .map(|lines| lines.iter().filter_map(|line| LINES[*line].1).collect::<Vec<_>>())
                .map(|values| (!values.is_empty()).then(|| values.join("\n").into_bytes()))
                .collect();
            prop_assert_eq!(said, expected);
        }

        #[test]
        fn arbitrary_bytes_are_no_trouble(bytes: Vec<u8>, from: usize) {
            if let Some(end) = end_of_event(&bytes, from) {
                prop_assert!(end <= bytes.len());
            }
            let _ = data(&bytes);
        }
    }
}
