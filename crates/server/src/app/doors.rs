//! The addresses of a service: the API's, those that `[http]` gives to metrics and administration, and the one at which
//! an active replica takes what standbys pass on.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::listener::bound;
use super::{App, host};
use crate::config::Config;
use crate::http::edge::Rooms;
use crate::http::from_standby::FromStandby;
use crate::http::pass_on::{Front, Metrics, PassOn};
use crate::http::passed::Way;
use crate::http::seats::Seats;
use crate::http::server::{Answers, DRAIN, Door, House, serve};
use crate::http::tls::Certificate;

/// How long the requests that a standby passes on may take to end. They lose nothing of what the active replica does for
/// them but their answer, and their addresses wait for whoever is active.
const FAREWELL: Duration = Duration::from_secs(5);

/// Addresses that are bound.
pub struct Doors {
    /// The API's address.
    pub main: SocketAddr,
    /// The address of metrics, if they have one of their own.
    pub metrics: Option<SocketAddr>,
    /// The address of administration, if it has one of its own.
    pub admin: Option<SocketAddr>,
    /// The address of replicas, if there is one.
    pub replicas: Option<SocketAddr>,
    open: Vec<Door>,
    drain: Duration,
}

/// Addresses that are bound, but do not answer yet.
pub struct Bound {
    main: TcpListener,
    metrics: Option<TcpListener>,
    admin: Option<TcpListener>,
    replicas: Option<(TcpListener, Arc<Certificate>)>,
}

/// The rooms of a door, by which doors there are.
struct Plan {
    main: Rooms,
    admin: Rooms,
    metrics: Rooms,
}

impl Bound {
    /// Binds every address of the configuration.
    pub async fn new(config: &Config) -> Result<Self> {
        let bind = async |address: SocketAddr, key: &str| {
            bound(address).await.with_context(|| {
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
        Ok(Self { main, metrics, admin, replicas: None })
    }

    /// The same with an address for replicas, which is shown with this certificate.
    #[must_use]
    pub fn with_replicas(self, listener: TcpListener, certificate: Arc<Certificate>) -> Self {
        Self { replicas: Some((listener, certificate)), ..self }
    }

    fn plan(&self) -> Plan {
        let (metrics, administration) = (self.metrics.is_some(), self.admin.is_some());
        Plan {
            main: Rooms::Without { metrics, administration },
            admin: Rooms::Without { metrics, administration: false },
            metrics: Rooms::Probes,
        }
    }

    /// Makes the doors of a service. Metrics are collected within a network, so their door has no TLS.
    pub fn open(self, config: &Config, certificate: Option<Arc<Certificate>>, app: &App) -> Doors {
        let (plan, mut doors) = (self.plan(), Doors::none(config, DRAIN));
        let routes = |rooms| Answers::Edge(app.edge.showing(rooms));
        let from_standby = FromStandby::new(&app.edge, self.admin.is_some());
        let (house, own) = (House::new(&config.http), &app.operators_seats);
        let mut open = |listener: TcpListener, answers, certificate, seats: &Arc<Seats>, house: &House| {
            doors.add(Door { listener, answers, certificate, seats: seats.clone(), house: house.clone() })
        };
        let main = open(self.main, routes(plan.main), certificate.clone(), &app.seats, &house);
        let admin = self.admin.and_then(|l| open(l, routes(plan.admin), certificate, own, &house));
        let metrics = self.metrics.and_then(|l| open(l, routes(plan.metrics), None, own, &house));
        let replicas = self.replicas.and_then(|(listener, certificate)| {
            let seats = Seats::of_replicas(app.seats.most());
            let answers = Answers::FromStandby(from_standby);
            open(listener, answers, Some(certificate), &seats, &House::of_replicas(&config.http))
        });
        Doors { main: main.unwrap_or(config.listen), admin, metrics, replicas, ..doors }
    }

    /// Makes the doors of a standby, over the same listeners: they stay bound, and who comes once those doors are closed
    /// waits for the next ones.
    ///
    /// # Errors
    /// The process may have no more files.
    pub fn pass_on(&self, config: &Config, certificate: Option<Arc<Certificate>>, to: &PassOn) -> io::Result<Doors> {
        let (plan, mut doors) = (self.plan(), Doors::none(config, FAREWELL));
        let (seats, house) = (Seats::configured(&config.http), House::new(&config.http));
        let own = Seats::of_operators(seats.most());
        let metrics = metrics(config, [seats.clone(), own.clone()]);
        let front = |way, rooms| Front { pass_on: to.clone(), way, rooms, metrics: metrics.clone() };
        let mut open = |listener: &TcpListener, front, certificate, seats: &Arc<Seats>| -> io::Result<_> {
            let (answers, seats, house) = (Answers::PassedOn(front), seats.clone(), house.clone());
            Ok(doors.add(Door { listener: again(listener)?, answers, certificate, seats, house }))
        };
        let main = open(&self.main, front(Way::Main, plan.main), certificate.clone(), &seats)?;
        let admin = match &self.admin {
            Some(listener) => open(listener, front(Way::Admin, plan.admin), certificate, &own)?,
            None => None,
        };
        let metrics = match &self.metrics {
            Some(listener) => open(listener, front(Way::Main, plan.metrics), None, &own)?,
            None => None,
        };
        Ok(Doors { main: main.unwrap_or(config.listen), admin, metrics, ..doors })
    }
}

/// The same listener once more: what comes is whoever's that accepts it.
fn again(listener: &TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(listener.as_fd().try_clone_to_owned()?.into())
}

/// What a standby says of itself.
fn metrics(config: &Config, seats: [Arc<Seats>; 2]) -> Metrics {
    let data_dir = config.data_dir.clone();
    Arc::new(move || host::prometheus(&data_dir, seats.iter().map(|seats| seats.taken()).sum()))
}

impl Doors {
    /// Binds every address of the configuration, and opens them.
    pub async fn open(config: &Config, certificate: Option<Arc<Certificate>>, app: &App) -> Result<Self> {
        Ok(Bound::new(config).await?.open(config, certificate, app))
    }

    const fn none(config: &Config, drain: Duration) -> Self {
        Self { main: config.listen, metrics: None, admin: None, replicas: None, open: Vec::new(), drain }
    }

    /// Adds a door, and says where it is.
    fn add(&mut self, door: Door) -> Option<SocketAddr> {
        let address = door.listener.local_addr().ok();
        self.open.push(door);
        address
    }

    /// Answers at all of them until told to end.
    pub async fn serve(self, ending: CancellationToken) -> io::Result<()> {
        serve(self.open, self.drain, ending).await
    }
}
