//! Certificates as they are written down.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::LinkError;

/// A certificate of a text in PEM.
pub fn certificate_of(pem: &str) -> Result<CertificateDer<'static>, LinkError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| LinkError::Unreadable("a certificate is not PEM"))
}
