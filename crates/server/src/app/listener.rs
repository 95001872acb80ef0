//! Addresses that somebody else may hold for a moment.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::lock::{PAUSE, TRIES};

/// Binds an address. If this service starts right after its predecessor was killed, the address may still be taken for
/// a while ([`TRIES`]).
pub(super) async fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 1..TRIES {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => tokio::time::sleep(PAUSE).await,
            bound => return bound,
        }
    }
    TcpListener::bind(address).await
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
        let (taken, ()) = tokio::join!(bound(address), async { drop(predecessor) });
        assert_eq!(taken.unwrap().local_addr().unwrap(), address);
    }
}
