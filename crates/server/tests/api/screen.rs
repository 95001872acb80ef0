//! Screens: a picture, and a WebSocket onto one.

use berth_client::{Client, Tokens};
use berth_host::EngineError;
use berth_testkit::{Caller, Platform};
use reqwest::{Method, Response};

/// Asks for a WebSocket onto a screen with these subprotocols, without a header for the token.
async fn connect(caller: &Caller, vm: &str, protocols: &str) -> Response {
    let request = caller.anonymous().request(Method::GET, &format!("{}/vms/{vm}/screen/ws", caller.project));
    let request = request.header("connection", "upgrade").header("upgrade", "websocket");
    let request = request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    request.header("sec-websocket-protocol", protocols).send().await.expect("an answer")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_screen_is_seen_while_its_vm_runs() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let picture = caller.request(Method::GET, &format!("/vms/{id}/screen")).send().await.expect("an answer");
    assert_eq!(
        (picture.status().as_u16(), &picture.headers()["content-type"]),
        (200, &"image/png".parse().expect("a value"))
    );
    assert_eq!(picture.headers()["cache-control"], "no-store");
    assert!(picture.bytes().await.expect("a picture").starts_with(b"\x89PNG"));
    caller.get(&format!("/vms/{id}/screen/ws")).await.refused(400, "invalid_request");

    // What the host or the machine does not have is no mistake of the request.
    for verb in ["picture", "screen"] {
        platform.engine.refuse(verb, EngineError::Permanent("the VM has no screen; restart it first".into()));
    }
    let none = caller.get(&format!("/vms/{id}/screen")).await;
    none.refused(409, "not_supported");
    assert_eq!(none.body["message"], "The VM has no screen; restart it first.");
    let token = format!("bearer.{}", caller.token);
    assert_eq!(connect(caller, &id, &format!("binary, {token}")).await.status(), 409);
    platform.engine.refuse("screen", EngineError::NoCapacity("8 look at the screen of the VM already".into()));
    assert_eq!(connect(caller, &id, &format!("binary, {token}")).await.status(), 409);
    platform.engine.allow("screen");
    platform.engine.refuse("picture", EngineError::Transient("QEMU did not answer in time".into()));
    caller.get(&format!("/vms/{id}/screen")).await.refused(503, "service_unavailable");
    platform.engine.allow("picture");

    assert_eq!(caller.act(&format!("/vms/{id}/stop")).await.status, 202);
    caller.reaches(&id, "stopped").await;
    for path in ["screen", "screen/ws"] {
        let off = caller.get(&format!("/vms/{id}/{path}")).await;
        off.refused(400, "invalid_status");
        assert_eq!(off.body["message"], "The VM is stopped; its screen is there while it runs.");
    }
    caller.get(&format!("/vms/{id}/console/ws")).await.refused(400, "invalid_status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_has_a_place_of_a_stream_until_it_is_sent() {
    let platform = Platform::start_with(|config| {
        config.http.max_connections = Some(12);
        config.http.max_connections_per_client = Some(12);
    })
    .await;
    let (caller, engine) = (&platform.admin, &platform.engine);
    let id = caller.running_vm("web").await;
    let path = format!("/vms/{id}/screen");
    let ask = async || caller.request(Method::GET, &path).send().await.expect("an answer").status().as_u16();
    engine.hold("picture");
    let refused = async {
        // Of nine places one caller leaves as many free as it holds.
        caller.until("their places", async |_| engine.waiting() == 5).await;
        let refused = ask().await;
        engine.let_go();
        refused
    };
    assert_eq!(tokio::join!(ask(), ask(), ask(), ask(), ask(), refused), (200, 200, 200, 200, 200, 429));
    caller.until("a place", async |_| ask().await == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_speak_as_they_are_used_to() {
    let platform = Platform::start().await;
    let caller = &platform.admin;
    let id = caller.running_vm("web").await;
    let token = format!("bearer.{}", caller.token);
    for (offered, chosen) in
        [("binary", Some("binary")), ("berth", Some("berth")), ("berth, binary", Some("binary")), ("base64", None)]
    {
        let answer = connect(caller, &id, &format!("{offered}, {token}")).await;
        assert_eq!(answer.status(), 101, "{offered}");
        let protocol = answer.headers().get("sec-websocket-protocol").map(|value| value.to_str().expect("text"));
        assert_eq!(protocol, chosen, "{offered}");
    }
    assert_eq!(connect(caller, &id, "binary").await.status(), 401);

    // Two at once, each with a connection of its own.
    let tokens = Tokens { access_token: caller.token.clone(), refresh_token: String::new() };
    let names: Vec<_> = caller.project.split('/').collect();
    let client = Client::new(&caller.base).expect("a client").with_tokens(tokens).project(names[4], names[6]);
    let mut screens = [client.screen(&id).await.expect("a screen"), client.screen(&id).await.expect("a screen")];
    for (number, screen) in screens.iter_mut().enumerate() {
        let text = format!("RFB 003.00{number}\n");
        screen.write(text.as_bytes()).await.expect("bytes are taken");
        assert_eq!(screen.read().await.expect("an echo"), Some(text.into_bytes()));
    }
}
