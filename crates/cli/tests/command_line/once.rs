//! What is asked for twice with one `Idempotency-Key` happens once inside a sandbox, too.

use berth_testkit::Answer;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::harness::{BOX, Here, PATIENCE, until};

fn request(here: &Here, path: &str, key: &str, body: &Value) -> RequestBuilder {
    here.platform.admin.request(Method::POST, path).header("idempotency-key", key).json(body)
}

async fn post(here: &Here, path: &str, key: &str, body: &Value) -> Answer {
    let answer = here.platform.admin.send(request(here, path, key, body));
    tokio::time::timeout(PATIENCE, answer).await.expect("an answer in time")
}

/// The path of the sandbox.
async fn root(here: &Here) -> String {
    let sandboxes = here.platform.admin.get(&format!("/sandboxes?name={BOX}")).await.body;
    format!("/sandbox/{}", sandboxes["data"][0]["id"].as_str().expect("an id"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_started_and_a_directory_made_once() {
    let here = Here::start().await;
    let root = root(&here).await;
    let (processes, mkdir) = (format!("{root}/processes"), format!("{root}/files/mkdir"));
    let run = json!({"cmd": "echo once >> ran; sleep 600"});
    let first = post(&here, &processes, "k", &run).await;
    let second = post(&here, &processes, "k", &run).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{first:?}");
    assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")), "{second:?}");
    assert_eq!((&second.body, second.header("location")), (&first.body, first.header("location")));
    assert_eq!(here.running().await.len(), 1);
    let ran = || std::fs::read_to_string(here.inside("ran")).unwrap_or_default();
    until("its line", async || !ran().is_empty()).await;
    post(&here, &processes, "k", &json!({"cmd": "true"})).await.refused(422, "idempotency_mismatch");
    let other = post(&here, &processes, "l", &run).await;
    assert_eq!((other.status, other.header("idempotent-replayed")), (201, None), "{other:?}");
    assert_ne!(other.body["pid"], first.body["pid"]);
    until("a second line", async || ran().lines().count() > 1).await;
    assert_eq!(ran(), "once\nonce\n");

    let made = post(&here, &mkdir, "k", &json!({"path": "folder"})).await;
    let again = post(&here, &mkdir, "k", &json!({"path": "folder"})).await;
    assert_eq!((made.status, again.status), (201, 201), "{again:?}");
    assert_eq!((again.header("idempotent-replayed"), &again.body), (Some("true"), &made.body));
    // A refusal is not kept: what stands in the way may go.
    post(&here, &mkdir, "m", &json!({"path": "folder"})).await.refused(409, "already_exists");
    std::fs::remove_dir(here.inside("folder")).expect("an empty folder");
    assert_eq!(post(&here, &mkdir, "m", &json!({"path": "folder"})).await.status, 201);
    post(&here, &mkdir, "n", &json!({"path": 1})).await.refused(400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_in_the_middle_finds_what_it_asked_for() {
    let here = Here::start().await;
    let processes = format!("{}/processes", root(&here).await);
    let held = here.hold_answers_to("echo once");
    let run = json!({"cmd": "echo once >> ran; sleep 600"});
    let asked = tokio::spawn(request(&here, &processes, "k", &run).send());
    until("the process", async || here.inside("ran").exists()).await;
    asked.abort();
    assert!(asked.await.is_err_and(|error| error.is_cancelled()));
    // It is made for whoever asks with this key, and for nobody else meanwhile.
    post(&here, &processes, "k", &run).await.refused(409, "request_in_progress");
    held.send_replace(false);
    until("its answer", async || post(&here, &processes, "k", &run).await.status != 409).await;
    let again = post(&here, &processes, "k", &run).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (201, Some("true")), "{again:?}");
    let running = here.running().await;
    assert_eq!((running.len(), &running[0]["pid"]), (1, &again.body["pid"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_a_long_command_is_kept_whole() {
    let here = Here::start().await;
    let processes = format!("{}/processes", root(&here).await);
    // In the answer each of them is five bytes.
    let run = json!({"argv": ["true", "'".repeat(100_000), "'".repeat(100_000)]});
    let first = post(&here, &processes, "k", &run).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (201, None), "{}", first.status);
    assert!(first.body["cmd"].as_str().is_some_and(|cmd| cmd.len() > 800_000));
    let second = post(&here, &processes, "k", &run).await;
    assert_eq!((second.status, second.header("idempotent-replayed")), (201, Some("true")), "{}", second.status);
    assert_eq!(second.body, first.body);
}
