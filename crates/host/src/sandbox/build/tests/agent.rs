//! A machine whose agent is played: what it is asked, and what becomes of its answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use berth_domain::agent::control::Pack;
use berth_domain::agent::marker::{Found, Scanner, marker};
use berth_domain::sandbox::dockerfile::plan::Run;
use futures::{StreamExt, TryStreamExt};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::sandbox::agent::connect;
use crate::sandbox::build::{AgentMachine, BuildError, BuildMachine, Unpack};

type Asked = Arc<Mutex<Vec<(String, String)>>>;
type Answers = Arc<dyn Fn(&str) -> Response + Send + Sync>;

async fn answer(State((asked, answers)): State<(Asked, Answers)>, request: Request) -> Response {
    let target = request.uri().path_and_query().unwrap().to_string();
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    asked.lock().unwrap().push((target.clone(), String::from_utf8_lossy(&body).into_owned()));
    answers(&target)
}

/// A machine, and what its agent is asked.
async fn machine(answers: impl Fn(&str) -> Response + Send + Sync + 'static) -> (AgentMachine, Asked) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let asked = Asked::default();
    let router = Router::new().fallback(answer).with_state((asked.clone(), Arc::new(answers) as Answers));
    tokio::spawn(async move {
        let mut scanner = Scanner::default();
        let mut buffer = [0; 4096];
        let session = loop {
            let n = theirs.read(&mut buffer).await.unwrap();
            scanner.feed(&buffer[..n]);
            match scanner.next() {
                Some(Found::Marker(nonce)) => theirs.write_all(&marker(nonce)).await.unwrap(),
                Some(Found::Session(bytes)) => break bytes,
                None => {}
            }
        };
        let (read, write) = theirs.into_split();
        let io = TokioIo::new(tokio::io::join(std::io::Cursor::new(session).chain(read), write));
        let service = TowerToHyperService::new(router);
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await;
    });
    let session = connect(ours, Duration::from_secs(30)).await.unwrap();
    (AgentMachine::new(session, None, ()), asked)
}

fn events(events: &[(&str, Value)]) -> Response {
    let text = events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect::<String>();
    Body::from(text).into_response()
}

fn refusal(status: u16, code: &str) -> Response {
    let body = json!({"code": code, "message": "Do it otherwise."}).to_string();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

fn program() -> Run {
    let argv = vec!["sh".to_owned(), "-c".into(), "x".into()];
    let env = Arc::new(BTreeMap::from([("A".to_owned(), "1".to_owned())]));
    Run { argv, env, cwd: "/w".into(), user: Some("app".into()), network: false }
}

async fn run(machine: &mut AgentMachine) -> (Vec<String>, Result<berth_domain::agent::runtime::Exit, BuildError>) {
    let mut lines = Vec::new();
    let exit = machine.run(&program(), Duration::from_secs(5), &mut |line| lines.push(line.to_owned())).await;
    (lines, exit)
}

#[tokio::test]
async fn archives_and_questions_are_passed_on() {
    let (mut machine, asked) = machine(|target| match target {
        "/control/stat?path=%2Fa" => Body::from(r#"{"directory": true}"#).into_response(),
        "/control/stat?path=%2Fb" => refusal(404, "not_found"),
        "/control/pack" => Body::from("packed").into_response(),
        _ => Body::from(r#"{"entries": 1, "skipped": 0}"#).into_response(),
    })
    .await;
    let tar = || futures::stream::iter([Ok("some".into()), Ok(" bytes".into())]).boxed();
    machine.unpack(tar(), Unpack::default()).await.unwrap();
    let how = Unpack { path: Some("/x y".into()), keep: true, owner: Some("a:b".into()), mode: Some(0o755) };
    machine.unpack(tar(), how).await.unwrap();
    assert_eq!((machine.is_directory("/a").await.unwrap(), machine.is_directory("/b").await.unwrap()), (true, false));
    let packed = machine.pack(Pack { sources: vec!["s".into()], to: "/t".into(), into: true }).await.unwrap();
    let packed: Vec<bytes::Bytes> = packed.try_collect().await.unwrap();
    assert_eq!(packed.concat(), b"packed");
    let asked = asked.lock().unwrap().clone();
    let bytes = "some bytes".to_owned();
    assert_eq!(asked[0], ("/control/unpack?path=%2F".to_owned(), bytes.clone()));
    assert_eq!(asked[1], ("/control/unpack?path=%2Fx+y&keep=true&owner=a%3Ab&mode=0755".to_owned(), bytes));
    assert_eq!(asked[4], ("/control/pack".to_owned(), r#"{"sources":["s"],"to":"/t","into":true}"#.to_owned()));
}

#[tokio::test]
async fn a_programs_lines_are_told_as_they_are() {
    let (mut machine, asked) = machine(|_| {
        events(&[
            ("start", json!({"pid": 7})),
            ("stdout", json!({"line": "one", "offset": 0})),
            ("stderr", json!({"line": "half", "offset": 4, "partial": true})),
            ("stderr", json!({"line": " and half", "offset": 8})),
            ("stdout", json!({"base64": "/2E=", "offset": 18})),
            ("truncated", json!({"from": 30})),
            ("stdout", json!({"line": "no newline", "offset": 30, "partial": true})),
            ("exit", json!({"code": 3, "signal": null, "timed_out": false})),
        ])
    })
    .await;
    let (lines, exit) = run(&mut machine).await;
    assert_eq!(exit.unwrap().code, Some(3));
    assert_eq!(lines[..3], ["one", "half and half", "\u{fffd}a"]);
    assert!(lines[3].contains("lost") && lines[4] == "no newline" && lines.len() == 5, "{lines:?}");
    let body: Value = serde_json::from_str(&asked.lock().unwrap()[0].1).unwrap();
    let expected = json!({"argv": ["sh", "-c", "x"], "env": {"A": "1"}, "cwd": "/w", "user": "app", "network": false,
        "timeout_seconds": 5});
    assert_eq!(body, expected);
}

#[tokio::test]
async fn an_agent_that_refuses_breaks_off_or_lies_is_told_apart() {
    let (mut full, _) = machine(|_| refusal(507, "no_space")).await;
    let unpacked = full.unpack(futures::stream::empty().boxed(), Unpack::default()).await.unwrap_err();
    assert!(unpacked.to_string().contains("disk_gb") && !unpacked.is_transient(), "{unpacked}");
    let (_, refused) = run(&mut full).await;
    assert!(!refused.unwrap_err().is_transient());
    let (mut cut, _) = machine(|_| events(&[("start", json!({"pid": 7}))])).await;
    assert!(run(&mut cut).await.1.unwrap_err().is_transient());
    let (mut lying, _) = machine(|_| events(&[("exit", json!("what"))])).await;
    assert!(run(&mut lying).await.1.is_err());
    let (mut endless, _) = machine(|_| Body::from(vec![b'x'; 3 << 20]).into_response()).await;
    assert!(run(&mut endless).await.1.is_err());
    assert!(endless.unpack(futures::stream::empty().boxed(), Unpack::default()).await.is_err());
    assert!(endless.is_directory("/").await.is_err());
}
