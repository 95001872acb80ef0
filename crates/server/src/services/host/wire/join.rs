//! Hosts that join, as the OpenAPI document describes them.

use std::collections::BTreeMap;

use berth_domain::Secret;
use serde::Serialize;
use utoipa::ToSchema;

use super::host::HostView;
use crate::services::host::store::host::HostRow;

/// A host that is to join.
#[derive(ToSchema)]
#[schema(as = CreateHostRequest)]
#[expect(dead_code, reason = "describes `NewHost`")]
pub struct NewHostBody {
    /// What it is called, whatever its machine calls itself.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// The region that it belongs to.
    region_id: String,
    /// Its labels.
    labels: Option<BTreeMap<String, String>>,
}

/// A host with the token that it joins with.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = NewHostResponse)]
pub struct NewHostView {
    /// The host.
    #[serde(flatten)]
    pub host: HostView,
    /// What it joins with, once, within 24 hours. It is shown only here.
    token: String,
    /// What to type on the machine that joins.
    #[schema(example = "berth host join https://berth.example.com bht_…")]
    command: String,
}

impl NewHostView {
    /// A host, its token, and the address at which the caller knows the service.
    pub fn new(host: HostView, token: Secret, base: &str, has_joined: bool) -> Self {
        let again = if has_joined { " --again" } else { "" };
        let command = format!("berth host join {base} {}{again}", token.0);
        Self { host, token: token.0, command }
    }

    /// Where the host is.
    pub fn location(&self) -> String {
        self.host.location()
    }
}

/// What a host says that joins.
#[derive(ToSchema)]
#[schema(as = JoinHostRequest)]
#[expect(dead_code, reason = "describes `Join`")]
pub struct JoinBody {
    /// Its token.
    token: String,
    /// Its request for a certificate, in PEM. Of that only the key counts.
    #[schema(min_length = 1, max_length = 4096)]
    csr: String,
    /// Where it can be asked, as `host:port`.
    #[schema(example = "192.0.2.7:8470")]
    address: String,
    /// What its machine calls itself.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// The version of Berth there.
    #[schema(min_length = 1, max_length = 100)]
    version: String,
}

/// What a host has joined with.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = JoinHostResponse)]
pub struct JoinedView {
    /// Its id.
    #[schema(value_type = uuid::Uuid)]
    host_id: String,
    /// What it is called.
    name: String,
    /// Its certificate, in PEM.
    certificate: String,
    /// The certificate of the platform's authority, in PEM. The token holds its SHA-256.
    authority: String,
}

impl JoinedView {
    /// A host that has joined with this certificate, under this authority.
    pub fn new(host: &HostRow, certificate: String, authority: &str) -> Self {
        Self {
            host_id: host.id.to_string(),
            name: host.name().to_owned(),
            certificate,
            authority: authority.to_owned(),
        }
    }
}
