//! One layer: its blob is verified, decompressed, and verified again.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::blobs::{Blobs, Bytes, Sha, missing};
use crate::compression::{Decoder, Prefixed};
use crate::{Error, Result};

/// How many more bytes may come out of an image, a context or several of them. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Arc<AtomicU64>,
    whole: u64,
}

impl Budget {
    /// A budget of bytes, such as the size of the target disk.
    pub fn new(bytes: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(bytes)), whole: bytes }
    }

    /// Spends bytes; fails if there are not enough.
    pub fn spend(&self, bytes: u64) -> Result<()> {
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        let message = || format!("It holds more than the {} bytes of the disk; give a larger disk_gb.", self.whole);
        spent.map(drop).map_err(|_| Error::TooLarge(message()))
    }
}

/// One layer of an image.
#[derive(Clone)]
pub struct ImageLayer {
    pub(crate) blobs: Arc<Blobs>,
    /// Its path among the blobs.
    pub(crate) name: String,
    /// The digest of the blob, if known.
    pub(crate) blob: Option<Sha>,
    /// The digest after decompression.
    pub(crate) diff_id: Sha,
    /// Bytes of the blob.
    pub(crate) size: u64,
}

impl ImageLayer {
    /// Its digest after decompression, `sha256:…`.
    pub fn diff_id(&self) -> String {
        format!("sha256:{}", self.diff_id.0)
    }

    /// Bytes of its blob, as stored.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its tar archive. The last read fails if a digest is wrong, or if the content exceeds the budget.
    pub fn open(&self, budget: &Budget) -> Result<impl Read + Send + use<>> {
        let (bytes, size) = self.blobs.open(&self.name)?.ok_or_else(|| missing(&self.diff_id))?;
        if size != self.size {
            return Err(self.blob.as_ref().unwrap_or(&self.diff_id).broken());
        }
        let blob = Verified { bytes, hasher: Sha256::new(), expected: self.blob.clone() };
        let decoder = Decoder::sniff(blob).map_err(Error::from_stream)?;
        Ok(Plain { decoder, hasher: Sha256::new(), expected: self.diff_id.clone(), budget: budget.clone() })
    }
}

/// Bytes whose digest is checked at their end.
struct Verified {
    bytes: Bytes,
    hasher: Sha256,
    expected: Option<Sha>,
}

impl Read for Verified {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.bytes.read(buffer)?;
        self.hasher.update(&buffer[..n]);
        if n == 0 && !buffer.is_empty() {
            check(&mut self.hasher, self.expected.as_ref())?;
        }
        Ok(n)
    }
}

struct Plain {
    decoder: Decoder<Prefixed<Verified>>,
    hasher: Sha256,
    expected: Sha,
    budget: Budget,
}

impl Read for Plain {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.decoder.read(buffer)?;
        self.budget.spend(n as u64).map_err(Error::into_stream)?;
        self.hasher.update(&buffer[..n]);
        if n == 0 && !buffer.is_empty() {
            check(&mut self.hasher, Some(&self.expected))?;
        }
        Ok(n)
    }
}

/// Checks the digest of all bytes read. Reading on at the end yields nothing, which does not change it.
fn check(hasher: &mut Sha256, expected: Option<&Sha>) -> io::Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    if Sha::finished(hasher.clone()) == *expected { Ok(()) } else { Err(expected.broken().into_stream()) }
}
