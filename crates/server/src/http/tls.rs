//! The service's own certificate: read from PEM files, and read again while it serves.
//!
//! To renew the certificate, the operator replaces the files and sends SIGHUP. Existing connections go on unchanged; a
//! new one gets the latest certificate. If the files are unusable, the service keeps the old one.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Context, Result, anyhow, ensure};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;

/// A certificate and its key.
pub struct Certificate {
    /// `None` where it is in no file.
    files: Option<Tls>,
    current: RwLock<Arc<ServerConfig>>,
}

impl Certificate {
    /// Reads both files.
    pub fn load(files: &Tls) -> Result<Self> {
        Ok(Self { files: Some(files.clone()), current: RwLock::new(read(files)?) })
    }

    /// One that is in no file, with all else that TLS is spoken by.
    pub const fn made(config: Arc<ServerConfig>) -> Self {
        Self { files: None, current: RwLock::new(config) }
    }

    /// Puts another one in its place, for connections from now on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Reads both files again, if there are any; keeps the old certificate if they are unusable.
    pub fn reload(&self) -> Result<()> {
        if let Some(files) = &self.files {
            self.replace(read(files)?);
        }
        Ok(())
    }

    /// Reads both files again at every SIGHUP.
    pub async fn reload_on_hangup(self: Arc<Self>) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else { return };
        while hangups.recv().await.is_some() {
            match self.reload() {
                Ok(()) => tracing::info!("the certificate was read anew"),
                Err(error) => tracing::error!(error = format!("{error:#}"), "the certificate stays as it was"),
            }
        }
    }

    /// The acceptor for the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.current.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn read(files: &Tls) -> Result<Arc<ServerConfig>> {
    let Tls { cert, key } = files;
    let chain = certificates(cert).map_err(|wrong| anyhow!("[http] tls.cert {}: {wrong}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => anyhow!("[http] tls.key {} holds no private key in PEM", key.display()),
        error => anyhow!("[http] tls.key {}: {}", key.display(), reason(error)),
    })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("[http] tls: {} does not hold the key of {}", key.display(), cert.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).map_err(|error| anyhow!(reason(error)))?;
    let chain = found.collect::<Result<Vec<_>, _>>().map_err(|error| anyhow!(reason(error)))?;
    ensure!(!chain.is_empty(), "holds no certificate in PEM");
    Ok(chain)
}

fn reason(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        error => format!("is not PEM: {error}"),
    }
}
