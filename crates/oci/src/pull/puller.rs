//! A pull from one repository: its requests, with the authorization that the registry asks for.

use futures::StreamExt;
use oci_spec::image::{ImageIndex, ImageManifest};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use tokio::sync::Mutex;

use super::auth::{self, Credentials};
use super::reach::{self, Registries};
use crate::blobs::Sha;
use crate::image::{is_index, parse, pick};
use crate::{Error, MAX_DOCUMENT, Reference, Result};

/// The most manifests to fetch on the way to one: indexes may nest.
const MAX_STEPS: usize = 4;
/// Types of answers that a registry may give.
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
                        application/vnd.docker.distribution.manifest.list.v2+json, \
                        application/vnd.docker.distribution.manifest.v2+json";

/// How to get an image to Berth without its registry.
const SEND: &str = "send it as an archive, by 'docker save IMAGE -o image.tar' and '--image-file image.tar'";

/// Progress of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A blob starts, resumes, or is already there.
    Blob {
        /// Its digest.
        digest: String,
        /// Its bytes.
        size: u64,
    },
}

/// Pulls images.
pub struct Puller {
    pub(super) client: Client,
    pub(super) registries: Registries,
    pub(super) credentials: Credentials,
}

/// A pull from one repository.
pub(super) struct Pull<'a> {
    pub(super) puller: &'a Puller,
    base: Url,
    repository: String,
    /// The value of `Authorization`, once the registry has asked for it.
    authorization: Mutex<Option<String>>,
}

impl<'a> Pull<'a> {
    /// Begins a pull.
    pub(super) fn begin(puller: &'a Puller, reference: &Reference) -> Result<Self> {
        let base = puller.registries.base(reference.resolve_registry())?;
        let repository = reference.repository().to_owned();
        Ok(Self { puller, base, repository, authorization: Mutex::new(None) })
    }

    pub(super) fn url(&self, kind: &str, name: &str) -> Result<Url> {
        let path = format!("/v2/{}/{kind}/{name}", self.repository);
        self.base.join(&path).map_err(|_| Error::invalid("The image's name makes no address; check it."))
    }

    /// Sends a request, with the authorization that the registry asks for.
    pub(super) async fn send(&self, request: impl Fn() -> RequestBuilder) -> Result<Response> {
        let attempt = async || {
            let known = self.authorization.lock().await.clone();
            let request = match &known {
                Some(value) => request().header(AUTHORIZATION, value),
                None => request(),
            };
            Ok::<_, Error>((request.send().await.map_err(|error| self.unreachable(&error))?, known.is_some()))
        };
        let (response, _) = attempt().await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        let value = self.authorize(&response).await?;
        *self.authorization.lock().await = Some(value);
        Ok(attempt().await?.0)
    }

    async fn authorize(&self, response: &Response) -> Result<String> {
        let challenge = auth::Challenge::of(response.headers()).ok_or_else(|| self.refused("it does not say how"))?;
        let host = self.base.host_str().unwrap_or_default();
        let port = self.base.port().map(|port| format!("{host}:{port}"));
        let login = self.puller.credentials.find(port.as_deref().unwrap_or(host));
        let (realm, service) = match challenge {
            auth::Challenge::Basic => {
                return login.map(auth::Login::basic).ok_or_else(|| self.refused("it wants a password"));
            }
            auth::Challenge::Bearer { realm, service } => (realm, service),
        };
        let mut realm = self.puller.registries.realm(&self.base, &realm)?;
        let scope = format!("repository:{}:pull", self.repository);
        realm.query_pairs_mut().append_pair("scope", &scope);
        if let Some(service) = service {
            realm.query_pairs_mut().append_pair("service", &service);
        }
        let mut request = self.puller.client.get(realm);
        if let Some(login) = login {
            request = request.header(AUTHORIZATION, login.basic());
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return Err(self.refused("it gives no token"));
        }
        let token =
            auth::token(&self.document(response).await?).ok_or_else(|| self.refused("its token makes no sense"))?;
        Ok(format!("Bearer {token}"))
    }

    /// The manifest for the platform, and its digest and bytes.
    pub(super) async fn manifest(&self, reference: &Reference) -> Result<((Sha, Vec<u8>), ImageManifest)> {
        if let Some(digest) = reference.digest() {
            Sha::parse(digest)?;
        }
        let mut name = reference.digest().or(reference.tag()).unwrap_or("latest").to_owned();
        for _ in 0..MAX_STEPS {
            let url = self.url("manifests", &name)?;
            let response = self.send(|| self.puller.client.get(url.clone()).header(ACCEPT, ACCEPTED)).await?;
            let bytes = self.document(self.granted(response, &name)?).await?;
            if name.starts_with("sha256:") {
                Sha::parse(&name)?.verify(&bytes)?;
            }
            if let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&bytes) {
                return Ok(((Sha::of(&bytes), bytes), manifest));
            }
            let index = parse::<ImageIndex>(&bytes, "The manifest")?;
            let entry = pick(&index)?;
            Sha::parse(entry.digest().as_ref())?;
            name = entry.digest().to_string();
            if !is_index(entry) && entry.size() > MAX_DOCUMENT {
                break;
            }
        }
        Err(Error::TooLarge("The image's manifests are too large or lie too deep; name one by its digest.".into()))
    }

    /// A small body.
    async fn document(&self, response: Response) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut body = response.bytes_stream();
        while let Some(chunk) = body.next().await {
            bytes.extend_from_slice(&chunk.map_err(|error| self.unreachable(&error))?);
            if bytes.len() as u64 > MAX_DOCUMENT {
                return Err(Error::TooLarge(format!("The registry answered with more than {MAX_DOCUMENT} bytes.")));
            }
        }
        Ok(bytes)
    }

    pub(super) fn granted(&self, response: Response, what: &str) -> Result<Response> {
        let host = self.base.host_str().unwrap_or_default();
        let name = &self.repository;
        match response.status() {
            status if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND => {
                Err(Error::NotFound(format!("{host} has no image '{name}' with '{what}'; check its name and tag.")))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.refused("it may be private, or not exist")),
            StatusCode::TOO_MANY_REQUESTS => {
                Err(Error::Refused(format!("{host} limits how often images are pulled; try again later, or {SEND}.")))
            }
            status if status.is_server_error() => {
                Err(Error::Unreachable(format!("{host} fails with {status}; try again later.")))
            }
            status => Err(Error::Refused(format!("{host} answers with {status} when asked for '{name}'."))),
        }
    }

    fn refused(&self, why: &str) -> Error {
        let host = self.base.host_str().unwrap_or_default();
        let name = &self.repository;
        Error::Refused(format!("{host} does not give '{name}': {why}. Make the image public, or {SEND}."))
    }

    pub(super) fn unreachable(&self, error: &reqwest::Error) -> Error {
        let host = self.base.host_str().unwrap_or_default();
        match reach::refusal(error) {
            Some(refusal) => Error::Refused(refusal),
            None if error.is_timeout() => Error::Unreachable(format!("{host} does not answer in time.")),
            None => Error::Unreachable(format!("{host} cannot be reached, or its answer broke off.")),
        }
    }
}
