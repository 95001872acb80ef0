//! A model of random weights, served from its file by a real engine.

use std::path::Path;
use std::process::{Command, Output};

use berth_testkit::{Caller, Service, Suite, eventually};
use serde_json::{Value, json};

use crate::{BERTH, key, python};

/// Makes the model.
fn make(file: &Path) {
    let made = Command::new(python()).arg(Suite::file("tiny_gguf.py")).arg(file).output().expect("an end");
    assert!(made.status.success() && made.stdout.is_empty(), "{made:?}");
}

/// A service that serves the file as `acme/tiny`, with an engine that it installs itself, from a folder of wheels.
fn service(file: &Path) -> Service {
    let mut service = Service::new(BERTH, &[]);
    let file = file.to_str().expect("a path");
    service.configure(&format!("[[models]]\nid = \"acme/tiny\"\nupstreams = [{{ gguf = \"{file}\" }}]\n"));
    let wheels = python().ancestors().nth(2).expect("a folder").join("wheels");
    service.set("PIP_NO_INDEX", "1");
    service.set("PIP_FIND_LINKS", wheels.to_str().expect("a path"));
    service.start();
    service
}

async fn served(caller: &Caller) {
    caller
        .until("the engine", |c| async move {
            let model = c.get("/api/v1/admin/models/acme/tiny").await;
            model.body["upstreams"][0]["ready"] == true
        })
        .await;
}

/// A command of a program that has nothing but a key.
fn types(service: &Service, key: &str, arguments: &[&str]) -> Output {
    let mut command = service.berth(arguments);
    command.env("BERTH_URL", &service.base).env("BERTH_API_KEY", key).output().expect("an end")
}

/// Asks for eight tokens; the events of the answer's stream.
async fn asked(service: &Service, key: &str) -> Vec<Value> {
    let body = json!({
        "model": "acme/tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 8,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    let http = reqwest::Client::new();
    let request = http.post(format!("{}/v1/chat/completions", service.base)).bearer_auth(key).json(&body);
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.expect("a stream");
    let events: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"), "{text}");
    events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_file_is_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("tiny.gguf");
    make(&file);
    let mut service = service(&file);
    let admin = service.admin().await;
    let key = key(&admin).await;
    served(&admin).await;

    let events = asked(&service, &key).await;
    let letters = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    let letters: Vec<_> = letters.filter(|text| !text.is_empty()).collect();
    // The last letters may come together.
    assert!(letters.len() >= 4 && letters.concat().len() == 8, "{letters:?}");
    assert!(events.iter().any(|event| event["choices"][0]["finish_reason"] == "length"), "{events:?}");
    let said = &events.last().expect("an event")["usage"];
    assert_eq!(said["completion_tokens"], 8, "{said}");
    assert!(events.iter().all(|event| event["model"] == "tiny"), "no path of the host is told: {events:?}");
    recorded(&admin, said).await;

    let listed = types(&service, &key, &["model", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("acme/tiny"), "{listed:?}");
    let chat = types(&service, &key, &["chat", "acme/tiny", "Hello", "--max-tokens", "8", "--temperature", "0"]);
    assert!(chat.status.success(), "{chat:?}");
    assert_eq!(String::from_utf8_lossy(&chat.stdout).trim_end(), letters.concat().trim_end(), "{chat:?}");

    assert!(!service.processes("models").is_empty(), "the engine works there");
    service.kill();
    eventually("the engine's end", 30, || service.processes("models").is_empty().then_some(()));
}

/// What was recorded is what the engine said.
async fn recorded(caller: &Caller, said: &Value) {
    caller
        .until("the record", |c| {
            let said = said.clone();
            async move {
                let usage = c.get("/usage?window=1h&resolution=1h&group_by=model").await;
                let rows = usage.body["data"].as_array().cloned().unwrap_or_default();
                let of = |row: &&Value| row["group"] == "acme/tiny" && row["requests"] == 1;
                rows.iter().find(of).is_some_and(|row| {
                    let exact = row["estimated"] == false || row["estimated"] == 0;
                    let counts = ["prompt_tokens", "completion_tokens"];
                    exact && counts.iter().all(|name| row[name] == said[name])
                })
            }
        })
        .await;
}
