//! Follows a program over connections that break, against a fake service that answers as a test wants.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use berth_client::{Client, CommandRequest, Error, Form, OutputEvent, Runtime, Sandbox, Tokens, output_bytes};
use futures::StreamExt;
use serde_json::json;

/// One answer.
enum Say {
    /// These events, then the connection breaks.
    Break(&'static str),
    /// These events, then a proper end.
    Events(&'static str),
    /// A refusal.
    Refuse(u16, &'static str),
}

/// The answers to give, and the requests that came.
#[derive(Clone)]
struct Script {
    answers: Arc<Mutex<VecDeque<Say>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let path = request.uri().path_and_query().expect("a path").to_string();
    let token = request.headers().get(header::AUTHORIZATION).map(|v| v.to_str().expect("text").to_owned());
    script.asked.lock().expect("a list").push(format!("{} {}", path, token.unwrap_or_default()));
    if path == "/api/v1/auth/refresh" {
        return Json(json!({"access_token": "second", "refresh_token": "more"})).into_response();
    }
    let next = script.answers.lock().expect("a list").pop_front().expect("no more is asked");
    let (events, breaks) = match next {
        Say::Break(events) => (events, true),
        Say::Events(events) => (events, false),
        Say::Refuse(status, code) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, Json(json!({"code": code, "message": "no"}))).into_response();
        }
    };
    let whole = futures::stream::iter([Ok(events.to_owned())]);
    // By then, the earlier bytes are on their way.
    let end = futures::stream::iter(breaks.then_some(())).then(|()| async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(whole.chain(end))).into_response()
}

async fn service(answers: Vec<Say>) -> (Runtime, Script) {
    let script = Script { answers: Arc::new(Mutex::new(answers.into())), asked: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(answer).with_state(script.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let tokens = Tokens { access_token: "first".into(), refresh_token: "more".into() };
    let sandbox: Sandbox = serde_json::from_value(json!({
        "id": "7", "phase": "Ready", "connect_url": "https://elsewhere.example.org/sandbox/7",
        "created_at": "", "updated_at": "",
    }))
    .expect("a sandbox");
    let client = Client::new(&base).expect("a client").with_tokens(tokens);
    (client.project("o", "p").runtime(&sandbox).expect("its inside"), script)
}

/// The output of a command and its end, or why the end is not known.
async fn followed(answers: Vec<Say>) -> (Result<(String, Option<OutputEvent>), Error>, Vec<String>) {
    let (runtime, script) = service(answers).await;
    let followed = async {
        let mut execution =
            runtime.command(&CommandRequest { detach: true, ..CommandRequest::default() }, Form::Lines).await?;
        let (mut text, mut last) = (String::new(), None);
        while let Some(event) = execution.next().await? {
            match &event {
                OutputEvent::Output { output, .. } => {
                    text.push_str(&String::from_utf8_lossy(&output_bytes(output)?));
                }
                event if event.is_last() => last = Some(event.clone()),
                _ => {}
            }
        }
        Ok((text, last))
    };
    let followed = followed.await;
    let asked = script.asked.lock().expect("a list").clone();
    (followed, asked)
}

const START: &str = "event: start\ndata: {\"pid\":5}\n\nevent: stdout\ndata: {\"line\":\"ab\",\"offset\":0}\n\n";

#[tokio::test]
async fn reading_goes_on_at_the_offset_where_it_broke() {
    let (followed, asked) = followed(vec![
        Say::Break(START),
        Say::Refuse(503, "unavailable"),
        Say::Break("event: stderr\ndata: {\"line\":\"c\",\"offset\":3,\"partial\":true}\n\nevent: stdout\ndata: {\"li"),
        Say::Events("event: stdout\ndata: {\"base64\":\"ZA==\",\"offset\":4}\n\n"),
        Say::Events(": keep-alive\n\nevent: later\ndata: ?\n\nevent: exit\ndata: {\"code\":3,\"signal\":null,\"timed_out\":false}\n\n"),
    ])
    .await;
    let (text, last) = followed.expect("an end");
    assert_eq!(text, "ab\ncd\n");
    assert!(matches!(last, Some(OutputEvent::Exit(exit)) if exit.code == Some(3)));
    let paths: Vec<_> = asked.iter().map(|line| line.split(' ').next().expect("a path")).collect();
    let logs = |offset: u64| format!("/sandbox/7/processes/5/logs?follow=true&offset={offset}&hold=false");
    assert_eq!(paths, ["/sandbox/7/commands", &logs(3), &logs(3), &logs(4), &logs(6)]);
}

#[tokio::test]
async fn a_token_that_ends_is_renewed_on_the_way() {
    let over = "event: error\ndata: {\"code\":\"unauthorized\",\"message\":\"over\"}\n\n";
    let end = "event: exit\ndata: {\"code\":0,\"signal\":null,\"timed_out\":false}\n\n";
    let first =
        "event: start\ndata: {\"pid\":5}\n\nevent: error\ndata: {\"code\":\"unauthorized\",\"message\":\"over\"}\n\n";
    let (renewed, asked) = followed(vec![Say::Events(first), Say::Refuse(401, "unauthorized"), Say::Events(end)]).await;
    assert!(matches!(renewed.expect("an end").1, Some(OutputEvent::Exit(_))));
    assert!(asked.last().expect("a request").ends_with("Bearer second"), "{asked:?}");
    // A client that may not read any more gets an error, and does not try for ever.
    let (refused, asked) = followed(vec![Say::Events(first), Say::Events(over)]).await;
    assert!(matches!(refused.expect("an end").1, Some(OutputEvent::Error { code, .. }) if code == "unauthorized"));
    assert_eq!(asked.len(), 2);
}

#[tokio::test]
async fn what_cannot_be_known_is_an_error() {
    let gone = followed(vec![Say::Break(START), Say::Refuse(404, "not_found")]).await.0;
    assert_eq!(gone.expect_err("no end").code(), Some("not_found"));
    let paused = followed(vec![Say::Break(START), Say::Refuse(409, "sandbox_paused")]).await.0;
    assert_eq!(paused.expect_err("no end").code(), Some("sandbox_paused"));
    let nameless = followed(vec![Say::Break(": nothing\n\n")]).await.0;
    assert!(nameless.expect_err("no end").to_string().contains("before the command was started"));
    let nonsense = followed(vec![Say::Events("event: exit\ndata: {\"code\":\"zero\"}\n\n")]).await.0;
    assert!(nonsense.expect_err("no end").to_string().contains("cannot be read"));
    let endless: &'static str = Box::leak(format!("data: {}", "x".repeat(3 << 20)).into_boxed_str());
    let endless = followed(vec![Say::Events(endless)]).await.0;
    assert!(endless.expect_err("no end").to_string().contains("no event"));
}

#[tokio::test]
async fn a_log_as_it_is_ends_where_it_ends() {
    let (runtime, script) = service(vec![Say::Events("event: stdout\ndata: {\"line\":\"x\",\"offset\":9}\n\n")]).await;
    let mut log = runtime.logs(5, 9, false, Form::Lines);
    assert!(matches!(log.next().await, Ok(Some(OutputEvent::Output { .. }))));
    assert!(matches!(log.next().await, Ok(None)));
    assert_eq!((log.offset(), script.asked.lock().expect("a list").len()), (11, 1));
}
