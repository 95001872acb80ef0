//! The authority of a platform: who signs the certificates of its hosts and of its services.

use berth_domain::Timestamp;
use berth_domain::host::join::CERTIFICATE_SECONDS;
use berth_domain::ids::HostId;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::LinkError;
use super::papers::certificate_of;

/// How long the authority's own certificate holds, in seconds: twenty years.
const AUTHORITY_SECONDS: i64 = 20 * 365 * DAY;
/// How long a service's certificate holds, which is made for each connection, in seconds.
const SERVICE_SECONDS: i64 = DAY;
/// How far the clocks of a service and of its hosts may be apart, in seconds.
const APART: i64 = 3600;
const DAY: i64 = 24 * 3600;
/// The name in the certificates of services.
const SERVICE: &str = "service.berth";

/// What a host is called in its certificate: by its id, and by how often it joined, so that whoever has the certificate
/// of an earlier time is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostName {
    /// Its id.
    pub id: HostId,
    /// How often it joined.
    pub enrolment: i64,
}

impl HostName {
    fn text(self) -> String {
        format!("{}.{}.host.berth", self.enrolment, self.id)
    }

    pub(super) fn server(self) -> Result<ServerName<'static>, LinkError> {
        ServerName::try_from(self.text()).map_err(|_| LinkError::Unreadable("a host has no such name"))
    }
}

/// An authority: its key and its certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

/// An authority as it is kept: both in PEM. Whoever has it can ask every host.
#[derive(Serialize, Deserialize)]
struct Kept {
    key: String,
    certificate: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    /// No key can be made.
    pub fn make(now: Timestamp) -> Result<Self, LinkError> {
        let key = KeyPair::generate()?;
        let mut params = params("Berth's authority for hosts", now, AUTHORITY_SECONDS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?;
        Self::of(key, certificate.pem())
    }

    /// One as it was kept.
    ///
    /// # Errors
    /// It is none.
    pub fn read(kept: &[u8]) -> Result<Self, LinkError> {
        let Kept { key, certificate } =
            serde_json::from_slice(kept).map_err(|_| LinkError::Unreadable("what was kept is no authority"))?;
        Self::of(KeyPair::from_pem(&key)?, certificate)
    }

    fn of(key: KeyPair, pem: String) -> Result<Self, LinkError> {
        let certificate = certificate_of(&pem)?;
        Ok(Self { issuer: Issuer::from_ca_cert_der(&certificate, key)?, certificate, pem })
    }

    /// What is to be kept of it, as a secret.
    pub fn kept(&self) -> Vec<u8> {
        let kept = Kept { key: self.issuer.key().serialize_pem(), certificate: self.pem.clone() };
        serde_json::to_vec(&kept).unwrap_or_default()
    }

    /// Its certificate, in PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// SHA-256 of its certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        Sha256::digest(&self.certificate).into()
    }

    pub(super) const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate for a host, in PEM, and when it ends. Of what the host asks for only its key counts.
    ///
    /// # Errors
    /// The request is none, or is not signed with the key that it names.
    pub fn host(&self, name: HostName, csr: &str, now: Timestamp) -> Result<(String, Timestamp), LinkError> {
        let request = CertificateSigningRequestParams::from_pem(csr)?;
        let purpose = ExtendedKeyUsagePurpose::ServerAuth;
        let made = self.sign(&name.text(), &request.public_key, purpose, (now, CERTIFICATE_SECONDS))?;
        Ok((made.pem(), now.plus_seconds(CERTIFICATE_SECONDS)))
    }

    /// A certificate and a key for one connection of a service.
    pub(super) fn service(
        &self,
        now: Timestamp,
    ) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), LinkError> {
        let key = KeyPair::generate()?;
        let made = self.sign(SERVICE, &key, ExtendedKeyUsagePurpose::ClientAuth, (now, SERVICE_SECONDS))?;
        Ok((made.der().clone(), PrivateKeyDer::Pkcs8(key.serialize_der().into())))
    }

    fn sign(
        &self,
        name: &str,
        key: &impl PublicKeyData,
        purpose: ExtendedKeyUsagePurpose,
        (now, seconds): (Timestamp, i64),
    ) -> Result<rcgen::Certificate, LinkError> {
        let mut params = params(name, now, seconds)?;
        params.subject_alt_names = vec![rcgen::SanType::DnsName(name.try_into()?)];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        Ok(params.signed_by(key, &self.issuer)?)
    }
}

fn params(name: &str, now: Timestamp, seconds: i64) -> Result<CertificateParams, LinkError> {
    let time = |at: i64| {
        OffsetDateTime::from_unix_timestamp(at).map_err(|_| LinkError::Unreadable("the clock is out of all bounds"))
    };
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = time(now.seconds() - APART)?;
    params.not_after = time(now.seconds() + seconds)?;
    Ok(params)
}
