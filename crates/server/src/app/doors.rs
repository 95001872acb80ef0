//! The addresses of a service: the API's, and those that `[http]` gives to metrics and administration.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::App;
use super::lock::{PAUSE, TRIES};
use crate::config::Config;
use crate::http::edge::Rooms;
use crate::http::seats::Seats;
use crate::http::server::{Door, House, serve};
use crate::http::tls::Certificate;

/// Addresses that are bound.
pub struct Doors {
    /// The API's address.
    pub main: SocketAddr,
    /// The address of metrics, if they have one of their own.
    pub metrics: Option<SocketAddr>,
    /// The address of administration, if it has one of its own.
    pub admin: Option<SocketAddr>,
    open: Vec<Door>,
    house: House,
}

/// Addresses that are bound, but do not answer yet.
pub struct Bound {
    main: TcpListener,
    metrics: Option<TcpListener>,
    admin: Option<TcpListener>,
}

impl Bound {
    /// Binds every address of the configuration.
    pub async fn new(config: &Config) -> Result<Self> {
        let bind = async |address: SocketAddr, key: &str| {
            listener(address).await.with_context(|| {
                format!("cannot listen on {address}; is another service there? Set {key} to another address")
            })
        };
        let main = bind(config.listen, "BERTH_LISTEN").await?;
        let admin = match config.http.admin_listen {
            Some(address) => Some(bind(address, "[http] admin_listen").await?),
            None => None,
        };
        let metrics = match config.http.metrics_listen {
            Some(address) => Some(bind(address, "[http] metrics_listen").await?),
            None => None,
        };
        Ok(Self { main, metrics, admin })
    }

    /// Makes the doors of a service. Metrics are collected within a network, so their door has no TLS.
    pub fn open(self, config: &Config, certificate: Option<Arc<Certificate>>, app: &App) -> Doors {
        let (metrics, administration) = (self.metrics.is_some(), self.admin.is_some());
        let mut open = Vec::new();
        let mut door = |listener: TcpListener, rooms: Rooms, certificate, seats: &Arc<Seats>| {
            let bound = listener.local_addr();
            open.push(Door { listener, edge: app.edge.showing(rooms), certificate, seats: seats.clone() });
            bound.ok()
        };
        let main = door(self.main, Rooms::Without { metrics, administration }, certificate.clone(), &app.seats);
        let all = Rooms::Without { metrics, administration: false };
        let own = &app.operators_seats;
        let admin = self.admin.and_then(|listener| door(listener, all, certificate, own));
        let metrics = self.metrics.and_then(|listener| door(listener, Rooms::Probes, None, own));
        let main = main.unwrap_or(config.listen);
        Doors { main, metrics, admin, open, house: House::new(&config.http) }
    }
}

/// Binds an address. If this service starts right after its predecessor was killed, the address may still be taken for
/// a while ([`TRIES`]).
pub(super) async fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 1..TRIES {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(PAUSE).await,
            bound => return bound,
        }
    }
    TcpListener::bind(address).await
}

impl Doors {
    /// Binds every address of the configuration, and opens them.
    pub async fn open(config: &Config, certificate: Option<Arc<Certificate>>, app: &App) -> Result<Self> {
        Ok(Bound::new(config).await?.open(config, certificate, app))
    }

    /// Answers at all of them until told to end.
    pub async fn serve(self, ending: CancellationToken) -> io::Result<()> {
        serve(self.open, self.house, ending).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_a_predecessor_leaves_is_taken() {
        // An address of this test, whose port nobody else takes meanwhile.
        let predecessor = TcpListener::bind("127.77.0.1:0").await.unwrap();
        let address = predecessor.local_addr().unwrap();
        // The first try fails; then the predecessor leaves the address.
        let (bound, ()) = tokio::join!(listener(address), async { drop(predecessor) });
        assert_eq!(bound.unwrap().local_addr().unwrap(), address);
    }
}
