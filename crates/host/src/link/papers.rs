//! The papers of a host: its key, its certificate, and whose certificates it believes. The key is made here and never
//! leaves the host.

use std::sync::{Arc, Mutex, PoisonError, RwLock};

use berth_domain::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::certificate_of;
use super::{Authority, HostName, LinkError, tls};

/// The papers of a host, each in PEM, as they lie in its folder.
#[derive(Clone, Serialize, Deserialize)]
pub struct Pem {
    /// Its private key.
    pub key: String,
    /// Its certificate.
    pub certificate: String,
    /// The authority's certificate.
    pub authority: String,
}

/// A new key, and the request for a certificate that a host makes with it, both in PEM.
///
/// # Errors
/// No key can be made.
pub fn request() -> Result<(String, String), LinkError> {
    let key = KeyPair::generate()?;
    let csr = CertificateParams::new(Vec::new())?.serialize_request(&key)?;
    Ok((key.serialize_pem(), csr.pem()?))
}

impl Pem {
    /// Papers of this name that the authority makes by itself, with a key of their own, and when their certificate ends: for who
    /// has the authority.
    ///
    /// # Errors
    /// No key or certificate can be made.
    pub fn made(authority: &Authority, name: HostName, now: Timestamp) -> Result<(Self, Timestamp), LinkError> {
        let (key, csr) = request()?;
        let (certificate, until) = authority.host(name, &csr, now)?;
        Ok((Self { key, certificate, authority: authority.pem().into() }, until))
    }

    /// Whether the authority's certificate is the one with this SHA-256.
    pub fn is_of(&self, fingerprint: &[u8; 32]) -> bool {
        certificate_of(&self.authority).is_ok_and(|found| <[u8; 32]>::from(Sha256::digest(&found)) == *fingerprint)
    }

    /// When its certificate ends.
    ///
    /// # Errors
    /// It is none.
    pub fn until(&self) -> Result<Timestamp, LinkError> {
        let certificate = certificate_of(&self.certificate)?;
        let (_, read) = X509Certificate::from_der(&certificate).map_err(|_| LinkError::Unreadable("it is none"))?;
        Ok(Timestamp(0).plus_seconds(read.validity().not_after.timestamp()))
    }

    /// What is served with them, by this protocol.
    pub(super) fn config(&self, protocol: &[u8]) -> Result<Arc<ServerConfig>, LinkError> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|_| LinkError::Unreadable("a key is not PEM"))?;
        tls::of_host(certificate_of(&self.certificate)?, key, certificate_of(&self.authority)?, protocol)
    }
}

/// What a host keeps its papers by.
type Keep = dyn Fn(&Pem) -> std::io::Result<()> + Send + Sync;

/// The papers that a host uses now.
pub struct Papers {
    current: RwLock<(Pem, Arc<ServerConfig>)>,
    /// The key of a request that was not answered yet.
    asked: Mutex<Option<String>>,
    keep: Box<Keep>,
}

impl Papers {
    /// These papers; later ones are kept by `keep` before they are used.
    ///
    /// # Errors
    /// They do not fit together.
    pub fn new(
        pem: Pem,
        keep: impl Fn(&Pem) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Result<Self, LinkError> {
        let config = pem.config(tls::HTTP2)?;
        Ok(Self { current: RwLock::new((pem, config)), asked: Mutex::default(), keep: Box::new(keep) })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Makes another key, and asks for a certificate for it. The key in use stays until that comes.
    pub(super) fn ask(&self) -> Result<String, LinkError> {
        let (key, csr) = request()?;
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
        Ok(csr)
    }

    /// Takes the certificate that was asked for; connections from now on have it.
    pub(super) fn take(&self, certificate: String) -> Result<(), LinkError> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let key = asked.clone().ok_or(LinkError::Unreadable("no certificate was asked for"))?;
        let authority = self.current.read().unwrap_or_else(PoisonError::into_inner).0.authority.clone();
        let pem = Pem { key, certificate, authority };
        let config = pem.config(tls::HTTP2)?;
        (self.keep)(&pem)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (pem, config);
        *asked = None;
        Ok(())
    }
}
