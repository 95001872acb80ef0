//! Replicas of a service, each in its own process, over real machines.

use std::net::TcpListener;

use crate::{Postgres, Service};

/// Two services that share a database, with this image: the first is active, the second stands by.
pub fn replicas(binary: &str, image: &str, postgres: &Postgres) -> [Service; 2] {
    let url = format!("postgres://berth@127.0.0.1:{}/berth", postgres.port());
    one_after_the_other([(); 2].map(|()| {
        // An address that no connection begins at.
        let listener = TcpListener::bind("127.79.0.2:0").expect("a port");
        let mut service = Service::new(binary, &[image]);
        service.set("BERTH_DATABASE_URL", &url);
        service.set("BERTH_REPLICA_ADDRESS", &listener.local_addr().expect("an address").to_string());
        service
    }))
}

/// Starts two replicas: the first is active, the second has its key of secrets and stands by.
pub fn one_after_the_other([mut active, mut standby]: [Service; 2]) -> [Service; 2] {
    active.start();
    let key = "secrets.key";
    std::fs::copy(active.dir.path().join(key), standby.dir.path().join(key)).expect("the key of secrets");
    standby.start();
    [active, standby]
}
