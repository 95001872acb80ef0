//! Pulling an image from a registry into a store.
//!
//! A store is a folder with `blobs/sha256/`; several images share it. A pull loads a blob into a separate file beside
//! its final place. A later pull resumes that file, and the file gets its final name once its digest is right.
//!
//! The client is Berth's own, on `reqwest`: a tenant names the registry, and so decides to whom this machine talks. So
//! Berth judges every address when a name is resolved and at every redirect, fetches tokens under the same rule, and
//! bounds every answer. The published clients leave the first to a fixed HTTP client and the second out.

mod auth;
mod blob;
mod puller;
mod reach;

use std::path::Path;
use std::time::Duration;

use reqwest::Client;

use crate::blobs::Sha;
use crate::{Error, MAX_DOCUMENT, MAX_LAYERS, Reference, Result};
pub use auth::Credentials;
use puller::Pull;
pub use puller::{Progress, Puller};
pub use reach::{Judge, Registries};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a registry may be silent.
const SILENCE: Duration = Duration::from_mins(1);
impl Puller {
    /// A client for the permitted registries, with an operator's credentials.
    ///
    /// # Errors
    /// The HTTP client cannot be made, for instance because there are no trusted certificates.
    pub fn new(registries: Registries, credentials: Credentials) -> Result<Self> {
        let client = Client::builder()
            .user_agent("berth")
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .dns_resolver(registries.resolver())
            .redirect(registries.redirects())
            // Addresses are judged where names are resolved; a proxy from the environment would resolve them elsewhere.
            .no_proxy()
            .build()
            .map_err(|error| Error::Unreachable(format!("There is no HTTP client: {error}.")))?;
        Ok(Self { client, registries, credentials })
    }

    /// Pulls an image for linux/amd64 into a store; returns the digest of its manifest, for [`crate::Image::in_store`].
    /// All its blobs together may have `most` bytes.
    ///
    /// # Errors
    /// The reference is malformed, the registry does not give the complete image, or the image is too large.
    pub async fn pull(
        &self,
        reference: &str,
        store: &Path,
        most: u64,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<String> {
        let reference = parse_reference(reference)?;
        let pull = Pull::begin(self, &reference)?;
        tokio::fs::create_dir_all(store.join("blobs/sha256")).await?;
        let (digest, manifest) = pull.manifest(&reference).await?;
        let layers = manifest.layers();
        if layers.len() > MAX_LAYERS {
            let message = format!("An image may have {MAX_LAYERS} layers at most, not {}; squash it.", layers.len());
            return Err(Error::TooLarge(message));
        }
        if manifest.config().size() > MAX_DOCUMENT {
            return Err(Error::TooLarge(format!("The image's configuration has more than {MAX_DOCUMENT} bytes.")));
        }
        let whole = layers.iter().fold(manifest.config().size(), |sum, layer| sum.saturating_add(layer.size()));
        if whole > most {
            let message = format!("The image has {whole} bytes, more than the {most} there are for it.");
            return Err(Error::TooLarge(message));
        }
        for descriptor in std::iter::once(manifest.config()).chain(layers) {
            let sha = Sha::parse(descriptor.digest().as_ref())?;
            pull.blob(&sha, descriptor.size(), store, progress).await?;
        }
        blob::keep(store, &digest).await?;
        Ok(format!("sha256:{}", digest.0.0))
    }
}

/// Parses a reference such as `debian:12`; without a registry it means Docker's own.
fn parse_reference(text: &str) -> Result<Reference> {
    text.parse::<Reference>().map_err(|error| {
        let text = text.chars().take(200).collect::<String>();
        Error::invalid(format!("'{text}' names no image ({error}); write it like 'docker.io/library/debian:12'."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_docker_reads_them() {
        for (text, whole) in [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("ghcr.io/x/y:1", "ghcr.io/x/y:1"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
        ] {
            assert_eq!(parse_reference(text).unwrap().whole(), whole);
        }
        for bad in ["", "UPPER", "a b", "-", "a:b:c", "a@sha256:12"] {
            assert!(parse_reference(bad).is_err(), "{bad}");
        }
    }
}
