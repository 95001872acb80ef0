//! `[http]`: how the service is reached.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// How the service is reached.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Addresses and networks of proxies whose `X-Forwarded-For` and `Forwarded` tell where a request comes from.
    /// Nobody's do by default, not even this machine's own.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// The certificate that the service shows; without it, it does not speak TLS.
    pub tls: Option<Tls>,
    /// Origins whose pages may call the API from a browser, as `https://app.example.com`.
    pub cors_origins: Vec<String>,
    /// An address for `/metrics` and the probes alone; `listen` does not have `/metrics` then.
    pub metrics_listen: Option<SocketAddr>,
    /// An address that has `/api/v1/admin` and what changes images; `listen` does not have these then.
    pub admin_listen: Option<SocketAddr>,
    /// Connections at the same time at `listen`; without it, half of the files that the process may open.
    pub max_connections: Option<usize>,
    /// Those of one network, an address of IPv4 or a /64 of IPv6; without it, half of all. Proxies that are trusted
    /// have no share of their own.
    pub max_connections_per_client: Option<usize>,
    /// Seconds within which a connection asks for something for the first time, and that the head of a later request may
    /// take.
    pub head_seconds: u64,
    /// Seconds for which a connection is kept that nobody uses.
    pub idle_seconds: u64,
    /// Seconds for which a body may stall before it is refused.
    pub body_grace_seconds: u64,
    /// Seconds for which a client may take nothing of what it is sent before it is cut; nginx calls the same 60 s
    /// `send_timeout`.
    pub unread_seconds: u64,
}

/// The longest that a body may stall and that an answer may stay unread, in seconds: until then it holds what others
/// may need.
const MOST_GRACE: u64 = 600;

/// Where a certificate lies. It is read anew on SIGHUP.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate and those that it builds on, in PEM.
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
    /// Refuses what cannot be meant, beside the address of the API.
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

/// A network, or an address, which is the network of it alone.
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
