//! Stores for the parts of an image.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::archive::Archive;
use crate::{Error, MAX_DOCUMENT, Result};

/// A source of bytes.
pub type Bytes = Box<dyn Read + Send>;

/// A store for the parts of an image.
pub enum Blobs {
    /// A folder with the files of an OCI layout.
    Folder(PathBuf),
    /// An archive of such a folder, or of `docker save`.
    Archive(Archive),
}

impl Blobs {
    /// A part, by its path, with its length.
    pub fn open(&self, name: &str) -> Result<Option<(Bytes, u64)>> {
        match self {
            Self::Archive(archive) => {
                Ok(archive.member(name).map(|(section, size)| (Box::new(section) as Bytes, size)))
            }
            Self::Folder(folder) => {
                let path = folder.join(name);
                match path.symlink_metadata() {
                    Ok(found) if found.is_file() => Ok(Some((Box::new(File::open(path)?), found.len()))),
                    Ok(_) => Ok(None),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// A small part, by its path.
    pub fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some((bytes, size)) = self.open(name)? else { return Ok(None) };
        if size > MAX_DOCUMENT {
            return Err(Error::TooLarge(format!("{name} in the image has more than {MAX_DOCUMENT} bytes.")));
        }
        let mut document = Vec::new();
        bytes.take(MAX_DOCUMENT).read_to_end(&mut document)?;
        Ok(Some(document))
    }

    /// A small part, by its digest, which is checked.
    pub fn verified(&self, digest: &Sha) -> Result<Vec<u8>> {
        let document = self.document(&digest.path())?.ok_or_else(|| missing(digest))?;
        digest.verify(&document)?;
        Ok(document)
    }
}

/// The error for a missing part.
pub fn missing(digest: &Sha) -> Error {
    Error::NotFound(format!("The image lacks its part sha256:{}; save it again with all its layers.", digest.0))
}

/// A SHA-256 in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sha(pub String);

impl Sha {
    /// Reads `sha256:…`.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = text.strip_prefix("sha256:").filter(|hex| is_hex(hex));
        let refused = || Error::invalid("The image names its parts with another hash than sha256; build it again.");
        hex.map(|hex| Self(hex.to_owned())).ok_or_else(refused)
    }

    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finished(Sha256::new_with_prefix(bytes))
    }

    /// The digest that a hasher has computed.
    pub fn finished(hasher: Sha256) -> Self {
        Self(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Its path in a layout.
    pub fn path(&self) -> String {
        format!("blobs/sha256/{}", self.0)
    }

    /// Checks that bytes have this digest.
    pub fn verify(&self, bytes: &[u8]) -> Result<()> {
        if Self::of(bytes) == *self { Ok(()) } else { Err(self.broken()) }
    }

    /// The error for bytes with another digest.
    pub fn broken(&self) -> Error {
        Error::invalid(format!("The image's part sha256:{} is damaged; save or push the image again.", self.0))
    }
}

/// Whether a text is a SHA-256 in hexadecimal.
pub fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
