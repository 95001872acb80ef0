//! `[http]`: how clients reach the service.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// How clients reach the service.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Addresses and networks of proxies that the service trusts to say, in `X-Forwarded-For` and `Forwarded`, where a
    /// request comes from. By default it trusts none, not even this machine.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// The certificate that the service shows; without it, it does not speak TLS.
    pub tls: Option<Tls>,
    /// Origins whose pages may call the API from a browser, as `https://app.example.com`.
    pub cors_origins: Vec<String>,
    /// An address for only `/metrics` and the probes; `listen` then does not have `/metrics`.
    pub metrics_listen: Option<SocketAddr>,
    /// An address for `/api/v1/admin` and for changes to images; `listen` then does not have these.
    pub admin_listen: Option<SocketAddr>,
    /// Connections at the same time at `listen`; by default half of the files that the process may open.
    pub max_connections: Option<usize>,
    /// Connections of one network, an IPv4 address or an IPv6 /64; by default half of all. Trusted proxies have no such
    /// limit.
    pub max_connections_per_client: Option<usize>,
    /// Seconds within which a new connection must send its first request, and within which the head of a later request
    /// must be complete.
    pub head_seconds: u64,
    /// Seconds for which an idle connection is kept.
    pub idle_seconds: u64,
    /// Seconds for which a body may stall before the service refuses it.
    pub body_grace_seconds: u64,
    /// Seconds for which a client may read nothing of an answer before the service cuts it off; nginx calls the same 60
    /// s `send_timeout`.
    pub unread_seconds: u64,
}

/// Upper bound of the times for which a body may stall and an answer may stay unread, in seconds: all that time it
/// holds what others may need.
const MOST_GRACE: u64 = 600;

/// The files of a certificate. SIGHUP makes the service read them again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate and its chain, in PEM.
    pub cert: PathBuf,
    /// Its private key, in PEM.
    pub key: PathBuf,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            tls: None,
            cors_origins: Vec::new(),
            metrics_listen: None,
            admin_listen: None,
            max_connections: None,
            max_connections_per_client: None,
            head_seconds: 20,
            idle_seconds: 120,
            body_grace_seconds: 10,
            unread_seconds: 60,
        }
    }
}

impl Http {
    /// Refuses values that make no sense, also beside the address of the API.
    pub(super) fn check(&self, listen: SocketAddr) -> Result<()> {
        for origin in &self.cors_origins {
            ensure!(
                is_origin(origin),
                "[http] cors_origins has '{origin}'; write an origin as browsers do, like https://app.example.com or \
                 http://localhost:3000, without a slash at its end"
            );
        }
        for (key, value) in [
            ("max_connections", self.max_connections),
            ("max_connections_per_client", self.max_connections_per_client),
            ("head_seconds", usize::try_from(self.head_seconds).ok()),
            ("idle_seconds", usize::try_from(self.idle_seconds).ok()),
        ] {
            ensure!(value != Some(0), "[http] {key} must be at least 1");
        }
        for (key, value) in [("body_grace_seconds", self.body_grace_seconds), ("unread_seconds", self.unread_seconds)] {
            ensure!((1..=MOST_GRACE).contains(&value), "[http] {key} must be 1 to {MOST_GRACE}");
        }
        let own = [("metrics_listen", self.metrics_listen), ("admin_listen", self.admin_listen)];
        for (key, address) in own {
            ensure!(address != Some(listen) || listen.port() == 0, "[http] {key} must be another address than listen");
        }
        let same = self.metrics_listen.filter(|address| address.port() != 0 && self.admin_listen == Some(*address));
        ensure!(same.is_none(), "[http] metrics_listen and admin_listen must be different addresses");
        Ok(())
    }
}

fn is_origin(text: &str) -> bool {
    let Ok(uri) = text.parse::<::http::Uri>() else { return false };
    let plain = uri.scheme_str().zip(uri.authority()).map(|(scheme, authority)| format!("{scheme}://{authority}"));
    ["http", "https"].contains(&uri.scheme_str().unwrap_or_default())
        && plain.as_deref() == Some(text)
        && text.bytes().all(|byte| !byte.is_ascii_uppercase() && byte != b'@')
}

fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| network(text).map_err(serde::de::Error::custom)).collect()
}

/// A network; a single address is a network of its own.
fn network(text: &str) -> std::result::Result<IpNet, String> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    let message = || format!("'{text}' in trusted_proxies must be a network like 10.0.0.0/8, or an address");
    text.parse().or_else(|_| alone()).map_err(|_| message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_stall_for_a_second_to_ten_minutes() {
        for (seconds, fits) in [(0, false), (1, true), (600, true), (601, false)] {
            let sending = Http { body_grace_seconds: seconds, ..Http::default() };
            let taking = Http { unread_seconds: seconds, ..Http::default() };
            for http in [sending, taking] {
                assert_eq!(http.check(([127, 0, 0, 1], 8080).into()).is_ok(), fits, "{seconds}");
            }
        }
    }
}
