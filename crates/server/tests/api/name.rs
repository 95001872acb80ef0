//! Names of VMs that everybody finds.

use std::net::SocketAddr;
use std::time::Duration;

use berth_domain::names::Domain;
use berth_testkit::{Platform, vm};
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;
use tokio::net::UdpSocket;

/// What is answered of a name; `None` where nobody answers yet.
async fn ask(at: SocketAddr, name: &str, kind: RecordType) -> Option<Vec<String>> {
    let mut question = Message::query();
    question.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    socket.connect(at).await.expect("an address");
    socket.send(&question.to_vec().expect("a message")).await.ok()?;
    let mut buffer = [0; 512];
    let length = tokio::time::timeout(Duration::from_secs(1), socket.recv(&mut buffer)).await.ok()?.ok()?;
    let answer = Message::from_vec(&buffer[..length]).expect("a message");
    assert_eq!(answer.metadata.id, question.metadata.id);
    Some(answer.answers.iter().map(|record| record.data.to_string()).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_is_found_by_its_name_for_as_long_as_it_is_there() {
    let at = UdpSocket::bind("127.0.0.1:0").await.expect("a socket").local_addr().expect("an address");
    let platform = Platform::start_with(|config| {
        config.network.domain = Some(Domain::parse("vms.example.org").expect("a domain"));
        config.network.dns_listen = Some(at);
    })
    .await;
    let caller = &platform.admin;
    let id = caller.create_vm(vm("web")).await;
    let address = caller.reaches(&id, "running").await["public_ip"].as_str().expect("an address").to_owned();
    let project = caller.get("").await.body;
    let (slug, project) = (project["slug"].as_str().expect("a slug"), project["id"].as_str().expect("an id"));
    let is_told = async |name: String, wanted: Vec<String>| {
        let says = |_| async { ask(at, &name, RecordType::A).await.as_ref() == Some(&wanted) };
        caller.until(&format!("{name} is {wanted:?}"), says).await;
    };
    for project in [slug, project] {
        is_told(format!("web.{project}.vms.example.org."), vec![address.clone()]).await;
    }
    let [a, b, c, d] = address.parse::<std::net::Ipv4Addr>().expect("an address").octets();
    let reverse = ask(at, &format!("{d}.{c}.{b}.{a}.in-addr.arpa."), RecordType::PTR).await;
    assert_eq!(reverse, Some(vec![format!("web.{slug}.vms.example.org.")]));
    assert_eq!(caller.patch(&format!("/vms/{id}"), json!({"name": "www"})).await.status, 200);
    is_told(format!("www.{slug}.vms.example.org."), vec![address]).await;
    assert_eq!(ask(at, &format!("web.{slug}.vms.example.org."), RecordType::A).await, Some(vec![]));
    caller.delete(&format!("/vms/{id}")).await;
    caller.gone(&id).await;
    is_told(format!("www.{slug}.vms.example.org."), vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_older_project_takes_the_names_of_another_one_by_its_slug() {
    let at = UdpSocket::bind("127.0.0.1:0").await.expect("a socket").local_addr().expect("an address");
    let platform = Platform::start_with(|config| {
        config.network.domain = Some(Domain::parse("vms.example.org").expect("a domain"));
        config.network.dns_listen = Some(at);
    })
    .await;
    let older = &platform.admin;
    let theirs = older.create_vm(vm("web")).await;
    older.reaches(&theirs, "running").await;
    let before = older.get("").await.body["slug"].as_str().expect("a slug").to_owned();
    assert_eq!(older.post("/api/v1/orgs", json!({"name": "Acme", "slug": "acme"})).await.status, 201);
    assert_eq!(older.post("/api/v1/orgs/acme/projects", json!({"name": "Shop", "slug": "shop"})).await.status, 201);
    let shop = older.in_project("/api/v1/orgs/acme/projects/shop");
    let id = shop.create_vm(vm("web")).await;
    let address = shop.reaches(&id, "running").await["public_ip"].as_str().expect("an address").to_owned();
    let is_told = async |name: &str, wanted: &[String]| {
        let says = |_| async { ask(at, name, RecordType::A).await.as_deref() == Some(wanted) };
        older.until(&format!("{name} is {wanted:?}"), says).await;
    };
    is_told("web.shop.vms.example.org.", std::slice::from_ref(&address)).await;

    assert_eq!(older.patch("", json!({"slug": "shop"})).await.body["slug"], "shop");
    is_told(&format!("web.{before}.vms.example.org."), &[]).await;
    assert_eq!(ask(at, "web.shop.vms.example.org.", RecordType::A).await, Some(vec![address]));
    // It is theirs once nobody else has it.
    assert_eq!(shop.patch("", json!({"slug": "store", "name": "Store"})).await.status, 200);
    let took =
        |_| async { ask(at, "web.store.vms.example.org.", RecordType::A).await.is_some_and(|told| !told.is_empty()) };
    older.until("the other one is found by its new slug", took).await;
    let told = ask(at, "web.shop.vms.example.org.", RecordType::A).await.expect("an answer");
    assert_eq!(told.len(), 1);
}
