//! The two ways to a host.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use berth_domain::Timestamp;
use berth_domain::host::Ask;
use berth_domain::vm::inbound::Reached;
use berth_domain::vm::pool::Pool;
use berth_host::Host;
use berth_host::lost::Lost;
use berth_host::network::NetworkEngine;
use berth_host::sandbox::SandboxEngine;
use berth_host::vm::{Console, Engine, VmNetwork};
use berth_host::wire::{Carrier, Remote, VERSION, serve};
use berth_testkit::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex, split};
use uuid::Uuid;

use crate::spoken;

/// Bytes that are on their way at most: less than a chunk, so that streams have to wait for who reads them.
const UNDER_WAY: usize = 4096;

/// A host that only remembers, and a way to it.
pub struct Way {
    /// What its engine of VMs is steered by.
    pub vms: Arc<SimulatedEngine>,
    /// What its engine of sandboxes is steered by.
    pub sandboxes: Arc<SimulatedSandboxes>,
    /// What its networks are steered by.
    pub networks: Arc<SimulatedNetworks>,
    /// Its engine of VMs, as it is asked.
    pub vm: Arc<dyn Engine>,
    /// Its engine of sandboxes, as it is asked.
    pub sandbox: Arc<dyn SandboxEngine>,
    /// Its networks, as they are asked for.
    pub network: Arc<dyn NetworkEngine>,
    /// Where it sets things aside.
    pub data: TempDir,
    /// Whether it is asked by bytes.
    pub is_far: bool,
}

impl Way {
    /// Its engines are called.
    pub fn near() -> Self {
        let (vms, sandboxes, networks) = engines();
        let data = TempDir::new().expect("a folder");
        let (vm, sandbox, network) = (vms.clone(), sandboxes.clone(), networks.clone());
        Self { vm, sandbox, network, vms, sandboxes, networks, data, is_far: false }
    }

    /// Its engines are asked by bytes; what is asked is noted.
    pub async fn far(asked: &Asked) -> Self {
        let engines = engines();
        let data = TempDir::new().expect("a folder");
        let wire = Wire::to(&engines, data.path(), asked);
        let (vms, sandboxes, networks) = engines;
        let remote = Remote::reach(Arc::new(wire), &data.path().join("spool")).await.expect("a host");
        let remote = Arc::new(remote);
        let (vm, sandbox, network) = (remote.clone(), remote.clone(), remote);
        Self { vm, sandbox, network, vms, sandboxes, networks, data, is_far: true }
    }

    /// Where a kind of things is set aside today.
    pub async fn aside(&self, kind: &str) -> PathBuf {
        self.lost().folder(kind, Timestamp(0)).await.expect("a folder")
    }

    fn lost(&self) -> Lost {
        Lost::new(self.data.path(), 7)
    }
}

/// The engines of a host that only remembers.
pub type Engines = (Arc<SimulatedEngine>, Arc<SimulatedSandboxes>, Arc<SimulatedNetworks>);

pub fn engines() -> Engines {
    let engines = Engines::default();
    let reached = Reached::Pool(Pool::read(["192.0.2.16/30", "2001:db8::/126"]).expect("addresses"));
    engines.0.set_network(VmNetwork { reached, is_bridged: true });
    engines
}

/// The questions that were asked by bytes.
pub type Asked = Arc<Mutex<Vec<Ask>>>;

/// The verbs among them.
pub fn verbs(asked: &Asked) -> BTreeSet<&'static str> {
    asked.lock().expect("questions").iter().map(Ask::verb).collect()
}

/// Carries bytes to a host, and notes what it is asked.
pub struct Wire {
    host: Arc<Host>,
    asked: Asked,
    is_cut: Arc<AtomicBool>,
    spoken: u32,
}

impl Wire {
    /// To a host with these engines.
    pub fn to((vms, sandboxes, networks): &Engines, data: &Path, asked: &Asked) -> Self {
        let host = Arc::new(Host::new(vms.clone(), sandboxes.clone(), networks.clone(), Lost::new(data, 7)));
        Self { host, asked: asked.clone(), is_cut: Arc::default(), spoken: VERSION }
    }

    /// To one that speaks no later version than this.
    pub fn of_version(self, spoken: u32) -> Self {
        Self { spoken, ..self }
    }

    /// Whether what is sent from now on reaches nobody.
    pub fn cut(&self) -> Arc<AtomicBool> {
        self.is_cut.clone()
    }
}

#[async_trait]
impl Carrier for Wire {
    async fn connect(&self) -> io::Result<Box<dyn Console>> {
        let (ours, tap) = duplex(UNDER_WAY);
        if self.is_cut.load(Ordering::SeqCst) {
            // Somebody has it and says nothing.
            tokio::spawn(async move {
                let (_tap, never) = (tap, std::future::pending::<()>());
                never.await;
            });
            return Ok(Box::new(ours));
        }
        let (host, asked) = (self.host.clone(), self.asked.clone());
        tokio::spawn(carry(tap, host, asked, self.spoken));
        Ok(Box::new(ours))
    }

    fn spoken(&self) -> u32 {
        self.spoken
    }
}

/// Notes the question of a connection, and carries it on.
async fn carry(mut tap: DuplexStream, host: Arc<Host>, asked: Asked, spoken: u32) -> io::Result<()> {
    let question = message(&mut tap).await?;
    let said: Value = serde_json::from_slice(&question).expect("a question");
    let ask: Ask = serde_json::from_value(said["ask"].clone()).expect("a question");
    assert_eq!(serde_json::to_value(&ask).expect("JSON"), said["ask"], "a question survives its bytes");
    assert!(said["version"].as_u64().is_some_and(|version| version <= spoken.into()), "it is understood");
    asked.lock().expect("questions").push(ask.clone());
    let (mut to, theirs) = duplex(UNDER_WAY);
    tokio::spawn(async move { serve(&host, theirs).await });
    pass(&mut to, &question).await?;
    let ((mut from_asker, mut to_asker), (mut from_host, mut to_host)) = (split(tap), split(to));
    let asks = async {
        tokio::io::copy(&mut from_asker, &mut to_host).await?;
        to_host.shutdown().await
    };
    let answers = async {
        while let Ok(told) = message(&mut from_host).await {
            pass(&mut to_asker, &told).await?;
            let told: Value = serde_json::from_slice(&told)?;
            if let Some(answer) = told.get("said") {
                spoken::keep(&ask, answer);
            }
            if told.get("said").or(told.get("failed")).is_some() {
                break;
            }
        }
        tokio::io::copy(&mut from_host, &mut to_asker).await?;
        to_asker.shutdown().await
    };
    tokio::try_join!(asks, answers).map(drop)
}

/// The next message of a connection.
async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut message = vec![0; from.read_u32().await? as usize];
    from.read_exact(&mut message).await.map(|_| message)
}

async fn pass(to: &mut (impl AsyncWrite + Unpin), message: &[u8]) -> io::Result<()> {
    to.write_u32(u32::try_from(message.len()).expect("a length")).await?;
    to.write_all(message).await
}

/// An id that is the same in both ways.
pub const fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waited = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waited).await.unwrap_or_else(|_| panic!("{what}"));
}
