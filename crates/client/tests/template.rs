//! Building templates, against a fake service that answers as a test wants.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use berth_client::{BuildEvent, Client, Error, ProjectClient};
use futures::StreamExt;

/// The answer to give, and the requests that came.
#[derive(Clone)]
struct Script {
    says: Arc<String>,
    asked: Arc<Mutex<Vec<String>>>,
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let asked = format!("{} {}", request.method(), request.uri());
    script.asked.lock().expect("a list").push(asked);
    ([(header::CONTENT_TYPE, "text/event-stream")], script.says.to_string()).into_response()
}

async fn service(says: String) -> (ProjectClient, Script) {
    let script = Script { says: Arc::new(says), asked: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(answer).with_state(script.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (Client::new(&base).expect("a client").project("o", "p"), script)
}

async fn told(says: String) -> Vec<Result<BuildEvent, Error>> {
    let (project, _) = service(says).await;
    project.build_log("t", 0, true).await.expect("a stream").collect().await
}

/// An event with so many lines, in the service's form.
fn log(lines: usize) -> (String, BuildEvent) {
    let event = BuildEvent::Log { text: "\"\n".repeat(lines), offset: 2 * lines as u64 };
    (format!("event: log\ndata: {}\n\n", serde_json::to_string(&event).expect("JSON")), event)
}

#[tokio::test]
async fn a_whole_log_comes_at_once_and_no_more() {
    // A log has at most a MiB, and each of these bytes takes two in JSON.
    let (text, event) = log(512 * 1024);
    let end = "event: end\ndata: {\"status\":\"failed\",\"message\":\"line 2\",\"later\":1}\n\n";
    let told_well = told(text + ": still there\n\n" + end).await;
    let read = told_well.into_iter().map(|event| event.expect("an event")).collect::<Vec<_>>();
    assert_eq!(read, [event, BuildEvent::End { status: "failed".into(), message: Some("line 2".into()) }]);
    let endless = told(log(1024 * 1024).0).await;
    assert!(matches!(endless.as_slice(), [Err(Error::Protocol(why))] if why.contains("a line of more than")));
    for nonsense in ["event: log\ndata: {}\n\n", "event: end\ndata: ?\n\n", "event: error\ndata: {}\n\n"] {
        assert!(matches!(told(nonsense.into()).await.as_slice(), [Err(Error::Protocol(_))]), "{nonsense}");
    }
}

#[test]
fn events_are_json_that_says_which_they_are() {
    let json = |event: BuildEvent| serde_json::to_string(&event).expect("JSON");
    let log = BuildEvent::Log { text: "a\n".into(), offset: 2 };
    assert_eq!(json(log), r#"{"event":"log","text":"a\n","offset":2}"#);
    let end = BuildEvent::End { status: "ready".into(), message: None };
    assert_eq!(json(end), r#"{"event":"end","status":"ready","message":null}"#);
}

#[tokio::test]
async fn an_upload_is_removed_by_its_id() {
    let (project, script) = service(String::new()).await;
    project.delete_upload("a/b").await.expect("an answer");
    assert_eq!(*script.asked.lock().expect("a list"), ["DELETE /api/v1/orgs/o/projects/p/sandbox_uploads/a%2Fb"]);
}
