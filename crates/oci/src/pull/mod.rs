//! Pulling an image from a registry into a store.
//!
//! A store is a folder with `blobs/sha256/`; several images share it. A blob is loaded into a file of its own beside
//! its place, which a later pull goes on with, and gets its name when its digest is right.
//!
//! The client is Berth's own, on `reqwest`: a tenant names the registry, and so decides whom this machine talks to.
//! So every address is judged when a name is resolved and at every redirect, tokens are fetched under the same rule,
//! and every answer is bounded. The published clients leave the first to a fixed HTTP client and the second out.

mod auth;
mod blob;
mod reach;
mod session;

use std::path::Path;
use std::time::Duration;

use reqwest::Client;

use crate::blobs::Sha;
use crate::{Error, MAX_DOCUMENT, MAX_LAYERS, Reference, Result};
pub use auth::Credentials;
pub use reach::{Judge, Registries};
use session::Session;
pub use session::{Progress, Puller};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a registry may say nothing.
const SILENCE: Duration = Duration::from_mins(1);
impl Puller {
    /// A client for registries that may be reached, with an operator's credentials.
    ///
    /// # Errors
    /// No HTTP client can be made, for instance without certificates to trust.
    pub fn new(registries: Registries, credentials: Credentials) -> Result<Self> {
        let client = Client::builder()
            .user_agent("berth")
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .dns_resolver(registries.resolver())
            .redirect(registries.redirects())
            // Addresses are judged where names are resolved: a proxy of the environment would do that elsewhere.
            .no_proxy()
            .build()
            .map_err(|error| Error::Unreachable(format!("There is no HTTP client: {error}.")))?;
        Ok(Self { client, registries, credentials })
    }

    /// Pulls an image for linux/amd64 into a store; gives the digest of its manifest, for [`crate::Image::in_store`].
    /// All its blobs together may have `most` bytes.
    ///
    /// # Errors
    /// The reference makes no sense, the registry does not give the image or not whole, or it is too large.
    pub async fn pull(
        &self,
        reference: &str,
        store: &Path,
        most: u64,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<String> {
        let reference = parse_reference(reference)?;
        let session = Session::begin(self, &reference)?;
        tokio::fs::create_dir_all(store.join("blobs/sha256")).await?;
        let (digest, manifest) = session.manifest(&reference).await?;
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
            session.blob(&sha, descriptor.size(), store, progress).await?;
        }
        blob::keep(store, &digest).await?;
        Ok(format!("sha256:{}", digest.0.0))
    }
}

/// Reads a reference such as `debian:12`; Docker's own registry is meant where none is named.
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
