//! Streams, and what holds of all connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use berth_domain::ids::{DiskId, MachineId};
use berth_domain::vm::plan::Machine;
use berth_host::EngineError;
use berth_host::sandbox::SandboxEngine;
use berth_host::vm::{DiskSource, DiskSpec, Engine, ImageImport};
use berth_host::wire::Remote;
use berth_testkit::{SimulatedEngine, agent};
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;

use crate::way::{Asked, Engines, Way, Wire, id, until, verbs};

const MACHINE: MachineId = MachineId(id(1));

/// What an agent answers.
async fn ask_agent(way: &Way) -> String {
    way.sandboxes.set_agent(&agent::play(way.data.path()));
    let connection = way.sandbox.connect(MACHINE).await.expect("an agent");
    let sent = vec![9; 300_000];
    let request = Request::post("http://agent/commands?x=1")
        .header("authorization", &connection.authorization)
        .body(Body::from(sent.clone()))
        .expect("a request");
    let response = connection.session.send(request).await.expect("an answer");
    let told = format!("{:?} {:?} {}", response.headers()["asked"], response.headers()["token"], response.status());
    let heard = response.into_body().collect().await.expect("a body").to_bytes();
    assert!(heard == sent, "bodies are passed on as they are");
    assert!(connection.since.elapsed() >= Duration::from_mins(1), "it began long ago");
    format!("{told} {:?}", connection.patience)
}

#[tokio::test]
async fn an_agent_is_asked_the_same_in_process_and_by_bytes() {
    let asked = Asked::default();
    let (near, far) = (Way::near(), Way::far(&asked).await);
    assert_eq!(ask_agent(&near).await, ask_agent(&far).await);
    assert!(verbs(&asked).contains("stream.agent"));
    let silent = Way::far(&asked).await;
    let refused = silent.sandbox.connect(MACHINE).await.err().expect("there is no agent");
    assert!(matches!(&refused, EngineError::Transient(text) if text.contains("no agent")), "{refused}");
}

struct Far {
    vms: Arc<SimulatedEngine>,
    remote: Arc<Remote>,
    is_cut: Arc<std::sync::atomic::AtomicBool>,
    asked: Asked,
    _data: tempfile::TempDir,
}

/// A host by bytes.
async fn far() -> Far {
    let (engines, asked) = (Engines::default(), Asked::default());
    let data = tempfile::tempdir().expect("a folder");
    let wire = Wire::to(&engines, data.path(), &asked);
    let is_cut = wire.cut();
    let remote = Remote::reach(Arc::new(wire), data.path()).await.expect("a host");
    Far { vms: engines.0, remote: Arc::new(remote), is_cut, asked, _data: data }
}

fn import(id: &str) -> ImageImport {
    ImageImport {
        id: id.into(),
        name: "Mine".into(),
        login_user: "me".into(),
        sha256: None,
        uefi: false,
        conversion: 0,
    }
}

#[tokio::test]
async fn a_host_receives_what_it_has_room_for_under_names_of_its_own() {
    let asked = Asked::default();
    let far = Way::far(&asked).await;
    let file = far.data.path().join("an image");
    std::fs::write(&file, "image").expect("a file");
    let import_of = async |id: &str| far.vm.import_image(&file, &import(id)).await.map(|info| info.virtual_size);
    for id in ["../mine", "", ".", "a/b"] {
        assert!(matches!(import_of(id).await, Err(EngineError::Permanent(_))), "{id:?}");
    }
    far.sandboxes.set_capacity(|capacity| capacity.disk_bytes = 5);
    assert!(matches!(import_of("mine").await, Err(EngineError::NoCapacity(_))));
    far.sandboxes.set_capacity(|capacity| capacity.disk_bytes = 6);
    assert_eq!(import_of("mine").await, Ok(5));
    far.vms.refuse("import_image", EngineError::Transient("not now".into()));
    assert_eq!(import_of("mine").await, Err(EngineError::Transient("not now".into())));
    far.vms.refuse("import_image", EngineError::Permanent("no image".into()));
    assert_eq!(import_of("mine").await, Err(EngineError::Permanent("no image".into())));
    assert_eq!(far.vms.staged(), Vec::<String>::new());
}

#[tokio::test]
async fn who_watches_is_told_what_happens_and_what_the_host_is() {
    let far = far().await;
    let disk = DiskSpec { id: DiskId(id(2)), source: DiskSource::Empty, size_gb: 1 };
    far.remote.make_disk(&disk).await.expect("a disk");
    let remote = far.remote.clone();
    let stop = CancellationToken::new();
    let mut events = Engine::watch(&*remote);
    let follows = tokio::spawn({
        let (remote, stop) = (remote.clone(), stop.clone());
        async move { SandboxEngine::tend(&*remote, stop).await }
    });
    until("it watches", || verbs(&far.asked).contains("stream.watch")).await;
    let spec = crate::vms::spec();
    Engine::start(&*remote, &spec).await.expect("a start");
    far.vms.happen(&spec.id.to_string(), Machine::Panicked);
    let told = tokio::time::timeout(Duration::from_secs(30), events.recv()).await.expect("in time").expect("an event");
    assert_eq!(told, spec.id);
    assert_eq!(Engine::observe(&*remote, spec.id).await.expect("a look"), Machine::Panicked);
    stop.cancel();
    follows.await.expect("it ends");
}

#[tokio::test]
async fn a_host_that_says_nothing_is_given_up() {
    let far = far().await;
    assert!(Engine::capacity(&*far.remote).await.is_ok());
    far.is_cut.store(true, Ordering::SeqCst);
    let remote = Arc::new((*far.remote).clone().with_patience(Duration::from_millis(50)));
    let error = Engine::capacity(&*remote).await.expect_err("nobody answers");
    assert!(matches!(error, EngineError::Transient(_)), "{error}");
    let stop = CancellationToken::new();
    let follows = tokio::spawn({
        let (remote, stop) = (remote.clone(), stop.clone());
        async move { remote.follow(stop).await }
    });
    until("it is not ready", || Engine::ready(&*far.remote).is_err()).await;
    assert!(SandboxEngine::ready(&*far.remote).is_err());
    stop.cancel();
    follows.await.expect("it ends");
}

#[tokio::test]
async fn a_host_stops_working_for_who_left() {
    let asked = Asked::default();
    for way in [Way::near(), Way::far(&asked).await] {
        way.vms.hold("capacity");
        let vm = way.vm.clone();
        let waits = tokio::spawn(async move { vm.capacity().await.map(drop) });
        until("it works", || way.vms.waiting() == 1).await;
        waits.abort();
        until("it has stopped", || way.vms.waiting() == 0).await;
    }
}
