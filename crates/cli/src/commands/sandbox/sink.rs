//! Writes a program's output to this program's own streams.

use std::io::{self, ErrorKind, Write};

/// Bytes that are gathered before a write.
const FULL: usize = 64 * 1024;

/// Standard output and standard error, written in the order in which the output came.
pub struct Sink {
    out: Stream,
    err: Stream,
    last_is_err: bool,
}

struct Stream {
    to: Box<dyn Write + Send>,
    pending: Vec<u8>,
    /// Whether its reader is gone.
    broken: bool,
}

/// Whether the reader is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// It is, or nothing was written to a stream without one.
    There,
    /// One of the streams has just lost its reader.
    Left,
}

impl Sink {
    /// On this program's streams.
    pub fn standard() -> Self {
        Self::new(Box::new(io::stdout()), Box::new(io::stderr()))
    }

    fn new(out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        let stream = |to| Stream { to, pending: Vec::new(), broken: false };
        Self { out: stream(out), err: stream(err), last_is_err: false }
    }

    /// Adds bytes for one of the streams.
    pub fn put(&mut self, stderr: bool, bytes: &[u8]) -> io::Result<Reader> {
        let mut reader = Reader::There;
        if stderr != self.last_is_err {
            reader = self.flush()?;
            self.last_is_err = stderr;
        }
        let stream = if stderr { &mut self.err } else { &mut self.out };
        stream.pending.extend_from_slice(bytes);
        if stream.pending.len() >= FULL && self.flush()? == Reader::Left {
            reader = Reader::Left;
        }
        Ok(reader)
    }

    /// Writes the gathered bytes.
    pub fn flush(&mut self) -> io::Result<Reader> {
        let mut reader = Reader::There;
        for stream in [&mut self.out, &mut self.err] {
            let pending = std::mem::take(&mut stream.pending);
            if pending.is_empty() || stream.broken {
                continue;
            }
            match stream.to.write_all(&pending).and_then(|()| stream.to.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                    stream.broken = true;
                    reader = Reader::Left;
                }
                other => other?,
            }
        }
        Ok(reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// Keeps the writes, with their streams.
    #[derive(Clone)]
    struct Kept(Arc<Mutex<Written>>, char);

    type Written = Vec<(char, Vec<u8>)>;

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.starts_with(b"gone") {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.0.lock().unwrap().push((self.1, bytes.to_vec()));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sink() -> (Sink, Kept) {
        let kept = Kept(Arc::default(), 'o');
        (Sink::new(Box::new(kept.clone()), Box::new(Kept(kept.0.clone(), 'e'))), kept)
    }

    #[test]
    fn the_order_of_the_streams_is_kept() {
        let (mut sink, kept) = sink();
        for (stderr, bytes) in [(false, "a"), (false, "b"), (true, "c"), (false, "d")] {
            assert_eq!(sink.put(stderr, bytes.as_bytes()).unwrap(), Reader::There);
        }
        sink.flush().unwrap();
        let written = kept.0.lock().unwrap().clone();
        assert_eq!(written, [('o', b"ab".to_vec()), ('e', b"c".to_vec()), ('o', b"d".to_vec())]);
    }

    #[test]
    fn no_more_than_the_limit_is_gathered() {
        let (mut sink, kept) = sink();
        sink.put(false, &vec![1; FULL - 1]).unwrap();
        assert!(kept.0.lock().unwrap().is_empty());
        sink.put(false, &[1]).unwrap();
        assert_eq!(kept.0.lock().unwrap()[0].1.len(), FULL);
    }

    #[test]
    fn a_reader_who_left_is_told_once_and_the_other_stream_goes_on() {
        let (mut sink, kept) = sink();
        sink.put(false, b"gone").unwrap();
        assert_eq!(sink.flush().unwrap(), Reader::Left);
        sink.put(false, b"gone").unwrap();
        assert_eq!(sink.flush().unwrap(), Reader::There);
        sink.put(true, b"still").unwrap();
        sink.flush().unwrap();
        assert_eq!(kept.0.lock().unwrap().clone(), [('e', b"still".to_vec())]);
    }
}
