//! Who says where a request came from, and who gets in.

use std::sync::Arc;

use berth_host::clock::Clock;
use berth_host::link::{Authority, HostName, replica, request};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::world::{Replica, World, client, name, read};
use crate::http::client_address::TrustedProxies;

const FORGED: [(&str, &str); 3] =
    [("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=10.0.0.1"), ("berth-passed-on", "admin https 10.0.0.1")];

#[tokio::test]
async fn a_client_s_address_is_the_one_that_the_standby_sees() {
    let (world, _replica) = World::with_active().await;
    for from in [[127, 0, 0, 1], [127, 0, 0, 2]] {
        let (_, _, told) = world.asked(from, "/echo/x", &FORGED).await;
        let seen = std::net::IpAddr::from(from).to_string();
        assert_eq!((&told["client"], &told["secure"]), (&json!(seen), &json!(false)), "{told}");
    }
    let proxies = || TrustedProxies::new(vec!["127.0.0.1/32".parse().unwrap()]);
    let world = World::behind(proxies).await;
    let replica = world.replica(1, "first").await;
    world.active.send_replace(Some(replica.active.clone()));
    for (from, client) in [([127, 0, 0, 1], "10.0.0.1"), ([127, 0, 0, 2], "127.0.0.2")] {
        assert_eq!(world.asked(from, "/echo/x", &FORGED).await.2["client"], client);
    }
    let torn = [("x-forwarded-for", "10.0.0.1"), ("forwarded", "for=10.0.0.2")];
    assert_eq!(world.asked([127, 0, 0, 1], "/echo/x", &torn).await.2["client"], Value::Null);
}

#[tokio::test]
async fn at_a_client_s_own_door_nobody_says_how_they_came() {
    let (_world, replica) = World::with_active().await;
    let request = client().get(format!("http://{}/echo/x", replica.own)).header(FORGED[2].0, FORGED[2].1);
    let (_, _, told) = read(request).await;
    assert_eq!((&told["client"], &told["secure"]), (&json!("127.0.0.1"), &json!(false)));
    assert_eq!(told["headers"].get("berth-passed-on"), None, "{told}");
}

#[tokio::test]
async fn administration_is_behind_its_own_door_of_a_standby_alone() {
    let (world, replica) = World::with_active().await;
    for (door, status) in world.standby.into_iter().zip([404, 201]) {
        let request = client().get(format!("http://{door}/api/v1/admin/users")).header(FORGED[2].0, FORGED[2].1);
        assert_eq!(read(request).await.0, status);
    }
    // A standby that has no such door is told so by the active one, and metrics are nobody else's.
    for (passed, path, found) in [
        ("main http 192.0.2.7", "/api/v1/admin/users", false),
        ("admin http 192.0.2.7", "/api/v1/admin/users", true),
        ("main http 192.0.2.7", "/metrics", false),
        ("admin http 192.0.2.7", "/metrics", false),
        ("main https 192.0.2.7", "/echo/x", true),
    ] {
        let answer = answered(&world, &replica, &format!("GET {path}"), Some(passed)).await;
        let status = if found { "HTTP/1.1 201" } else { "HTTP/1.1 404" };
        assert!(answer.starts_with(status), "{passed} {path}: {answer}");
        assert!(!answer.contains("strict-transport-security"), "what the client speaks is the standby's to say");
        assert_eq!(answer.contains("\"secure\":true"), passed.contains("https"), "{answer}");
    }
}

#[tokio::test]
async fn at_the_replicas_door_a_request_says_how_it_came() {
    let (world, replica) = World::with_active().await;
    for passed in [None, Some("main"), Some("main http 192.0.2.7\r\nBerth-Passed-On: admin http 192.0.2.7")] {
        let answer = answered(&world, &replica, "GET /echo/x", passed).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("is for replicas"), "{answer}");
    }
}

/// What an active replica answers to a replica that says this.
async fn answered(world: &World, replica: &Replica, ask: &str, passed: Option<&str>) -> String {
    let address = &replica.active.address;
    let stream = replica::reach(&world.authority, replica.active.name, address, Clock::default().now()).await.unwrap();
    let passed = passed.map(|passed| format!("Berth-Passed-On: {passed}\r\n")).unwrap_or_default();
    said(stream, &format!("{ask} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{passed}\r\n")).await.unwrap()
}

/// Sends a request, and reads to the end.
async fn said(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// What a client shows of itself: nothing, or a certificate with its key.
type Shown = Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>;

/// A certificate of a host that joined.
fn of_host(authority: &Authority, name: HostName) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let (key, csr) = request().unwrap();
    let (pem, _) = authority.host(name, &csr, Clock::default().now()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    (CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(), key)
}

/// What is answered to who shows this.
async fn let_in(world: &World, replica: &Replica, shown: Shown) -> std::io::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(world.authority.pem().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
    };
    let HostName { id, enrolment } = replica.active.name;
    let server = ServerName::try_from(format!("{enrolment}.{id}.host.berth")).unwrap();
    let stream = TcpStream::connect(&replica.active.address).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(server, stream).await?;
    said(stream, "GET /name HTTP/1.1\r\nHost: x\r\nConnection: close\r\nBerth-Passed-On: main http 192.0.2.7\r\n\r\n")
        .await
}

#[tokio::test]
async fn nobody_but_a_replica_gets_in_at_the_replicas_door() {
    let (world, replica) = World::with_active().await;
    let other = Authority::make(Clock::default().now()).unwrap();
    for shown in [
        None,
        Some(of_host(&world.authority, name(3))),
        Some(of_host(&world.authority, name(1))),
        Some(of_host(&other, name(1))),
    ] {
        let answer = let_in(&world, &replica, shown).await;
        assert!(!answer.as_ref().is_ok_and(|text| !text.is_empty()), "{answer:?}");
    }
    // A replica of another platform is not let in either, nor does it believe this one.
    let reached = replica::reach(&other, replica.active.name, &replica.active.address, Clock::default().now()).await;
    assert!(reached.is_err());
    assert!(answered(&world, &replica, "GET /name", Some("main http 192.0.2.7")).await.ends_with("first"));
}
