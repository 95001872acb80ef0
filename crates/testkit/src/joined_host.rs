//! A host that joins a platform: real certificates and a real listener, over simulated engines.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use berth_domain::host::join::Presence;
use berth_host::Host;
use berth_host::link::{Door, Papers, Pem, Terms, request};
use berth_host::lost::Lost;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::platform::{Answer, Caller};
use crate::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};

/// A host that has joined. Dropping it is as if its power went.
pub struct JoinedHost {
    /// Its id.
    pub id: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its engine of VMs.
    pub engine: Arc<SimulatedEngine>,
    /// Its engine of sandboxes.
    pub sandboxes: Arc<SimulatedSandboxes>,
    /// Its networks.
    pub networks: Arc<SimulatedNetworks>,
    kept: Arc<Mutex<Pem>>,
    asked: Arc<AtomicUsize>,
    open: Option<(CancellationToken, JoinHandle<()>)>,
    dir: TempDir,
}

impl JoinedHost {
    /// Joins with a token, and answers the service.
    ///
    /// # Errors
    /// What the service answers, if it does not let it join.
    pub async fn join(anybody: &Caller, token: &str) -> Result<Self, Answer> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (key, csr) = request().expect("a key");
        let body =
            json!({"token": token, "csr": csr, "address": address.to_string(), "name": "beta", "version": "1.2.3"});
        let answer = anybody.post("/api/v1/hosts/join", body).await;
        if answer.status != 200 {
            return Err(answer);
        }
        let text = |field: &str| answer.body[field].as_str().expect("a text").to_owned();
        let pem = Pem { key, certificate: text("certificate"), authority: text("authority") };
        let (engine, sandboxes, networks) = Default::default();
        let mut host = Self {
            id: text("host_id"),
            address,
            engine,
            sandboxes,
            networks,
            kept: Arc::new(Mutex::new(pem)),
            asked: Arc::default(),
            open: None,
            dir: TempDir::new().expect("a folder"),
        };
        host.serve(listener);
        Ok(host)
    }

    /// Listens again where it did.
    pub async fn open(&mut self) {
        let listener = TcpListener::bind(self.address).await.expect("its port");
        self.serve(listener);
    }

    /// Ends in good order.
    pub async fn close(&mut self) {
        if let Some((stop, served)) = self.open.take() {
            stop.cancel();
            served.await.expect("an end");
        }
    }

    /// How often it was asked how it is.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Its papers, as they would lie in its folder: whoever steals the folder has them.
    pub fn papers(&self) -> Pem {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&mut self, listener: TcpListener) {
        let (vm, sandbox, network) = (self.engine.clone(), self.sandboxes.clone(), self.networks.clone());
        let host = Host::new(vm, sandbox, network, Lost::new(self.dir.path(), 7));
        let kept = self.kept.clone();
        let papers = Papers::new(self.papers(), move |papers| {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = papers.clone();
            Ok(())
        });
        let asked = self.asked.clone();
        let terms = Terms::open(self.dir.path()).expect("terms");
        let door = Door::new(Arc::new(host), Arc::new(papers.expect("papers")), terms, move || {
            asked.fetch_add(1, Ordering::SeqCst);
            Presence {
                name: "beta".into(),
                version: "1.2.3".into(),
                boot: "first".into(),
                cpus: 8,
                memory_mb: 16_384,
                overcommit: [("vm".to_owned(), 1.0), ("sandbox".to_owned(), 2.0)].into(),
                missing: None,
            }
        });
        let stop = CancellationToken::new();
        self.open = Some((stop.clone(), tokio::spawn(door.listen(listener, stop))));
    }
}

impl Drop for JoinedHost {
    fn drop(&mut self) {
        if let Some((_, served)) = self.open.take() {
            served.abort();
        }
    }
}
