//! Scenarios of sandboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_domain::host::ask::{guest, layer, memory, sandbox, template, upload};
use berth_domain::ids::{LayerId, MachineId, MemoryId, TemplateId, UploadId};
use berth_domain::sandbox::dockerfile::Dockerfile;
use berth_domain::sandbox::network_policy::{Egress, NetworkPolicy};
use berth_host::EngineError;
use berth_host::sandbox::build::Log;
use berth_host::sandbox::{
    Activity, Aim, Build, BuildSpec, Checkpoint, From, Kept, Named, Observed, Stage, StartSpec, Warming,
};
use tokio_util::sync::CancellationToken;

use crate::way::{Asked, Way, id, until, verbs};

/// What the scenarios here drive.
pub const NOUNS: [&[&str]; 7] = [
    guest::Ask::VERBS,
    sandbox::Ask::VERBS,
    layer::Ask::VERBS,
    memory::Ask::VERBS,
    upload::Ask::VERBS,
    template::Ask::VERBS,
    &[
        "host.describe",
        "host.sandbox_capacity",
        "host.scan_sandboxes",
        "host.set_aside",
        "stream.build",
        "stream.receive",
        "stream.guest_file",
        "stream.take_guest",
        "stream.layer_file",
        "stream.take_layer",
        "stream.memory_file",
        "stream.take_memory",
        "stream.agent",
        "stream.watch",
    ],
];

const SANDBOX: MachineId = MachineId(id(10));
const AIM: Aim = Aim::of(SANDBOX, 3);
const BASE: LayerId = LayerId(id(20));
const TOP: LayerId = LayerId(id(21));
const NEXT: LayerId = LayerId(id(22));
const LAST: LayerId = LayerId(id(23));
const MEMORY: MemoryId = MemoryId(id(30));

fn network() -> NetworkPolicy {
    let rule = |text: &str| text.parse().expect("a rule");
    NetworkPolicy {
        egress: Egress::Deny,
        allow: vec![rule("*.example.org")],
        deny: vec![rule("10.0.0.0/8")],
        unlock: vec![],
    }
}

fn spec(machine: MachineId, layers: &[LayerId], from: From) -> StartSpec {
    StartSpec {
        gpus: Vec::new(),
        id: machine,
        guest: "a-sandbox".into(),
        generation: 3,
        slot: 4,
        hostname: "one".into(),
        vcpu: 1,
        memory_mb: 256,
        layers: layers.to_vec(),
        from,
        fresh: true,
        env: BTreeMap::from([("A".to_owned(), "\"ü\"".to_owned())]),
        user: "user".into(),
        workdir: Some("/work".into()),
        network: network(),
        networks: vec![crate::networks::membership(3)],
        rehearsal: Some("a rehearsal".into()),
    }
}

fn build_spec(upload: Option<UploadId>) -> BuildSpec {
    BuildSpec {
        id: TemplateId(id(40)),
        hostname: "build".into(),
        vcpu: 1,
        memory_mb: 512,
        machines: vec![Stage { machine: MachineId(id(41)), slot: 5 }],
        dockerfile: Dockerfile::parse("FROM sent\nRUN echo \"$HOME\"\nCOPY <<EOF /x\nin\nEOF\n").expect("a Dockerfile"),
        images: upload.map(|id| ("sent".to_owned(), Named::Upload(id))).into_iter().collect(),
        context: None,
        layer: LayerId(id(42)),
        disk_gb: 4,
        patience: Duration::from_secs(60),
    }
}

fn build(upload: Option<UploadId>) -> Build {
    Build { spec: build_spec(upload), log: Log::default(), cancel: CancellationToken::new() }
}

/// What is answered, in order.
async fn life(way: &Way) -> Vec<String> {
    let (mut said, engine) = (Vec::new(), &way.sandbox);
    macro_rules! note {
        ($($answer:expr),* $(,)?) => { $(said.push(format!("{:?}", $answer));)* };
    }
    note!(engine.ready(), engine.capacity().await, engine.host_boot(), engine.templates().await);
    note!(engine.adopt_template("base", BASE).await, engine.make_layer(TOP, BASE).await, engine.layer_bytes(TOP).await);
    let machine = spec(SANDBOX, &[TOP, BASE], From::Disk);
    note!(engine.observe(SANDBOX).await, engine.start(&machine).await, engine.start(&machine).await);
    assert_eq!(engine.observe(SANDBOX).await.expect("a look"), Observed::Running { generation: 3 });
    assert_eq!(way.sandboxes.spec("a-sandbox").expect("a machine").0, machine, "it is started as it was asked for");
    note!(engine.set_network(AIM, &NetworkPolicy { deny: Vec::new(), ..network() }).await);
    let checkpoint = Checkpoint { machine: SANDBOX, generation: 3, top: TOP, next: NEXT, memory: Some(MEMORY) };
    let (aim, outdated) = (Aim::of(SANDBOX, 2), EngineError::Outdated(3));
    for older in [engine.end(aim).await, engine.discard(aim).await, engine.set_network(aim, &network()).await] {
        assert_eq!(older, Err(outdated.clone()));
    }
    let older = Checkpoint { generation: 2, ..checkpoint.clone() };
    assert_eq!(engine.checkpoint(&older).await, Err(outdated.clone()));
    assert_eq!(engine.checkpoint_cold(&older).await, Err(outdated.clone()));
    assert_eq!(engine.pause(aim, None).await, Err(outdated.clone()));
    assert_eq!(engine.start(&StartSpec { generation: 2, ..machine }).await, Err(outdated));
    note!(engine.checkpoint(&checkpoint).await, engine.checkpoint(&checkpoint).await, engine.sample(SANDBOX).await);
    note!(engine.pause(AIM, Some(MEMORY)).await, engine.pause(AIM, Some(MEMORY)).await);
    note!(
        engine
            .checkpoint_cold(&Checkpoint { machine: SANDBOX, generation: 3, top: NEXT, next: LAST, memory: None })
            .await
    );
    let again = spec(SANDBOX, &[LAST, NEXT, TOP, BASE], From::Memory(MEMORY));
    assert_eq!(engine.start(&again).await, Err(EngineError::Outdated(3)), "it was ended since");
    let (again, aim) = (StartSpec { generation: 4, ..again }, Aim::of(SANDBOX, 4));
    note!(engine.start(&again).await, engine.end(aim).await, engine.discard(aim).await);
    note!(engine.sample(SANDBOX).await, engine.unlimited(), engine.most_warm());
    said.extend(warm(way).await);
    note!(engine.remove_layer(LAST).await, engine.remove_memory(MEMORY).await);
    said
}

/// A machine that nobody owns, and a template's first boot.
async fn warm(way: &Way) -> Vec<String> {
    let (engine, other) = (&way.sandbox, MachineId(id(11)));
    let layer = LayerId(id(24));
    engine.make_layer(layer, BASE).await.expect("a layer");
    let machine = spec(other, &[layer, BASE], From::Memory(MEMORY));
    let warmed = engine.warm_up(&machine).await;
    assert!(engine.is_warm(other).await.expect("a look"));
    let told = format!("{warmed:?} {:?} {:?}", engine.end(Aim::uncounted(other)).await, engine.is_warm(other).await);
    let warming = Warming {
        machine: spec(MachineId(id(12)), &[layer, BASE], From::Disk),
        memory: MemoryId(id(31)),
        start_command: Some("serve".into()),
        ready_command: None,
        patience: Duration::from_millis(1500),
    };
    vec![told, format!("{:?} {:?}", engine.warm_template(&warming).await, engine.remove_layer(layer).await)]
}

/// What is answered about builds and uploads, in order.
async fn builds(way: &Way) -> Vec<String> {
    let (engine, sent) = (&way.sandbox, UploadId(id(50)));
    let archive = vec![3; 300_000];
    std::fs::write(engine.upload(sent).await.expect("a place"), &archive).expect("a file");
    assert_eq!(engine.scan().await.expect("a search").uploads, [sent]);
    let built = build(Some(sent));
    let outcome = engine.build_template(&built).await;
    assert_eq!(built.log.read(0).text, "simulated\n");
    assert_eq!(way.sandboxes.uploaded(), [archive], "the host has what it builds of");
    let found = engine.scan().await.expect("a search").uploads;
    let mut said = vec![format!("{outcome:?} {found:?} {:?}", engine.remove_upload(sent).await)];
    assert_eq!(way.sandboxes.uploads(), 0);

    way.sandboxes.set_builds_last(true);
    let endless = build(None);
    let (outcome, ()) = tokio::join!(engine.build_template(&endless), async {
        until("it builds", || endless.log.read(0).text == "simulated\n").await;
        endless.cancel.cancel();
    });
    assert!(matches!(&outcome, Err(EngineError::Transient(text)) if text == "called off"), "{outcome:?}");
    way.sandboxes.set_builds_last(false);
    said.push(format!("{outcome:?} {:?}", engine.clear_build(endless.spec.id).await));
    said
}

/// What no row owns.
async fn strays(way: &Way) -> Vec<String> {
    let engine = &way.sandbox;
    let kept = [Kept::Layer(LayerId(id(60))), Kept::Memory(MemoryId(id(61))), Kept::Upload(UploadId(id(62)))];
    let mut said = Vec::new();
    for one in kept {
        way.sandboxes.leave(one);
        let aside = way.aside(one.folder()).await;
        said.push(format!("{:?}", engine.set_aside(one, &aside).await));
        assert_eq!(std::fs::read_dir(aside).expect("a folder").count(), 1, "{one:?}");
    }
    said
}

/// How a sandbox is used, once that is known.
async fn used(way: &Way, running: u32) -> Activity {
    way.sandboxes.set_running("a-sandbox", Some(running));
    let mut activity = Activity::default();
    until("it is known what runs", || {
        activity = way.sandbox.activity(SANDBOX);
        activity.running == Some(running)
    })
    .await;
    activity
}

#[tokio::test]
async fn sandboxes_are_run_the_same_in_process_and_by_bytes() {
    let asked = Asked::default();
    let (near, far) = (Way::near(), Way::far(&asked).await);
    assert_eq!(life(&near).await, life(&far).await);
    assert_eq!(builds(&near).await, builds(&far).await);
    assert_eq!(strays(&near).await, strays(&far).await);
    assert_eq!(crate::guests::travels(&near).await, crate::guests::travels(&far).await);
    assert_eq!(crate::layers::travels(&near).await, crate::layers::travels(&far).await);
    assert_eq!(crate::memories::travels(&near).await, crate::memories::travels(&far).await);
    for way in [&near, &far] {
        way.sandbox.adopt_template("base", BASE).await.expect("a layer");
        let layer = LayerId(id(70));
        way.sandbox.make_layer(layer, BASE).await.expect("a layer");
        // What was acted on is known though the machine is gone.
        let again = StartSpec { generation: 5, ..spec(SANDBOX, &[layer, BASE], From::Disk) };
        way.sandbox.start(&again).await.expect("a start");
    }
    for running in [2, 0] {
        assert_eq!(used(&near, running).await, used(&far, running).await);
    }
    assert_eq!((near.sandboxes.violations(), far.sandboxes.violations()), (Vec::new(), Vec::new()));
    let verbs = verbs(&asked);
    let streams = ["stream.agent", "stream.watch"];
    let all = NOUNS.iter().flat_map(|verbs| verbs.iter()).copied().filter(|verb| !streams.contains(verb));
    let missing: Vec<_> = all.filter(|verb| !verbs.contains(verb)).collect();
    assert!(missing.is_empty(), "no scenario drives {missing:?}");
}
