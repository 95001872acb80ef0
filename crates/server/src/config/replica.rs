//! `[replica]`: one of several services that share a database.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Result, ensure};
use serde::Deserialize;

/// How the other replicas reach this one. What runs on this machine is asked there, too.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Replica {
    /// Where the others reach it, as `host:port`; empty for a service that shares its database with nobody. Also from
    /// `BERTH_REPLICA_ADDRESS`.
    pub address: String,
    /// Where it listens for them; by default at `address`, or where that is a name on every address of this machine. Also
    /// from `BERTH_REPLICA_LISTEN`.
    pub listen: Option<SocketAddr>,
}

impl Replica {
    /// Whether the service is one of several.
    pub const fn is_one(&self) -> bool {
        !self.address.is_empty()
    }

    /// Where it listens for the others.
    pub fn listens_at(&self) -> SocketAddr {
        let named = || SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port(&self.address).unwrap_or_default());
        self.listen.or_else(|| self.address.parse().ok()).unwrap_or_else(named)
    }

    pub(super) fn check(&self, database_url: &str) -> Result<()> {
        ensure!(
            self.is_one() || self.listen.is_none(),
            "replica.listen (BERTH_REPLICA_LISTEN) is set, and replica.address (BERTH_REPLICA_ADDRESS) is not; set it to \
             where the other replicas reach this one, as host:port"
        );
        if !self.is_one() {
            return Ok(());
        }
        ensure!(
            port(&self.address).is_some(),
            "replica.address (BERTH_REPLICA_ADDRESS) is '{}'; it must be where the other replicas reach this one, as \
             host:port, like 10.0.0.1:8471",
            self.address
        );
        ensure!(
            database_url.starts_with("postgres"),
            "replicas share a PostgreSQL; set database_url (BERTH_DATABASE_URL) to postgres://…, or unset replica.address \
             (BERTH_REPLICA_ADDRESS)"
        );
        Ok(())
    }
}

/// The port of `host:port`.
fn port(address: &str) -> Option<u16> {
    let parsed = address.parse::<::http::uri::Authority>().ok()?;
    let is_plain = !parsed.host().is_empty() && !address.contains('@');
    parsed.port_u16().filter(|port| is_plain && *port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(address: &str, database_url: &str) -> Result<SocketAddr, String> {
        let replica = Replica { address: address.into(), listen: None };
        replica.check(database_url).map(|()| replica.listens_at()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_is_where_others_reach_it_and_by_default_where_it_listens() {
        const SERVER: &str = "postgres://berth@db/berth";
        assert_eq!(told("10.0.0.1:8471", SERVER).unwrap().to_string(), "10.0.0.1:8471");
        assert_eq!(told("[fd00::1]:8471", SERVER).unwrap().to_string(), "[fd00::1]:8471");
        assert_eq!(told("alpha.internal:8471", SERVER).unwrap().to_string(), "[::]:8471");
        for wrong in ["alpha", "alpha:0", "alpha:x", ":8471", "me@alpha:8471", "http://alpha:8471", "alpha:99999"] {
            let refusal = told(wrong, SERVER).unwrap_err();
            assert!(refusal.contains("BERTH_REPLICA_ADDRESS") && refusal.contains(wrong), "{refusal}");
        }
        let refusal = told("alpha:8471", "sqlite:berth.db").unwrap_err();
        assert!(refusal.contains("BERTH_DATABASE_URL"), "{refusal}");
        assert!(told("", "sqlite:berth.db").is_ok());
        let listens = Replica { address: String::new(), listen: Some(([127, 0, 0, 1], 1).into()) };
        assert!(listens.check(SERVER).unwrap_err().to_string().contains("BERTH_REPLICA_ADDRESS"));
    }
}
