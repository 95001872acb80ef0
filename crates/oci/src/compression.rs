//! Recognizes compression by the first bytes, and decompresses.

use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;

/// Number of bytes needed to recognize it.
pub const MAGIC: usize = 6;
/// The largest window of zstd, as a power of two: it bounds the memory.
const WINDOW: u32 = 27;

/// How bytes are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// None that is known here.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// bzip2, which Berth does not read.
    Bzip2,
    /// xz, which Berth does not read.
    Xz,
}

impl Compression {
    /// Recognizes compression by the first bytes.
    pub fn of(start: &[u8]) -> Self {
        match start {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Bzip2,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::None,
        }
    }
}

/// Decompressed bytes. At its end the decoder has read its whole source.
pub enum Decoder<R: Read> {
    /// Not compressed.
    Plain(R),
    /// From gzip.
    Gzip(Box<MultiGzDecoder<R>>),
    /// From Zstandard.
    Zstd(Box<zstd::Decoder<'static, BufReader<R>>>),
}

impl<R: Read> Decoder<Prefixed<R>> {
    /// Reads the first bytes of a reader, and decodes accordingly.
    pub fn sniff(mut reader: R) -> io::Result<Self> {
        let mut start = Vec::with_capacity(MAGIC);
        reader.by_ref().take(MAGIC as u64).read_to_end(&mut start)?;
        let compression = Compression::of(&start);
        Self::new(compression, Prefixed { start, at: 0, reader })
    }
}

impl<R: Read> Decoder<R> {
    /// Decodes bytes of a known compression.
    pub fn new(compression: Compression, reader: R) -> io::Result<Self> {
        let refused = |name: &str| {
            let message = format!("{name} is not supported; compress with gzip or zstd, or not at all");
            io::Error::new(io::ErrorKind::InvalidData, message)
        };
        match compression {
            Compression::None => Ok(Self::Plain(reader)),
            Compression::Gzip => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(reader)))),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::new(reader)?;
                decoder.window_log_max(WINDOW)?;
                Ok(Self::Zstd(Box::new(decoder)))
            }
            Compression::Bzip2 => Err(refused("bzip2")),
            Compression::Xz => Err(refused("xz")),
        }
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self {
            Self::Plain(reader) => reader.read(buffer)?,
            Self::Gzip(decoder) => decoder.read(buffer)?,
            Self::Zstd(decoder) => decoder.read(buffer)?,
        };
        if read == 0 && !buffer.is_empty() {
            let rest: &mut dyn Read = match self {
                Self::Plain(_) => return Ok(0),
                Self::Gzip(decoder) => decoder.get_mut(),
                Self::Zstd(decoder) => decoder.get_mut().get_mut(),
            };
            io::copy(rest, &mut io::sink())?;
        }
        Ok(read)
    }
}

/// A reader whose first bytes were already read.
pub struct Prefixed<R> {
    start: Vec<u8>,
    at: usize,
    reader: R,
}

impl<R: Read> Read for Prefixed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.start[self.at..];
        if left.is_empty() {
            return self.reader.read(buffer);
        }
        let n = left.len().min(buffer.len());
        buffer[..n].copy_from_slice(&left[..n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_compression_is_told_by_its_beginning() {
        let text = b"some text, some text".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&text).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(&text[..], 1).unwrap();
        let twice = [gzip.clone(), gzip.clone()].concat();
        for (bytes, times) in [(text.clone(), 1), (gzip, 1), (zstd, 1), (twice, 2)] {
            let mut out = Vec::new();
            Decoder::sniff(&bytes[..]).unwrap().read_to_end(&mut out).unwrap();
            assert_eq!(out, text.repeat(times));
        }
        for bad in [&b"BZh91AY"[..], b"\xfd7zXZ\0\0"] {
            assert!(Decoder::sniff(bad).err().unwrap().to_string().contains("gzip or zstd"));
        }
        for short in [&b""[..], b"\x1f", b"ab"] {
            let mut out = Vec::new();
            Decoder::sniff(short).unwrap().read_to_end(&mut out).unwrap();
            assert_eq!(out, short);
        }
    }
}
