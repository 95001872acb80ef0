//! The address at which the other replicas reach this one: while it stands by, its host answers there; while it is
//! active, it takes what they pass on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_host::clock::Clock;
use berth_host::link::{Authority, HostName, replica};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::listener::bound;
use crate::config::Config;
use crate::http::tls::Certificate;

/// How often an active replica makes its certificate anew: it holds for thirty times as long.
const RENEWED: Duration = Duration::from_hours(24);

/// Binds the address.
pub(super) async fn listener(config: &Config) -> Result<TcpListener> {
    let address = config.replica.listens_at();
    bound(address).await.with_context(|| {
        format!(
            "cannot listen on {address} for other replicas; is another program there? Set BERTH_REPLICA_ADDRESS, or \
             BERTH_REPLICA_LISTEN, to another address"
        )
    })
}

/// The certificate of an active replica, which is renewed until the second value is dropped.
pub(super) fn certificate(
    authority: Arc<Authority>,
    name: HostName,
) -> Result<(Arc<Certificate>, AbortOnDropHandle<()>)> {
    let made = move || replica::serving(&authority, name, Clock::default().now());
    let certificate = Arc::new(Certificate::made(made()?.0));
    let renewed = certificate.clone();
    let renewing = tokio::spawn(async move {
        loop {
            tokio::time::sleep(RENEWED).await;
            match made() {
                Ok((config, _)) => renewed.replace(config),
                Err(error) => tracing::error!(%error, "the certificate for other replicas is not renewed"),
            }
        }
    });
    Ok((certificate, AbortOnDropHandle::new(renewing)))
}
