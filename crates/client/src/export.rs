//! Disks, snapshots and images as stand-alone qcow2 files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, StatusCode, header};
use reqwest::Response;

use crate::transport::segment;
use crate::{Error, ProjectClient, Result};

/// What is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exportable<'a> {
    /// A data disk that no running VM has.
    Disk(&'a str),
    /// A root disk volume that no running VM has.
    RootDisk(&'a str),
    /// A snapshot of a disk.
    Snapshot(&'a str),
    /// One of the project's own images.
    Image(&'a str),
}

impl Exportable<'_> {
    fn path(self) -> String {
        let (noun, id) = match self {
            Self::Disk(id) => ("disks", id),
            Self::RootDisk(id) => ("root_disks", id),
            Self::Snapshot(id) => ("disk_snapshots", id),
            Self::Image(id) => ("images", id),
        };
        format!("{noun}/{}/export", segment(id))
    }
}

/// A file that comes, or the rest of it.
#[derive(Debug)]
pub struct Export {
    /// How many bytes all of it has.
    pub bytes: u64,
    /// Where this part begins: at 0, whatever was asked for, where the file is another one by now.
    pub from: u64,
    /// What all of it hashes to (SHA-256).
    pub sha256: Vec<u8>,
    /// What names it in a later request for the rest.
    pub tag: String,
    response: Response,
}

impl Export {
    fn of(response: Response) -> Result<Self> {
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let missing = |what: &str| Error::Protocol(format!("the answer does not say {what}"));
        let sha256 = digest(text("repr-digest")).ok_or_else(|| missing("what the file hashes to"))?;
        let tag = text(header::ETAG.as_str()).to_owned();
        let (from, bytes) = if response.status() == StatusCode::PARTIAL_CONTENT {
            part(text(header::CONTENT_RANGE.as_str())).ok_or_else(|| missing("which part follows"))?
        } else {
            let length = text(header::CONTENT_LENGTH.as_str()).parse();
            (0, length.map_err(|_| missing("how long the file is"))?)
        };
        Ok(Self { bytes, from, sha256, tag, response })
    }

    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// Where it broke off: ask for the rest.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        self.response.chunk().await.map_err(|error| Error::Protocol(format!("the file broke off: {error}")))
    }
}

/// The SHA-256 of a field of digests (RFC 9530).
fn digest(field: &str) -> Option<Vec<u8>> {
    let encoded = field.split(',').find_map(|one| one.trim().strip_prefix("sha-256=:")?.strip_suffix(':'));
    STANDARD.decode(encoded?).ok()
}

/// The first byte of a part, and how many bytes all of it has.
fn part(field: &str) -> Option<(u64, u64)> {
    let (range, all) = field.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, all.parse().ok()?))
}

impl ProjectClient {
    /// Has a file made, and begins to receive it; from a byte on where the file is still the one with this tag. The answer
    /// comes once the file is made, which takes as long as copying the disk.
    pub async fn export(&self, what: Exportable<'_>, rest: Option<(u64, &str)>) -> Result<Export> {
        let path = format!("{}/{}", self.path, what.path());
        let response = self
            .client
            .send_again(|| {
                let request = self.client.request(Method::GET, &path);
                match rest {
                    Some((from, tag)) => {
                        request.header(header::RANGE, format!("bytes={from}-")).header(header::IF_RANGE, tag)
                    }
                    None => request,
                }
            })
            .await?;
        Export::of(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_file_is_read() {
        assert_eq!(digest("sha-256=:AQI=:"), Some(vec![1, 2]));
        assert_eq!(digest("sha-512=:AA==:, sha-256=:AQI=:"), Some(vec![1, 2]));
        assert_eq!((digest("sha-256=AQI="), digest("")), (None, None));
        assert_eq!(part("bytes 4-9/10"), Some((4, 10)));
        assert_eq!((part("bytes */10"), part("4-9/10"), part("")), (None, None, None));
    }
}
