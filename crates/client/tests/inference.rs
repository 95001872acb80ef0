//! Models, answers, speech and usage, against a fake service that answers as a test wants.

#![expect(clippy::expect_used, reason = "a test may end with a panic")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use berth_client::{ChatChunk, Client, Error, NewModel, NewModelUpstream, Page, Speech, Tokens};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};

/// One answer.
enum Say {
    /// These bytes, then a proper end.
    Bytes(&'static str),
    /// These bytes, then the connection breaks.
    Break(&'static str),
    /// A status and a JSON body.
    Json(u16, Value),
}

/// A received request.
#[derive(Clone, Debug)]
struct Asked {
    line: String,
    token: Option<String>,
    project: Option<String>,
    body: Value,
}

/// The answers to give, and the requests that came.
#[derive(Clone)]
struct Script {
    answers: Arc<Mutex<VecDeque<Say>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Script {
    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("a list").clone()
    }
}

async fn answer(State(script): State<Script>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().expect("text").to_owned());
    let body = to_bytes(body, 1 << 20).await.expect("a body");
    let line = format!("{} {}", parts.method, parts.uri.path_and_query().expect("a path"));
    let refreshes = line.ends_with("/auth/refresh");
    script.asked.lock().expect("a list").push(Asked {
        line,
        token: header("authorization"),
        project: header("x-project-id"),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    });
    if refreshes {
        return Json(json!({"access_token": "second", "refresh_token": "more"})).into_response();
    }
    let next = script.answers.lock().expect("a list").pop_front().expect("no more is asked");
    let (bytes, breaks) = match next {
        Say::Bytes(bytes) => (bytes, false),
        Say::Break(bytes) => (bytes, true),
        Say::Json(204, _) => return StatusCode::NO_CONTENT.into_response(),
        Say::Json(status, body) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, [("x-request-id", "r1"), ("retry-after", "3")], Json(body)).into_response();
        }
    };
    let whole = futures::stream::iter([Ok(bytes.to_owned())]);
    // By then, the earlier bytes are on their way.
    let end = futures::stream::iter(breaks.then_some(())).then(|()| async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    });
    (
        [(header::CONTENT_TYPE, "text/event-stream"), (header::HeaderName::from_static("x-request-id"), "r2")],
        Body::from_stream(whole.chain(end)),
    )
        .into_response()
}

async fn service(answers: Vec<Say>) -> (Client, Script) {
    let script = Script { answers: Arc::new(Mutex::new(answers.into())), asked: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(answer).with_state(script.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let tokens = Tokens { access_token: "first".into(), refresh_token: "more".into() };
    (Client::new(&base).expect("a client").with_tokens(tokens), script)
}

/// The text of a model, and whether it is complete.
async fn told(answer: Say) -> (String, Result<(), Error>) {
    let (client, script) = service(vec![answer]).await;
    let request = json!({"model": "acme/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let mut stream = client.inference(Some("web")).chat_stream(&request).await.expect("a stream");
    let asked = script.asked();
    assert_eq!(asked[0].line, "POST /v1/chat/completions");
    assert_eq!((asked[0].project.as_deref(), &asked[0].body["stream"]), (Some("web"), &json!(true)));
    assert_eq!(asked[0].body["messages"], request["messages"]);
    let mut text = String::new();
    loop {
        match stream.next().await {
            None => return (text, Ok(())),
            Some(Ok(chunk)) => text.push_str(ChatChunk::text(&chunk)),
            Some(Err(error)) => return (text, Err(error)),
        }
    }
}

const HALF: &str = ": keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"hé\"}}]}\r\n\r\n";

#[tokio::test]
async fn an_answer_is_whole_only_with_its_last_event() {
    let whole = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[]}\n\ndata: [DONE]\n\n";
    let (text, end) = told(Say::Bytes(whole)).await;
    assert!(end.is_ok());
    assert_eq!(text, "a");
    for answer in [Say::Bytes(HALF), Say::Break(HALF), Say::Bytes("data: {\"choices\":[{\"del")] {
        let (text, end) = told(answer).await;
        assert!(text == "hé" || text.is_empty());
        assert!(end.expect_err("no end").to_string().contains("broke off"));
    }
}

#[tokio::test]
async fn an_error_may_come_as_an_event() {
    let failing = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
                   data: {\"error\":{\"message\":\"gone\",\"type\":\"api_error\",\"code\":\"upstream_error\"}}\n\n";
    let (text, end) = told(Say::Bytes(failing)).await;
    assert_eq!(text, "a");
    let error = end.expect_err("an error");
    assert_eq!((error.status(), error.code()), (Some(502), Some("upstream_error")));
    assert_eq!(error.to_string(), "gone");
    assert!(matches!(error, Error::Api { request_id, .. } if request_id == "r2"));
}

#[tokio::test]
async fn refusals_have_the_form_of_openai() {
    let refusal =
        json!({"error": {"message": "slow down", "type": "rate_limit_error", "param": "n", "code": "rate_limited"}});
    let (client, _) = service(vec![Say::Json(429, refusal)]).await;
    let error = client.inference(None).models().await.expect_err("a refusal");
    assert_eq!(
        (error.status(), error.code(), error.to_string().as_str()),
        (Some(429), Some("rate_limited"), "slow down")
    );
    let named = |error: &Error| match error {
        Error::Api { details, retry_after, request_id, .. } => {
            Some((details[0].field.clone(), *retry_after, request_id.clone()))
        }
        _ => None,
    };
    assert_eq!(named(&error), Some(("n".into(), Some(3), "r1".into())));
}

#[tokio::test]
async fn a_token_that_ended_is_renewed_for_models_too() {
    let over =
        json!({"error": {"message": "over", "type": "authentication_error", "param": null, "code": "invalid_api_key"}});
    let models = json!({"object": "list", "data": [{"id": "acme/tiny", "object": "model"}]});
    let (client, script) = service(vec![Say::Json(401, over.clone()), Say::Json(200, models.clone())]).await;
    let found = client.inference(Some("web")).models().await.expect("models");
    assert_eq!(found.data[0].id, "acme/tiny");
    assert_eq!(serde_json::to_value(&found).expect("JSON"), models);
    let asked = script.asked();
    assert_eq!(asked.last().expect("a request").token.as_deref(), Some("Bearer second"));
    assert!(asked.iter().filter(|asked| asked.line == "GET /v1/models").all(|asked| asked.project.is_some()));
    // A key is never renewed, and the client sends no project with it.
    let (client, script) = service(vec![Say::Json(401, over)]).await;
    let error = client.with_api_key("brt_k".into()).inference(None).models().await.expect_err("a refusal");
    assert_eq!(error.code(), Some("invalid_api_key"));
    assert_eq!((script.asked().len(), script.asked()[0].project.as_deref()), (1, None));
}

#[tokio::test]
async fn administrators_manage_models_whose_names_have_slashes() {
    let model = json!({
        "id": "acme/tiny", "aliases": [], "strategy": "weighted", "source": "api", "max_queue": 100,
        "upstreams": [{"url": "http://h/v1", "gguf": null, "model": "t", "weight": 1, "max_concurrency": null,
            "in_flight": 0, "breaker": "closed", "ready": true, "api_key_env": null}],
    });
    let page = json!({"total_items": 1, "total_pages": 1, "current_page": 1, "items_per_page": 100});
    let list = json!({"data": [model], "pagination": page});
    let answers = [(201, &model), (200, &model), (200, &model), (200, &list), (204, &Value::Null)];
    let answers = answers.map(|(status, body)| Say::Json(status, body.clone()));
    let (client, script) = service(answers.into()).await;
    let upstream = NewModelUpstream { url: Some("http://h/v1".into()), ..NewModelUpstream::default() };
    let new = NewModel { id: "acme/tiny".into(), upstreams: vec![upstream], ..NewModel::default() };
    let made = client.create_model(&new).await.expect("a model");
    assert_eq!(serde_json::to_value(&made).expect("JSON"), model);
    client.replace_model(&new).await.expect("a model");
    assert!(client.admin_model("acme/tiny").await.expect("a model").upstreams[0].ready);
    assert_eq!(client.admin_models(Page::default()).await.expect("models").data.len(), 1);
    client.delete_model("acme/tiny").await.expect("nothing");
    let asked = script.asked();
    let lines: Vec<_> = asked.iter().map(|asked| asked.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "POST /api/v1/admin/models",
            "PUT /api/v1/admin/models/acme%2Ftiny",
            "GET /api/v1/admin/models/acme%2Ftiny",
            "GET /api/v1/admin/models?limit=100&page=1",
            "DELETE /api/v1/admin/models/acme%2Ftiny",
        ]
    );
    // The service has defaults for absent fields.
    assert_eq!(asked[0].body, json!({"id": "acme/tiny", "upstreams": [{"url": "http://h/v1"}]}));
}

#[tokio::test]
async fn a_sound_is_whole_or_an_error() {
    let (client, script) = service(vec![Say::Bytes("abc"), Say::Break("ab")]).await;
    let inference = client.inference(Some("web"));
    let speech = Speech {
        model: "tts-1".into(),
        input: "hi".into(),
        voice: "alloy".into(),
        response_format: "wav".into(),
        speed: 1.0,
    };
    let whole: Vec<_> = inference.speak(&speech).await.expect("a sound").try_collect().await.expect("all of it");
    assert_eq!(whole.iter().flatten().copied().collect::<Vec<u8>>(), b"abc");
    let broken: Result<Vec<_>, _> = inference.speak(&speech).await.expect("a sound").try_collect().await;
    assert!(broken.expect_err("no end").to_string().contains("broke off"));
    assert_eq!(
        script.asked()[0].body,
        json!({"model": "tts-1", "input": "hi", "voice": "alloy", "response_format": "wav", "speed": 1.0})
    );
}

#[tokio::test]
async fn usage_is_asked_for_with_a_window() {
    let usage = json!({"window": "24h", "resolution": "1h", "data": [
        {"time": "2030-01-31T12:00:00Z", "group": "acme/tiny", "requests": 2, "prompt_tokens": 10,
         "completion_tokens": 5, "cost": 0.5, "estimated": true},
    ]});
    let (client, script) = service(vec![Say::Json(200, usage.clone()), Say::Json(200, usage)]).await;
    let project = client.project("o", "p");
    let found = project.usage("24h", "1h", Some("model")).await.expect("usage");
    assert_eq!((found.data[0].requests, found.data[0].group.as_deref()), (2, Some("acme/tiny")));
    project.usage("24h", "1h", None).await.expect("usage");
    let asked = script.asked();
    assert_eq!(asked[0].line, "GET /api/v1/orgs/o/projects/p/usage?group_by=model&resolution=1h&window=24h");
    assert_eq!(asked[1].line, "GET /api/v1/orgs/o/projects/p/usage?resolution=1h&window=24h");
}
