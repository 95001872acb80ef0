//! Networks of a project: a VM and a sandbox reach each other by name, and nobody else reaches them.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use berth_testkit::commands::{run, shell};
use berth_testkit::{Caller, Service, eventually};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::BERTH;
use crate::crash::{body, killed_at, leaves_nothing, service};
use crate::guest::{ready, says, with_login};

/// Of the start of a switch, and of a link to it.
const SWITCH: &[&str] = &["switch.spawned", "switch.noted", "switch.half_linked"];

/// Says a number a few times each second over one connection, and notes what came back.
const CLIENT: &str = "import os, socket, time\n\
    s = socket.create_connection(('web', 9000), timeout=120)\n\
    f = s.makefile('rwb')\n\
    n = 0\n\
    while True:\n\
    \x20   n += 1\n\
    \x20   f.write(b'%d\\n' % n)\n\
    \x20   f.flush()\n\
    \x20   assert int(f.readline()) == n\n\
    \x20   open('count.new', 'w').write(str(n))\n\
    \x20   os.replace('count.new', 'count')\n\
    \x20   time.sleep(0.2)\n";

async fn network(caller: &Caller) -> String {
    let made = caller.post("/networks", json!({"name": "lan"})).await;
    assert_eq!((made.status, &made.body["cidr"]), (201, &json!("10.128.0.0/24")), "{made:?}");
    made.id()
}

/// A sandbox that reaches nothing outside; its id.
async fn sandbox(caller: &Caller, name: &str, networks: &[&str]) -> String {
    sandbox_with(caller, name, networks, "deny").await
}

async fn sandbox_with(caller: &Caller, name: &str, networks: &[&str], egress: &str) -> String {
    let body = json!({"name": name, "network_ids": networks, "network": {"egress": egress}});
    let id = caller.create_sandbox(body).await;
    caller.sandbox_reaches(&id, "Ready").await;
    id
}

/// Begins a process in a sandbox that goes on by itself.
async fn begin(caller: &Caller, sandbox: &str, process: Value) {
    let begun = caller.post(&format!("/sandbox/{sandbox}/processes"), process).await;
    assert_eq!(begun.status, 201, "{begun:?}");
}

async fn base_ready(caller: &Caller) {
    let is_ready = async |caller: Caller| caller.get("/sandbox_templates/base").await.body["status"] == "ready";
    caller.until("the template", |caller| is_ready(caller.clone())).await;
}

/// The process of a switch, by its note.
fn switch(folder: &Path) -> Option<Pid> {
    let note: Value = serde_json::from_slice(&std::fs::read(folder.join("egress.json")).ok()?).ok()?;
    let pid = i32::try_from(note["pid"].as_i64()?).ok()?;
    let name = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    name.starts_with(b"berth-egress\0switch\0").then(|| Pid::from_raw(pid)).flatten()
}

/// Waits until the connection of [`CLIENT`] has carried more than it had.
async fn goes_on(caller: &Caller, sandbox: &str) {
    let before: u64 = shell(caller, sandbox, "cat count").await.trim().parse().expect("a number");
    let line = format!(
        "for i in $(seq 600); do [ $(cat count || echo 0) -gt {} ] && exit 0; sleep 0.2; done; exit 1",
        before + 3
    );
    shell(caller, sandbox, &line).await;
}

/// A VM and a sandbox of a network, each of which serves a page.
struct Pair {
    lan: String,
    web: String,
    vm: Value,
    within: String,
}

impl Pair {
    async fn new(service: &Service, caller: &Caller) -> Self {
        let lan = network(caller).await;
        let mut body = with_login(service);
        body["network_ids"] = json!([lan]);
        let web = caller.create_vm(body).await;
        base_ready(caller).await;
        let vm = ready(caller, &web).await;
        let within = sandbox(caller, "box", &[&lan]).await;
        let echo = "mkfifo /tmp/f; while true; do nc -l -p 9000 </tmp/f | cat >/tmp/f; done";
        let page = "mkdir -p /www && echo of the VM >/www/hello && httpd -p 8000 -h /www";
        says(service, &vm, &format!("{page} && setsid sh -c '{echo}' </dev/null >/dev/null 2>&1 &"));
        shell(caller, &within, "mkdir -p www && echo of the sandbox >www/hello").await;
        let server = json!({"argv": ["python3", "-m", "http.server", "--bind", "::", "8001"], "cwd": "www"});
        begin(caller, &within, server).await;
        Self { lan, web, vm, within }
    }

    /// Either way, by each form of a name, though nothing outside may be reached from the sandbox.
    async fn reach_each_other(&self, service: &Service, caller: &Caller) {
        assert!(says(service, &self.vm, "ping -c 1 -W 60 box").contains(" 0% packet loss"));
        for name in ["box", "box.internal", "BOX.lan.internal", self.within.as_str()] {
            assert_eq!(page(service, &self.vm, name), "of the sandbox", "{name}");
        }
        for name in ["web", "web.internal", "web.lan.internal", self.web.as_str()] {
            let line = format!("curl -sS -m 60 --retry 30 --retry-connrefused http://{name}:8000/hello");
            assert_eq!(shell(caller, &self.within, &line).await, "of the VM\n", "{name}");
        }
    }

    /// A fork that goes on with its source's memory is at an address of its own, and serves there what its source does;
    /// its id.
    async fn is_forked(&self, service: &Service, caller: &Caller) -> String {
        let fork = json!({"count": 1, "include_memory": true});
        let made = caller.post(&format!("/sandboxes/{}/fork", self.within), fork).await;
        let fork = made.body["data"][0]["id"].as_str().expect("a fork").to_owned();
        caller.sandbox_reaches(&fork, "Ready").await;
        let address =
            async |id: &str| caller.get(&format!("/sandboxes/{id}")).await.body["networks"][0]["address"].clone();
        let (own, sources) = (address(&fork).await, address(&self.within).await);
        assert!(own.is_string() && sources.is_string() && own != sources, "{own} and {sources}");
        shell(caller, &fork, "echo of the fork >www/hello").await;
        assert_eq!(page(service, &self.vm, &fork), "of the fork");
        assert_eq!(page(service, &self.vm, &self.within), "of the sandbox");
        let from_fork = format!("curl -sS -m 60 http://{}:8001/hello", self.within);
        assert_eq!(shell(caller, &fork, &from_fork).await, "of the sandbox\n");
        fork
    }

    /// Neither by its address nor by its names does a sandbox of others reach the VM, though the stranger may go outside,
    /// and reaches a server in a network of its own by its name.
    async fn is_out_of_reach(&self, caller: &Caller, network: &str, name: &str) {
        let stranger = &sandbox_with(caller, name, &[network], "allow").await;
        shell(caller, stranger, "mkdir -p www && echo its own >www/hello").await;
        begin(caller, stranger, json!({"argv": ["python3", "-m", "http.server", "8000"], "cwd": "www"})).await;
        let own = format!("curl -sS -m 60 --retry 30 --retry-connrefused http://{name}:8000/hello");
        assert_eq!(shell(caller, stranger, &own).await, "its own\n");
        let address = self.vm["networks"][0]["address"].as_str().expect("an address");
        for host in [address, "web", "web.lan.internal", self.web.as_str()] {
            let line = format!("curl -sS -m 5 http://{host}:8000/hello");
            let outcome = run(caller, stranger, json!({"cmd": line})).await;
            let code = outcome.last.1["code"].as_i64();
            // There is no such name; at that address is nobody, or somebody of its own network who does not listen.
            assert!(
                if host == address { code.is_some_and(|code| code > 0) } else { code == Some(6) },
                "{host}: {outcome:?}"
            );
        }
    }
}

/// What a VM gets from a sandbox's server. Its wget takes no names, wherever they lead.
fn page(service: &Service, vm: &Value, name: &str) -> String {
    let get = format!("printf 'GET /hello HTTP/1.0\\r\\n\\r\\n' | nc {name} 8001 | grep '^of'");
    says(service, vm, &format!("for i in $(seq 60); do {get} && exit 0; sleep 1; done; exit 1"))
}

async fn started() -> (Service, Caller) {
    let mut service = Service::new(BERTH, &["micro"]).with_sandboxes();
    service.configure("[sandbox]\nwarm_machines = 0\n");
    service.start();
    let caller = service.admin().await;
    (service, caller)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_and_a_sandbox_reach_each_other_by_name_and_nobody_else_does() {
    let (mut service, caller) = started().await;
    let pair = Pair::new(&service, &caller).await;
    pair.reach_each_other(&service, &caller).await;
    let fork = pair.is_forked(&service, &caller).await;

    // Who belongs to another network, and who belongs to another project's with the same addresses and names.
    let other = caller.post("/networks", json!({"name": "other"})).await.id();
    pair.is_out_of_reach(&caller, &other, "stranger").await;
    let elsewhere = caller.another_project("elsewhere").await;
    let foreign = network(&elsewhere).await;
    let first = json!({"name": "first", "network_ids": [foreign]});
    let first = elsewhere.create_sandbox(first).await;
    let address = elsewhere.get(&format!("/sandboxes/{first}")).await.body["networks"][0]["address"].clone();
    assert_eq!(address, pair.vm["networks"][0]["address"], "the VM's address is somebody else's there");
    pair.is_out_of_reach(&elsewhere, &foreign, "box").await;

    // One connection, through the end of the service and of the switch.
    begin(&caller, &pair.within, json!({"argv": ["python3", "-c", CLIENT]})).await;
    shell(&caller, &pair.within, "for i in $(seq 600); do [ -s count ] && exit 0; sleep 0.2; done; exit 1").await;
    goes_on(&caller, &pair.within).await;
    let networks = service.dir.path().join("networks");
    let switch_of = |network: &str| switch(&networks.join(network));
    let first = switch_of(&pair.lan).expect("a switch");
    service.kill();
    service.start();
    goes_on(&caller, &pair.within).await;
    assert_eq!(switch_of(&pair.lan), Some(first), "the same process");
    kill_process(first, Signal::KILL).expect("a signal");
    eventually("another switch", 60, || switch_of(&pair.lan).filter(|pid| *pid != first));
    goes_on(&caller, &pair.within).await;

    // With its machines it goes.
    for path in [format!("/sandboxes/{fork}"), format!("/sandboxes/{}", pair.within), format!("/vms/{}", pair.web)] {
        assert_eq!(caller.delete(&path).await.status, 202);
    }
    eventually("the switch's end", 60, || switch_of(&pair.lan).is_none().then_some(()));
    assert!(switch_of(&other).is_some() && switch_of(&foreign).is_some());
}

/// What the program in a folder says of itself.
fn status(folder: &Path) -> Option<String> {
    let mut stream = UnixStream::connect(folder.join("egress.sock")).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(b"{\"version\":1,\"ask\":\"status\"}\n").ok()?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).ok()?;
    Some(answer)
}

/// Waits until a VM and the switch of its network have the link between them.
fn both_ends(service: &Service, lan: &str, id: &str) {
    eventually("both ends of the link", 60, || {
        let machine = status(&service.dir.path().join("machines").join(id))?;
        let own = format!("\"network\":\"{lan}\",\"address\":\"10.128.0.2\",\"is_linked\":true");
        let of_switch = status(&service.dir.path().join("networks").join(lan))?;
        (machine.contains(&own) && of_switch.contains("10.128.0.2")).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_whose_network_has_no_switch_has_its_ports_all_the_same() {
    let mut service = service();
    service.set("BERTH_FAULT", "switch.spawned=fails");
    service.start();
    let caller = service.admin().await;
    let lan = network(&caller).await;
    let mut body = body();
    body["network_ids"] = json!([lan]);
    let id = caller.create_vm(body).await;
    caller.reaches(&id, "running").await;
    let program = status(&service.dir.path().join("machines").join(&id)).expect("a program");
    let unlinked = "\"address\":\"10.128.0.2\",\"is_linked\":false";
    assert!(program.contains("\"guest_port\":22") && program.contains(unlinked), "{program}");
    service.kill();
    service.set("BERTH_FAULT", "");
    service.start();
    both_ends(&service, &lan, &id);
    leaves_nothing(&service, &service.admin().await, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_made_again_wherever_the_service_died() {
    let mut service = service();
    for point in SWITCH {
        let caller = killed_at(&mut service, point, async |caller| {
            let lan = network(caller).await;
            let mut body = body();
            body["network_ids"] = json!([lan]);
            caller.ask(Method::POST, "/vms", body, 201).await;
        })
        .await;
        let lan = caller.get("/networks").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        let id = caller.get("/vms").await.body["data"][0]["id"].as_str().expect("an id").to_owned();
        caller.reaches(&id, "running").await;
        both_ends(&service, &lan, &id);
        leaves_nothing(&service, &caller, &id).await;
        assert_eq!(caller.delete(&format!("/networks/{lan}")).await.status, 204);
        eventually("nothing of the network", 60, || service.files("networks").is_empty().then_some(()));
    }
}
