//! What goes through, and what a standby says where nothing does.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::world::{World, client, name, nowhere, read, until};
use crate::http::pass_on::Active;

const CHUNKED: &str = "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n";

#[tokio::test]
async fn a_request_goes_as_it_came_and_so_does_its_answer() {
    let (world, _replica) = World::with_active().await;
    let target = "/echo/a%2Fb//c?x=1&y=%20&x=2";
    let request = client().put(world.url(target)).header("host", "api.example.com").header("authorization", "Bearer t");
    let request = request.header("x-request-id", "r-1").header("x-own", "1").header("connection", "x-own");
    let request = request.header("te", "trailers").header("x-forwarded-proto", "https").body(vec![b'x'; 3 << 20]);
    let (status, headers, told) = read(request).await;
    assert_eq!(status, 201, "{told}");
    assert_eq!((&told["method"], &told["target"], &told["bytes"]), (&json!("PUT"), &json!(target), &json!(3 << 20)));
    let said = told["headers"].as_object().unwrap();
    for (name, value) in [
        ("host", "api.example.com"),
        ("authorization", "Bearer t"),
        ("x-request-id", "r-1"),
        ("x-forwarded-proto", "https"),
        ("content-length", "3145728"),
    ] {
        assert_eq!(said.get(name), Some(&json!(value)), "{name}: {told}");
    }
    for name in ["x-own", "connection", "te", "transfer-encoding", "berth-passed-on"] {
        assert!(!said.contains_key(name), "{name}: {told}");
    }
    assert_eq!(headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(headers["x-request-id"], "r-1");
    assert!(!headers.contains_key("x-own") && !headers.contains_key("keep-alive"), "{headers:?}");
    // What the active replica refuses stays as it said it.
    let (status, headers, told) = read(client().get(world.url("/api/v1/nothing"))).await;
    assert_eq!((status, told["code"].as_str()), (404, Some("not_found")), "{told}");
    assert_eq!(headers.get_all("x-request-id").iter().count(), 1);
}

#[tokio::test]
async fn an_id_that_a_standby_gives_a_request_is_the_active_one_s_too() {
    let (world, _replica) = World::with_active().await;
    let (_, headers, told) = world.asked([127, 0, 0, 1], "/echo/x", &[]).await;
    assert_eq!(told["headers"]["x-request-id"].as_str(), headers["x-request-id"].to_str().ok());
}

#[tokio::test]
async fn an_answer_arrives_while_it_goes_on() {
    let (world, replica) = World::with_active().await;
    let mut stream = world.connection("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").await;
    for piece in ["first", "second", "third"] {
        replica.wires.say.send(piece).unwrap();
        until(&mut stream, piece).await;
    }
}

#[tokio::test]
async fn a_body_arrives_while_it_goes_on() {
    let (world, mut replica) = World::with_active().await;
    // Whatever the method, also where most requests have none.
    for method in ["PUT", "GET"] {
        let mut stream = world.connection(&format!("{method} /upload HTTP/1.1\r\n{CHUNKED}")).await;
        for piece in ["first", "other"] {
            stream.write_all(format!("5\r\n{piece}\r\n").as_bytes()).await.unwrap();
            assert_eq!(replica.wires.heard.recv().await.as_deref(), Some(piece));
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        until(&mut stream, "HTTP/1.1 204").await;
    }
}

#[tokio::test]
async fn a_connection_that_leaves_http_is_joined() {
    let (world, mut replica) = World::with_active().await;
    let ask = "GET /shout HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: shout\r\n\r\n";
    let mut stream = world.connection(ask).await;
    let head = until(&mut stream, "\r\n\r\n").await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: shout\r\n"), "{head}");
    for (said, heard) in [("one", "ONE"), ("two\0\u{e4}", "TWO\0\u{e4}")] {
        stream.write_all(said.as_bytes()).await.unwrap();
        until(&mut stream, heard).await;
    }
    drop(stream);
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("left"));
}

#[tokio::test]
async fn who_leaves_ends_what_they_asked_for() {
    let (world, mut replica) = World::with_active().await;
    let waiting = world.connection("POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("waits"));
    drop(waiting);
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("left"));

    let mut reading = world.connection("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").await;
    replica.wires.say.send("first").unwrap();
    until(&mut reading, "first").await;
    drop(reading);
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("left"));

    let mut sending = world.connection(&format!("PUT /upload HTTP/1.1\r\n{CHUNKED}")).await;
    sending.write_all(b"5\r\nfirst\r\n").await.unwrap();
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("first"));
    drop(sending);
    assert_eq!(replica.wires.heard.recv().await.as_deref(), Some("broken"));
}

#[tokio::test]
async fn an_answer_that_breaks_off_breaks_off_at_the_client() {
    let (world, replica) = World::with_active().await;
    let mut reading = world.connection("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n").await;
    replica.wires.say.send("first").unwrap();
    until(&mut reading, "first").await;
    let _wires = replica.die();
    let mut rest = Vec::new();
    let _ = reading.read_to_end(&mut rest).await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "it looks complete: {rest:?}");
}

#[tokio::test]
async fn where_nobody_is_active_callers_are_told_in_the_words_that_they_read() {
    let world = World::start().await;
    let (nobody, _socket) = nowhere();
    for active in [None, Some(Active { address: nobody.to_string(), name: name(1) })] {
        world.active.send_replace(active);
        let (status, headers, told) = world.asked([127, 0, 0, 1], "/api/v1/orgs", &[]).await;
        assert_eq!((status, told["code"].as_str()), (503, Some("service_unavailable")), "{told}");
        assert_eq!(headers["retry-after"], "2");
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("No replica of this service is active at this moment;"), "{message}");
        let (status, headers, told) = world.asked([127, 0, 0, 1], "/v1/models", &[]).await;
        assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "2"));
        assert_eq!(
            (&told["error"]["message"], &told["error"]["code"]),
            (&json!(message), &json!("service_unavailable"))
        );
        // It is alive all the same, and says of itself that it is of no use.
        assert_eq!(world.asked([127, 0, 0, 1], "/healthz", &[]).await.0, 200);
        let (status, _, told) = world.asked([127, 0, 0, 1], "/readyz", &[]).await;
        assert_eq!((status, &told["status"], &told["active"]), (503, &json!("not_ready"), &json!(message)));
    }
}

#[tokio::test]
async fn one_that_takes_connections_and_says_nothing_is_not_waited_for() {
    let world = World::start().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    world.active.send_replace(Some(Active { address, name: name(1) }));
    assert_eq!(world.asked([127, 0, 0, 1], "/api/v1/orgs", &[]).await.0, 503);
}

#[tokio::test]
async fn requests_go_to_whoever_is_active_then() {
    let (world, _first) = World::with_active().await;
    let second = world.replica(2, "second").await;
    let asked = async || world.asked([127, 0, 0, 1], "/name", &[]).await.2;
    assert_eq!((asked().await, asked().await), (json!("first"), json!("first")));
    world.active.send_replace(Some(second.active.clone()));
    assert_eq!(asked().await, json!("second"));
    world.active.send_replace(None);
    assert_eq!(asked().await["code"], "service_unavailable");
    // An address is not enough: whoever answers there has to be the one that is meant.
    world.active.send_replace(Some(Active { name: name(1), ..second.active.clone() }));
    assert_eq!(asked().await["code"], "service_unavailable");
    world.active.send_replace(Some(second.active.clone()));
    assert_eq!(asked().await, json!("second"));
}

#[tokio::test]
async fn an_active_one_that_is_started_again_is_found_again() {
    let (world, first) = World::with_active().await;
    let asked = async || world.asked([127, 0, 0, 1], "/name", &[]).await.2;
    assert_eq!(asked().await, json!("first"));
    // The connections that were kept are of no use any more.
    drop(first);
    let again = world.replica(1, "again").await;
    world.active.send_replace(Some(again.active.clone()));
    assert_eq!((asked().await, asked().await), (json!("again"), json!("again")));
}

#[tokio::test]
async fn a_standby_speaks_for_itself_where_it_is_asked_of_itself() {
    let (world, _replica) = World::with_active().await;
    let (status, _, told) = world.asked([127, 0, 0, 1], "/readyz", &[]).await;
    assert_eq!((status, told), (200, json!({"status": "ready", "active": "ok"})));
    let (status, _, told) = world.asked([127, 0, 0, 1], "/metrics", &[]).await;
    let text = told.as_str().unwrap();
    assert!(status == 200 && text.contains("\nberth_replica_active 0\n"), "{text}");
    assert!(text.contains("berth_http_connections 1\n") && text.contains("berth_http_requests_total"), "{text}");
}
