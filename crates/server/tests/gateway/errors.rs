//! What is refused before an upstream is asked: every error below `/v1` has OpenAI's envelope.

use berth_testkit::{Script, Upstream};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, Gateway, Reply, ask, ask_stream, tiny, within};

fn kind(reply: &Reply) -> String {
    reply.json()["error"]["type"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_and_methods() {
    let gateway = Gateway::with(Vec::new()).await;
    for path in ["/v1/nothing", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/x"] {
        let reply = gateway.send(gateway.bare(Method::GET, path)).await;
        reply.refused(404, "not_found");
        assert_eq!(kind(&reply), "invalid_request_error");
    }
    // Route and method come before the credential.
    for (method, path, allowed) in [
        (Method::GET, CHAT, "POST"),
        (Method::DELETE, "/v1/models", "GET"),
        (Method::POST, "/v1/models/tiny", "GET"),
        (Method::PUT, "/v1/audio/speech", "POST"),
        (Method::GET, "/v1/embeddings", "POST"),
        (Method::GET, "/v1/completions", "POST"),
    ] {
        let reply = gateway.send(gateway.bare(method, path)).await;
        reply.refused(405, "method_not_allowed");
        assert!(reply.header("allow").is_some_and(|all| all.contains(allowed)), "{path}: {reply:?}");
    }
    // What is not below /v1 keeps its own envelope.
    let reply = gateway.send(gateway.bare(Method::GET, "/v1x")).await;
    assert_eq!((reply.status, reply.json()["code"].as_str()), (404, Some("not_found")));
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for (method, path) in [(Method::POST, CHAT), (Method::GET, "/v1/models"), (Method::POST, "/v1/audio/speech")] {
        let none = gateway.send(gateway.bare(method.clone(), path).body("not even JSON")).await;
        none.refused(401, "invalid_api_key");
        assert_eq!(kind(&none), "authentication_error");
        assert_eq!(none.header("www-authenticate"), Some("Bearer"));
        for bad in ["", "sk-other", "brt_x_y", &gateway.key[..gateway.key.len() - 1]] {
            let request = gateway.bare(method.clone(), path).bearer_auth(bad);
            gateway.send(request).await.refused(401, "invalid_api_key");
        }
    }
    let made = gateway.platform.admin.post("/api_keys", json!({"name": "vm", "scopes": ["vm", "sandbox"]})).await;
    let other = made.body["key"].as_str().expect("a key");
    for (method, path) in [(Method::POST, CHAT), (Method::GET, "/v1/models"), (Method::POST, "/v1/audio/speech")] {
        let reply = gateway.send(gateway.bare(method, path).bearer_auth(other).body("not even JSON")).await;
        reply.refused(403, "missing_scope");
        assert_eq!(kind(&reply), "permission_error");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_ends_at_once() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    assert_eq!(gateway.chat(&ask("hi")).await.status, 200);
    let admin = &gateway.platform.admin;
    let id = admin.get("/api_keys").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(admin.delete(&format!("/api_keys/{id}")).await.status, 204);
    gateway.chat(&ask("hi")).await.refused(401, "invalid_api_key");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_no_json() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for kind in ["text/plain", "multipart/form-data; boundary=x", ""] {
        let request = gateway.request(Method::POST, CHAT).header("content-type", kind).body(ask("hi").to_string());
        gateway.send(request).await.refused(415, "unsupported_media_type");
    }
    let request = gateway.request(Method::POST, CHAT).body(ask("hi").to_string());
    gateway.send(request).await.refused(415, "unsupported_media_type");
    let good = ask("hi").to_string();
    let deep = [vec![b'['; 5000], vec![b']'; 5000]].concat();
    for bad in [
        b"".to_vec(),
        b"{".to_vec(),
        b"[]".to_vec(),
        b"\"tiny\"".to_vec(),
        b"\xff\xfe".to_vec(),
        deep,
        format!("{good} {good}").into_bytes(),
        good.replacen('{', "{\"model\":\"other\",", 1).into_bytes(),
        good.replacen("\"role\"", "\"role\":\"user\",\"role\"", 1).into_bytes(),
    ] {
        let shown = String::from_utf8_lossy(&bad[..bad.len().min(80)]).into_owned();
        let reply = gateway.post(CHAT, bad).await;
        assert_eq!(reply.status, 400, "{shown}: {}", reply.text());
        reply.refused(400, "invalid_request");
    }
    let request = gateway.request(Method::POST, CHAT).header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(gateway.send(request.body(good)).await.status, 200);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_named() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let with = |key: &str, value: Value| {
        let mut body = ask("hi");
        body[key] = value;
        body
    };
    for (key, bad) in [
        ("model", json!(5)),
        ("model", json!("")),
        ("model", Value::Null),
        ("model", json!("x".repeat(201))),
        ("messages", json!([])),
        ("messages", json!("hi")),
        ("messages", Value::Null),
        ("stream", json!("true")),
        ("stream_options", json!(true)),
    ] {
        let reply = gateway.chat(&with(key, bad.clone())).await;
        reply.refused(400, "invalid_request");
        assert_eq!(reply.json()["error"]["param"], key, "{bad}: {}", reply.text());
        assert_eq!(kind(&reply), "invalid_request_error");
    }
    let reply = gateway.chat(&json!({"stream": 1})).await;
    let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
    for field in ["model", "messages", "stream"] {
        assert!(message.contains(field), "every invalid field is named: {message}");
    }
    assert_eq!(upstream.count(), 0);
    // What is null is absent.
    assert_eq!(gateway.chat(&with("stream", Value::Null)).await.status, 200);
    assert_eq!(gateway.chat(&with("stream_options", Value::Null)).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn models_that_are_not_there() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for name in ["other", "TINY", "upstream-tiny", "../tiny", "tiny/"] {
        for mut body in [ask("hi"), ask_stream("hi")] {
            body["model"] = json!(name);
            let reply = gateway.chat(&body).await;
            reply.refused(404, "model_not_found");
            assert_eq!(kind(&reply), "invalid_request_error");
            assert!(reply.text().contains(name), "{}", reply.text());
        }
    }
    assert_eq!(upstream.count(), 0);
    let fresh = Gateway::with(Vec::new()).await;
    let reply = fresh.chat(&ask("hi")).await;
    reply.refused(404, "model_not_found");
    assert!(reply.text().contains("berth model"), "it says what to do: {}", reply.text());
}

/// Sends bytes over a bare connection, and answers all that comes back, whether or not the request was read.
async fn raw(gateway: &Gateway, request: Vec<u8>) -> String {
    let address = gateway.platform.admin.base.strip_prefix("http://").expect("an address").to_owned();
    let (mut reader, mut writer) = TcpStream::connect(address).await.expect("a connection").into_split();
    let sending = tokio::spawn(async move {
        // The service need not read to the end what it refuses.
        let _ = writer.write_all(&request).await;
        writer
    });
    let mut answer = Vec::new();
    let _ = within(reader.read_to_end(&mut answer)).await;
    sending.abort();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_above_32_mib_is_too_large() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: berth\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
         content-type: application/json\r\n",
        gateway.key
    );
    let size = (32 << 20) + 1;
    let body = ask(&"a".repeat(size - ask("").to_string().len())).to_string();
    let told = format!("{head}content-length: {size}\r\n\r\n{body}");
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n{size:x}\r\n{body}\r\n0\r\n\r\n");
    for request in [told, chunked] {
        let answer = raw(&gateway, request.into_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("\"payload_too_large\"") && answer.contains("{\"error\":"), "{answer}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_upstream_refuses_is_the_callers_to_read() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over_twice(&upstream, json!({})).await;
    let body = concat!(
        r#"{"error": {"message": "'messages[0]' is odd", "type":"invalid_request_error","#,
        r#""param":"messages","code":null} }"#,
    );
    for (asked, status) in [400, 404, 409, 413, 415, 422, 418, 451].into_iter().enumerate() {
        for (streamed, request) in [(1, ask("hi")), (2, ask_stream("hi"))] {
            upstream.then(Script::json(status, body));
            let reply = gateway.chat(&request).await;
            assert_eq!((reply.status, reply.text().as_str()), (status, body));
            assert!(reply.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
            assert_eq!(upstream.count(), asked * 2 + streamed, "nobody else is asked");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_every_make_get_one_envelope() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for (body, told) in [
        (r#"{"error": "too long"}"#, Some("too long")),
        (r#"{"message": "too long"}"#, Some("too long")),
        (r#"{"detail": "too long"}"#, Some("too long")),
        (r#"{"detail": [{"msg": "too long", "loc": ["body", "messages"]}]}"#, Some("too long")),
        (
            r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#,
            Some("too long"),
        ),
        ("<html>too long</html>", None),
        ("too long", None),
        ("", None),
    ] {
        upstream.then(Script::json(422, body));
        let reply = gateway.chat(&ask("hi")).await;
        assert_eq!(reply.status, 422, "{body}");
        reply.is_refusal();
        assert!(!reply.text().contains('<'), "{}", reply.text());
        if let Some(told) = told {
            let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains(told), "{body}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_fold_to_one_that_matters_are_refused() {
    let upstream = Upstream::start().await;
    let gateway = Gateway::over(&upstream).await;
    for (key, value) in [("MODEL", json!("big")), ("Max_Tokens", json!(1)), ("me\u{17f}sages", json!([1]))] {
        let mut body = ask("hi");
        body[key] = value;
        let reply = gateway.chat(&body).await;
        reply.refused(400, "invalid_request");
        assert_eq!(reply.json()["error"]["param"], key);
    }
    assert_eq!(upstream.count(), 0);
    let mut body = ask("hi");
    body["Temperature"] = json!(1);
    assert_eq!(gateway.chat(&body).await.status, 200, "what means nothing here is the upstream's to judge");
    assert_eq!(upstream.last().json(), {
        body["model"] = json!("upstream-tiny");
        body
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_that_a_model_does_not_take_are_named() {
    let (strict, open) = (Upstream::start().await, Upstream::start().await);
    let models = vec![
        tiny(&[strict.url()], json!({"deny_fields": ["models", "plugins"]})),
        tiny(&[open.url()], json!({"id": "open", "fallbacks": ["tiny"]})),
    ];
    let gateway = Gateway::with(models).await;
    let mut body = ask("hi");
    body["Plugins"] = json!([]);
    for path in [CHAT, "/v1/audio/speech"] {
        let mut body = body.clone();
        (body["input"], body["voice"]) = (json!("Hello."), json!("alloy"));
        let reply = gateway.post(path, body.to_string()).await;
        reply.refused(400, "invalid_request");
        assert_eq!(reply.json()["error"]["param"], "Plugins", "{path}");
    }
    // Another model takes it, and does not pass it on to one that does not.
    body["model"] = json!("open");
    assert_eq!(gateway.chat(&body).await.status, 200);
    open.always(Script::html(500));
    gateway.chat(&body).await.refused(502, "upstream_error");
    assert_eq!(strict.count(), 0);
    body.as_object_mut().expect("an object").remove("Plugins");
    assert_eq!((gateway.chat(&body).await.status, strict.count()), (200, 1));
}
