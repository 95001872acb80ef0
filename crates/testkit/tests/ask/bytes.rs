//! Questions and answers as bytes: those that are some survive, and those that are none are refused.

use std::sync::Arc;

use berth_domain::host::ask::{Ask, Question, host, sandbox, stream, vm};
use berth_domain::host::sandbox::Sample;
use berth_domain::host::{Aim, EngineError, image::ImageInfo};
use berth_domain::ids::MachineId;
use berth_host::Host;
use berth_host::lost::Lost;
use berth_host::wire::{OLDEST, QUESTION, VERSION, serve};
use berth_testkit::{SimulatedEngine, SimulatedNetworks, SimulatedSandboxes};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// A host that only remembers.
fn host(data: &std::path::Path) -> Host {
    with_sandboxes(data, Arc::default())
}

fn with_sandboxes(data: &std::path::Path, sandboxes: Arc<SimulatedSandboxes>) -> Host {
    let (vms, networks) = (Arc::<SimulatedEngine>::default(), Arc::<SimulatedNetworks>::default());
    Host::new(vms, sandboxes, networks, Lost::new(data, 1))
}

#[tokio::test]
async fn a_host_in_the_same_process_answers_values() {
    let data = tempfile::tempdir().expect("a folder");
    let host = host(data.path());
    let about = host.ask(host::Describe {}).await.expect("an answer");
    assert_eq!((about.vm.ssh_port, about.sandbox.missing), (22, None));
    let id = MachineId(uuid::Uuid::nil());
    assert_eq!(host.answer(Ask::Vm(vm::Observe { id }.into())).await, Ok(json!("Absent")));
    assert!(matches!(host.answer(Ask::Stream(stream::Console { id }.into())).await, Err(EngineError::Permanent(_))));
}

/// What a host says to bytes, if it says anything.
async fn told(bytes: &[u8]) -> Option<Value> {
    let data = tempfile::tempdir().expect("a folder");
    let host = host(data.path());
    let (mut ours, theirs) = duplex(1 << 20);
    let asks = async {
        // A host that refuses does not read on.
        let _ = ours.write_all(bytes).await;
        let mut said = Vec::new();
        ours.shutdown().await.expect("an end");
        ours.read_to_end(&mut said).await.expect("bytes");
        said
    };
    let (_, said) = tokio::join!(serve(&host, theirs), asks);
    let message = said.get(4..)?;
    assert_eq!(said[..4], u32::try_from(message.len()).expect("a length").to_be_bytes(), "one message");
    Some(serde_json::from_slice(message).expect("JSON"))
}

fn framed(message: &str) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a length");
    [&length.to_be_bytes(), message.as_bytes()].concat()
}

#[tokio::test]
async fn what_is_no_question_is_refused_in_words() {
    let ask = json!({"host": {"describe": {}}});
    let refused = |told: Option<Value>| told.expect("a refusal")["failed"].clone();
    for (message, kind) in [
        (json!({"version": VERSION + 1, "ask": ask}), "transient"),
        (json!({"version": OLDEST - 1, "ask": ask}), "transient"),
        (json!({"version": VERSION + 1, "question": "of another time"}), "transient"),
        (json!({"version": VERSION}), "permanent"),
        (json!({"ask": ask}), "permanent"),
        (json!({"version": VERSION, "ask": {"host": {"explode": {}}}}), "permanent"),
        (json!({"version": VERSION, "ask": {"host": {"describe": {"also": 1}}}}), "permanent"),
        (json!({"version": VERSION, "ask": ask, "more": 1}), "permanent"),
    ] {
        let failed = refused(told(&framed(&message.to_string())).await);
        assert!(failed[kind].is_string(), "{message}: {failed}");
    }
    for spoken in OLDEST..=VERSION {
        let told = told(&framed(&json!({"version": spoken, "ask": ask}).to_string())).await.expect("an answer");
        assert!(told["said"].is_object(), "{spoken}: {told}");
    }
    let longer = (QUESTION + 1).to_be_bytes();
    assert!(refused(told(&longer).await)["permanent"].is_string());
    let mut longest = framed(&format!("{{\"version\":{VERSION},\"ask\":{ask}}}"));
    longest.resize(4 + QUESTION as usize, b' ');
    longest[..4].copy_from_slice(&QUESTION.to_be_bytes());
    // Its asker has left when it is answered, or has heard the answer: both are no refusal.
    assert!(told(&longest).await.is_none_or(|told| told["said"].is_object()));
}

#[tokio::test]
async fn half_a_file_is_none() {
    let data = tempfile::tempdir().expect("a folder");
    let sandboxes = Arc::<SimulatedSandboxes>::default();
    let host = with_sandboxes(data.path(), sandboxes.clone());
    let question = json!({"stream": {"receive": {"id": uuid::Uuid::nil(), "bytes": 5}}});
    let question = framed(&json!({"version": VERSION, "ask": question}).to_string());
    for (bytes, last) in [("half", "failed"), ("whole", "said"), ("whole and more", "said")] {
        let (mut ours, theirs) = duplex(1 << 20);
        ours.write_all(&[&question, bytes.as_bytes()].concat()).await.expect("bytes are taken");
        ours.shutdown().await.expect("an end");
        serve(&host, theirs).await.expect("an answer");
        let mut said = Vec::new();
        ours.read_to_end(&mut said).await.expect("bytes");
        assert!(String::from_utf8_lossy(&said).contains(&format!("{{\"{last}\"")), "{bytes}");
        let kept = if last == "said" { vec![b"whole".to_vec()] } else { Vec::new() };
        assert_eq!(sandboxes.uploaded(), kept, "{bytes}");
    }
}

#[tokio::test]
async fn who_says_more_than_a_question_is_not_answered() {
    let question = json!({"version": VERSION, "ask": {"host": {"describe": {}}}}).to_string();
    let mut bytes = framed(&question);
    bytes.truncate(bytes.len() - 1);
    assert_eq!(told(&bytes).await, None, "half a question is none");
}

fn survives(ask: Ask) {
    let bytes = serde_json::to_vec(&ask).expect("JSON");
    assert_eq!(serde_json::from_slice::<Ask>(&bytes).expect("a question"), ask);
}

fn answer_survives<Q: Question<Answer: Clone + PartialEq + std::fmt::Debug>>(answer: Q::Answer) {
    let bytes = serde_json::to_vec(&answer).expect("JSON");
    assert_eq!(serde_json::from_slice::<Q::Answer>(&bytes).expect("an answer"), answer);
}

proptest! {
    /// Whatever comes, a host refuses or answers it, and does not fall over.
    #[test]
    fn bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..64), at in 0_usize..80, with in any::<u8>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let question = json!({"version": VERSION, "ask": {"vm": {"observe": {"id": uuid::Uuid::nil()}}}}).to_string();
        let mut changed = framed(&question);
        if let Some(byte) = changed.get_mut(at) {
            *byte = with;
        }
        // A length that is not there yet is waited for until the connection ends.
        runtime.block_on(async {
            told(&bytes).await;
            told(&framed(&String::from_utf8_lossy(&bytes))).await;
            told(&changed).await;
        });
    }

    #[test]
    fn questions_and_answers_survive_their_bytes(
        id in any::<u128>(),
        text in any::<String>(),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        (number, small) in (any::<i64>(), 0_i64..1 << 40),
        eighths in any::<u32>(),
    ) {
        let seconds = f64::from(eighths) / 8.0;
        let id = MachineId(uuid::Uuid::from_u128(id));
        survives(Ask::Vm(vm::PowerOff { aim: Aim { id, generation: (number > 0).then_some(number) } }.into()));
        survives(Ask::Image(berth_domain::host::ask::image::Find { id: text.clone() }.into()));
        let first = (std::net::Ipv4Addr::from_bits(eighths), 22).into();
        survives(Ask::Host(host::PortsFree { first, count: 11 }.into()));
        answer_survives::<vm::ConsoleLog>(bytes);
        answer_survives::<vm::Usage>(Some(berth_domain::host::vm::Usage { cpu_seconds: seconds, memory_bytes: 7 }));
        let sample = Sample { cpu_seconds: seconds, memory_bytes: number, disk_bytes: small, ..Sample::default() };
        answer_survives::<sandbox::Sample>(Some(sample));
        answer_survives::<berth_domain::host::ask::image::Find>(Some(ImageInfo {
            id: text.clone(), name: text.clone(), os: text.clone(), version: text.clone(), login_user: text.clone(),
            virtual_size: number, min_memory_mb: small,
        }));
        for error in [EngineError::Transient(text.clone()), EngineError::Permanent(text.clone()), EngineError::NoCapacity(text)] {
            let bytes = serde_json::to_vec(&error).expect("JSON");
            prop_assert_eq!(serde_json::from_slice::<EngineError>(&bytes).expect("an error"), error);
        }
    }
}
