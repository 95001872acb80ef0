//! Which registries a pull may reach, and at which addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use berth_domain::sandbox::network_policy::Special;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Url, dns};

use crate::{Error, Result};

/// The most redirects to follow: registries redirect to the stores of their blobs.
const MAX_REDIRECTS: usize = 5;

/// Whether a pull may reach an address.
pub type Judge = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The registries that a pull may reach.
#[derive(Clone)]
pub struct Registries {
    judge: Judge,
    /// Hosts and ports that an operator trusts, whatever their addresses.
    trusted: Arc<[(String, u16)]>,
    /// Those of them that speak without TLS, as configured.
    plain: Arc<[String]>,
}

impl Default for Registries {
    /// Every registry of the outside world.
    fn default() -> Self {
        Self::new(Arc::new(|address| Special::of(address.to_canonical()).is_none()))
    }
}

impl Registries {
    /// The registries at addresses that a judge permits.
    pub fn new(judge: Judge) -> Self {
        Self { judge, trusted: Arc::new([]), plain: Arc::new([]) }
    }

    /// Trusts registries, `host[:port]`, at any address; those in `plain` speak without TLS.
    #[must_use]
    pub fn trusting(mut self, trusted: &[String], plain: &[String]) -> Self {
        let place = |(registry, scheme): (&String, &str)| place(&Url::parse(&format!("{scheme}://{registry}/")).ok()?);
        let trusted = trusted.iter().map(|registry| (registry, "https"));
        self.trusted = trusted.chain(plain.iter().map(|registry| (registry, "http"))).filter_map(place).collect();
        self.plain = plain.into();
        self
    }

    /// The base URL of a registry.
    pub(super) fn base(&self, registry: &str) -> Result<Url> {
        let registry = if registry == "index.docker.io" { "registry-1.docker.io" } else { registry };
        let scheme = if self.plain.iter().any(|plain| plain == registry) { "http" } else { "https" };
        let url = Url::parse(&format!("{scheme}://{registry}/"));
        let url = url.map_err(|_| Error::invalid(format!("'{registry}' is no registry; write its host.")))?;
        self.admit(&url)?;
        Ok(url)
    }

    /// The URL at which a registry offers tokens.
    pub(super) fn realm(&self, registry: &Url, text: &str) -> Result<Url> {
        let url = Url::parse(text).map_err(|_| Error::Refused("The registry names no address for tokens.".into()))?;
        if url.scheme() != "https" && url.scheme() != registry.scheme() {
            return Err(Error::Refused("The registry wants its tokens fetched without TLS.".into()));
        }
        self.admit(&url)?;
        Ok(url)
    }

    /// Whether a pull may ask this URL. A name is judged by the addresses to which it resolves.
    fn admit(&self, url: &Url) -> Result<()> {
        let refused = || Error::Refused(format!("'{url}' is no address of a registry."));
        let (host, port) = place(url).filter(|_| matches!(url.scheme(), "https" | "http")).ok_or_else(refused)?;
        if self.trusted.contains(&(host.clone(), port)) {
            return Ok(());
        }
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        // The operator trusts one port, not everything on its host.
        if self.vouched(&host) || address.is_some_and(|address| !(self.judge)(address)) {
            return Err(Error::Refused(internal(&host)));
        }
        if url.scheme() == "http" {
            return Err(Error::Refused(format!("{host} is not asked without TLS.")));
        }
        Ok(())
    }

    fn vouched(&self, host: &str) -> bool {
        self.trusted.iter().any(|(trusted, _)| trusted == host)
    }

    pub(super) fn redirects(&self) -> Policy {
        let registries = self.clone();
        Policy::custom(move |attempt: Attempt<'_>| {
            if attempt.previous().len() > MAX_REDIRECTS {
                return attempt.error(Refusal("The registry redirects too often.".into()));
            }
            match registries.admit(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(refused) => attempt.error(Refusal(refused.to_string())),
            }
        })
    }

    pub(super) fn resolver(&self) -> impl dns::Resolve + use<> {
        Resolver(self.clone())
    }
}

fn place(url: &Url) -> Option<(String, u16)> {
    Some((url.host_str().filter(|host| !host.is_empty())?.to_owned(), url.port_or_known_default()?))
}

fn internal(host: &str) -> String {
    format!("{host} is no registry of the outside world; ask the operator to allow it.")
}

/// Why Berth does not ask an address, inside an error of the client.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// The refusal inside an error of the client, if it is one of ours.
pub(super) fn refusal(error: &reqwest::Error) -> Option<String> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(refusal) = inner.downcast_ref::<Refusal>() {
            return Some(refusal.0.clone());
        }
        source = inner.source();
    }
    None
}

/// Resolves names, and removes forbidden addresses.
struct Resolver(Registries);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let registries = self.0.clone();
        Box::pin(async move {
            let host = name.as_str().to_owned();
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?.collect::<Vec<SocketAddr>>();
            let free = registries.vouched(&host);
            let reachable = found.iter().copied().filter(|address| free || (registries.judge)(address.ip()));
            let reachable = reachable.collect::<Vec<_>>();
            if reachable.is_empty() && !found.is_empty() {
                return Err(Refusal(internal(&host)).into());
            }
            Ok(Box::new(reachable.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outside_world_and_what_an_operator_vouches_for_is_asked() {
        let registries = Registries::default().trusting(&["10.1.1.1:5000".into()], &["127.0.0.1:5000".into()]);
        for fine in ["ghcr.io", "8.8.8.8", "10.1.1.1:5000", "127.0.0.1:5000", "index.docker.io", "[2606:4700::1]"] {
            assert!(registries.base(fine).is_ok(), "{fine}");
        }
        assert_eq!(registries.base("127.0.0.1:5000").unwrap().scheme(), "http");
        assert_eq!(registries.base("10.1.1.1:5000").unwrap().scheme(), "https");
        assert_eq!(registries.base("index.docker.io").unwrap().host_str(), Some("registry-1.docker.io"));
        for bad in [
            "169.254.169.254",
            "10.1.1.2:5000",
            "[::1]:80",
            "[::ffff:127.0.0.1]",
            "192.168.0.1",
            "0x7f.1",
            "2130706433",
        ] {
            assert!(matches!(registries.base(bad), Err(Error::Refused(_))), "{bad}");
        }
    }

    #[test]
    fn tokens_are_not_fetched_just_anywhere() {
        let registries = Registries::default();
        let base = registries.base("ghcr.io").unwrap();
        assert!(registries.realm(&base, "https://auth.example/token").is_ok());
        for bad in ["http://auth.example/token", "https://127.0.0.1/token", "file:///etc/passwd", "token"] {
            assert!(registries.realm(&base, bad).is_err(), "{bad}");
        }
    }
}
