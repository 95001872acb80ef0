//! Tunnels to servers inside.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{Agent, PATIENCE, piecewise, request, whole};

#[tokio::test]
async fn bytes_go_both_ways_at_once() {
    let (_agent, client) = Agent::start().await;
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap()
        });
        let (sender, body) = piecewise();
        let response = client.send(request(Method::POST, &format!("/tunnel/{port}"), body)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut answer = response.into_body();
        sender.send("ping".into()).await.unwrap();
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), "ping", "before the request ends");
        let feeding = tokio::spawn(async move {
            for _ in 0..50 {
                sender.send(Bytes::from(vec![7; 100_000])).await.unwrap();
            }
        });
        let rest = tokio::time::timeout(PATIENCE, answer.collect()).await.unwrap().unwrap().to_bytes();
        assert_eq!(rest.len(), 5_000_000);
        feeding.await.unwrap();
        assert_eq!(echo.await.unwrap(), 5_000_004);
    }
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let (_agent, client) = Agent::start().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"bye").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        heard
    });
    let (sender, body) = piecewise();
    let response = client.send(request(Method::POST, &format!("/tunnel/{port}"), body)).await;
    let said = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(said, "bye");
    sender.send("still here".into()).await.unwrap();
    drop(sender);
    assert_eq!(server.await.unwrap(), b"still here");
}

#[tokio::test]
async fn a_client_that_leaves_closes_the_connection() {
    let (agent, client) = Agent::start().await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let leaving = agent.client().await;
    let (sender, body) = piecewise();
    let response = leaving.send(request(Method::POST, &format!("/tunnel/{port}"), body)).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    drop((response, sender, leaving));
    let mut heard = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await.expect("an end");
    assert!(ended.is_err() || heard.is_empty());
    client.get("/runtime/processes").await.ok();
}

#[tokio::test]
async fn where_nothing_listens_it_is_refused() {
    let (_agent, client) = Agent::start().await;
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
    let ask = async |port: &str| client.call(request(Method::POST, &format!("/tunnel/{port}"), whole(""))).await;
    ask(&free.to_string()).await.refused(502, "port_refused");
    for bad in ["0", "65536", "x", "-1"] {
        ask(bad).await.names(&["port"]);
    }
}
