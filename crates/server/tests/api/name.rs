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
