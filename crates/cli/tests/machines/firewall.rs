//! Firewall rules of real VMs: what comes in from outside, and what goes between two of them.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use berth_testkit::{Caller, Service, eventually};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{ready, says, with_login};
use crate::network::{Session, program};

/// Two VMs of a network, each of which serves a page at port 8000.
struct Pair {
    lan: String,
    web: (String, Value),
    db: (String, Value),
}

impl Pair {
    async fn new(service: &Service, caller: &Caller) -> Self {
        let lan = caller.post("/networks", json!({"name": "lan"})).await.id();
        let mut body = with_login(service);
        body["network_ids"] = json!([lan]);
        let web = caller.create_vm(body.clone()).await;
        body["name"] = json!("db");
        let db = caller.create_vm(body).await;
        let (web, db) = ((web.clone(), ready(caller, &web).await), (db.clone(), ready(caller, &db).await));
        for (_, vm) in [&web, &db] {
            says(service, vm, "mkdir -p /www && echo a page >/www/hello && httpd -p 8000 -h /www");
        }
        Self { lan, web, db }
    }

    /// Waits until one gets the other's page.
    fn reaches(service: &Service, from: &Value, name: &str) {
        eventually("the other's page", 120, || Self::fetches(service, from, name).then_some(()));
    }

    /// Whether one gets the other's page within three seconds.
    fn fetches(service: &Service, from: &Value, name: &str) -> bool {
        let get = format!("printf 'GET /hello HTTP/1.0\\r\\n\\r\\n' | timeout 3 nc {name} 8000 | grep -c page");
        says(service, from, &format!("{get} || true")) == "1"
    }
}

/// Whether somebody outside is let in at a VM's port 8000.
fn is_open(vm: &Value) -> bool {
    use std::io::{Read, Write};
    let host = vm["public_ip"].as_str().expect("an address");
    let at = SocketAddr::new(host.parse().expect("an address"), 8000);
    let Ok(mut stream) = TcpStream::connect_timeout(&at, Duration::from_secs(5)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a stream");
    let mut page = String::new();
    let asked = stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_string(&mut page));
    asked.is_ok() && page.contains("a page")
}

/// Waits until somebody outside is let in there.
fn opens(vm: &Value) {
    eventually("an open port", 120, || is_open(vm).then_some(()));
}

async fn set(caller: &Caller, path: &str, rules: Value) {
    let set = caller.put(&format!("{path}/rules"), json!({"rules": rules})).await;
    assert_eq!(set.status, 200, "{set:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_hold_at_once_and_whoever_ends_and_cut_nothing_that_stays_allowed() {
    let mut service = Service::started(BERTH, &["micro"]);
    let caller = service.admin().await;
    let pair = Pair::new(&service, &caller).await;
    let (web, db) = (&pair.web.1, &pair.db.1);
    opens(web);
    opens(db);
    Pair::reaches(&service, db, "web");
    Pair::reaches(&service, web, "db");

    // The VM's own: nothing but SSH comes in, from outside or by its network; it may still begin.
    let mut session = Session::open(&service, web);
    let vm = format!("/vms/{}", pair.web.0);
    let ssh_alone = json!([
        {"direction": "in", "protocol": "tcp", "ports": [22], "action": "allow"},
        {"direction": "in", "protocol": "any", "action": "deny"},
    ]);
    set(&caller, &vm, ssh_alone).await;
    eventually("a shut port", 120, || (!is_open(web)).then_some(()));
    session.echoes("still here");
    assert!(!Pair::fetches(&service, db, "web"));
    Pair::reaches(&service, web, "db");
    opens(db);

    // They hold while nobody serves, for the service that comes then, and for the next program.
    service.kill();
    assert!(!is_open(web));
    session.echoes("nobody serves");
    service.start();
    let caller = service.admin().await;
    let carrier = program(&service, &pair.web.0).expect("a program");
    kill_process(carrier, Signal::KILL).expect("a signal");
    eventually("another program", 120, || program(&service, &pair.web.0).filter(|pid| *pid != carrier));
    assert_eq!(says(&service, web, "hostname"), "web");
    assert!(!is_open(web));
    set(&caller, &vm, json!([])).await;
    opens(web);
    Pair::reaches(&service, db, "web");

    // The network's: between its members, and of nobody else.
    let lan = format!("/networks/{}", pair.lan);
    set(&caller, &lan, json!([{"direction": "in", "protocol": "tcp", "ports": [8000], "action": "deny"}])).await;
    eventually("a shut network", 120, || (!Pair::fetches(&service, db, "web")).then_some(()));
    opens(web);
    assert!(!Pair::fetches(&service, web, "db"));
    let answers = says(&service, web, "ping -c 1 -W 60 db");
    assert!(answers.contains(" 0% packet loss"), "{answers}");
    set(&caller, &lan, json!([])).await;
    Pair::reaches(&service, db, "web");
}
