//! TLS of both sides: version 1.3, certificates of one authority, and no session that is taken up again, so that who is on
//! the other side is looked at each time.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};

use super::LinkError;

/// What a service and a host speak.
pub const HTTP2: &[u8] = b"h2";
/// What replicas of a service speak.
pub const HTTP1: &[u8] = b"http/1.1";

fn roots(authority: CertificateDer<'static>) -> Result<Arc<RootCertStore>, LinkError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority)?;
    Ok(roots.into())
}

/// What a host serves this protocol with: who has no certificate of the authority for clients is not let in.
pub fn of_host(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    authority: CertificateDer<'static>,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, LinkError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let services = WebPkiClientVerifier::builder_with_provider(roots(authority)?, provider.clone()).build();
    let services = services.map_err(|error| LinkError::Tls(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(services)
        .with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config.into())
}

/// What a service asks by this protocol with: a certificate for clients, and whose certificates it believes.
pub fn of_service(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    authority: CertificateDer<'static>,
    protocol: &[u8],
) -> Result<ClientConfig, LinkError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots(authority)?)
        .with_client_auth_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
