//! IPv6 in a network of a project: systems that ask for their address, and a sandbox, which has it without asking.

use berth_testkit::commands::{run, shell};
use berth_testkit::{Caller, Service};
use serde_json::{Value, json};

use crate::BERTH;
use crate::guest::{ready, says, with_login};

const ADDRESS: &str = "fd62:6572:7468::15";
const CIDR6: &str = "fd00:20::/64";
/// Of a network that is not where the others are.
const ELSEWHERE6: &str = "fd00:21::/64";

/// A VM in a network of this project that has the addresses.
async fn vm(caller: &Caller, public: &str, (name, image): (&str, &str), network: &str) -> String {
    let mut body = berth_testkit::vm(name);
    body["vm_config_id"] = json!("small");
    body["ssh_keys"] = json!([public]);
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    body["network_ids"] = json!([network]);
    caller.create_vm(body).await
}

async fn network(caller: &Caller, cidr6: &str) -> String {
    let made = caller.post("/networks", json!({"name": "lan", "cidr6": cidr6})).await;
    assert_eq!(made.status, 201, "{made:?}");
    made.id()
}

/// Waits until a guest has its address, serves its name at port 8000 there.
fn serves(service: &Service, vm: &Value) {
    says(
        service,
        vm,
        &format!("for i in $(seq 120); do ip -6 address | grep -q {ADDRESS} && exit 0; sleep 1; done; exit 1"),
    );
    let server = "setsid -f python3 -m http.server --bind :: 8000 </dev/null >/dev/null 2>&1";
    says(service, vm, &format!("mkdir www && hostname >www/name && cd www && {server}"));
}

/// Each finds the other by its name, which has this address, and speaks to it.
fn reaches(service: &Service, from: &Value, name: &str, address: &str) {
    let found = format!("getent ahostsv6 {name}.internal | cut -d ' ' -f 1 | sort -u");
    assert_eq!(says(service, from, &found), address);
    let pinged = says(service, from, &format!("ping -6 -c 2 -W 60 {name}"));
    assert!(pinged.contains(" 0% packet loss") && pinged.contains(address), "{pinged}");
    let page = format!("curl -6 -sS -m 60 --retry 60 --retry-connrefused http://{name}:8000/name");
    let own = says(service, from, &page);
    assert_eq!(own, name);
}

/// Whether a guest has its address, and speaks from it: not as long as it asks whether somebody else has it.
fn settled() -> String {
    format!("ip -6 address | grep {ADDRESS}/ | grep -qv tentative")
}

/// A sandbox of a network that serves its name at port 8001; its id.
async fn sandbox(caller: &Caller, name: &str, network: &str) -> String {
    let id = caller.create_sandbox(json!({"name": name, "network_ids": [network]})).await;
    caller.sandbox_reaches(&id, "Ready").await;
    shell(caller, &id, "mkdir www && hostname >www/name").await;
    let server = json!({"argv": ["python3", "-m", "http.server", "--bind", "::", "8001"], "cwd": "www"});
    assert_eq!(caller.post(&format!("/sandbox/{id}/processes"), server).await.status, 201);
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_vm_and_a_sandbox_reach_each_other_by_ipv6_and_a_third_of_another_project_does_not() {
    let mut service = Service::new(BERTH, &["micro"]).with_sandboxes();
    service.configure("[sandbox]\nwarm_machines = 0\n");
    service.start();
    let caller = service.admin().await;
    let lan = network(&caller, CIDR6).await;
    let mut body = with_login(&service);
    body["network_ids"] = json!([lan]);
    let web = caller.create_vm(body).await;
    let is_ready = async |caller: Caller| caller.get("/sandbox_templates/base").await.body["status"] == "ready";
    caller.until("the template", |caller| is_ready(caller.clone())).await;
    let within = sandbox(&caller, "box", &lan).await;
    let vm = ready(&caller, &web).await;
    let shown = caller.get(&format!("/networks/{lan}")).await.body["members"].clone();
    assert_eq!((&shown[0]["address6"], &shown[1]["address6"]), (&json!("fd00:20::2"), &json!("fd00:20::3")), "{shown}");

    // By its name, and by a connection.
    says(&service, &vm, &format!("for i in $(seq 120); do {} && exit 0; sleep 1; done; exit 1", settled()));
    let pinged = says(&service, &vm, "ping6 -c 2 -W 60 box");
    assert!(pinged.contains(" 0% packet loss") && pinged.contains("fd00:20::3"), "{pinged}");
    let get = "printf 'GET /name HTTP/1.0\\r\\n\\r\\n' | nc fd00:20::3 8001 | tail -n 1";
    let name = says(&service, &vm, &format!("for i in $(seq 60); do {get} | grep . && exit 0; sleep 1; done; exit 1"));
    assert_eq!(format!("{name}\n"), shell(&caller, &within, "hostname").await);
    says(&service, &vm, "mkdir -p /www && echo of the VM >/www/hello && httpd -p [::]:8000 -h /www");
    for name in ["web", "web.lan.internal", "[fd00:20::2]"] {
        let page = format!("curl -6 -sS -m 60 --retry 30 --retry-connrefused http://{name}:8000/hello");
        assert_eq!(shell(&caller, &within, &page).await, "of the VM\n", "{name}");
    }

    // The stranger, who reaches itself by IPv6, is in no network with these addresses, and knows none of these names.
    let elsewhere = caller.another_project("elsewhere").await;
    let stranger = sandbox(&elsewhere, "stranger", &network(&elsewhere, ELSEWHERE6).await).await;
    let own = "curl -6 -sS -m 60 --retry 30 --retry-connrefused 'http://[fd00:21::2]:8001/name'";
    assert_eq!(shell(&elsewhere, &stranger, own).await, shell(&elsewhere, &stranger, "hostname").await);
    // To curl 7 is that nobody can be reached there, 28 that nobody answers, and 6 that there is no such name.
    let probes: [(&str, &[i64]); 4] =
        [("[fd00:20::2]:8000", &[7, 28]), ("[fd00:20::3]:8001", &[7, 28]), ("web:8000", &[6]), ("box:8001", &[6])];
    for (host, codes) in probes {
        let line = format!("curl -6 -sS -m 20 'http://{host}/'");
        let outcome = run(&elsewhere, &stranger, json!({"cmd": line})).await;
        assert!(outcome.last.1["code"].as_i64().is_some_and(|code| codes.contains(&code)), "{host}: {outcome:?}");
    }
    let page = "curl -6 -sS -m 60 'http://[fd00:20::2]:8000/hello'";
    assert_eq!(shell(&caller, &within, page).await, "of the VM\n", "who belongs there still reaches it");
}

/// Takes minutes: `script/soak` runs it.
mod soak {
    use berth_testkit::Service;
    use serde_json::json;

    use super::{CIDR6, network, reaches, serves, settled, vm};
    use crate::BERTH;
    use crate::guest::{key, ready, says, ssh};

    #[tokio::test(flavor = "multi_thread")]
    async fn two_vms_reach_each_other_by_ipv6_and_a_third_of_another_project_does_not() {
        let service = Service::started(BERTH, &["micro", "debian-12"]);
        let caller = service.admin().await;
        let (_, public) = key(&service);
        let lan = network(&caller, CIDR6).await;
        let web = vm(&caller, &public, ("web", "debian-12"), &lan).await;
        let db = vm(&caller, &public, ("db", "debian-12"), &lan).await;
        let elsewhere = caller.another_project("elsewhere").await;
        let other = vm(&elsewhere, &public, ("db", "micro"), &network(&elsewhere, CIDR6).await).await;
        let (web, db, other) = (ready(&caller, &web).await, ready(&caller, &db).await, ready(&elsewhere, &other).await);
        assert_eq!(web["networks"][0]["address6"], "fd00:20::2");
        for vm in [&web, &db] {
            serves(&service, vm);
        }
        reaches(&service, &web, "db", "fd00:20::3");
        reaches(&service, &db, "web", "fd00:20::2");

        // The stranger has the same address behind its card and in its network, where nobody is at the others'.
        says(&service, &other, &format!("for i in $(seq 120); do {} && exit 0; sleep 1; done; exit 1", settled()));
        assert_eq!(other["networks"][0]["address6"], "fd00:20::2");
        let reached = says(&service, &other, "ping6 -c 1 -W 30 fd62:6572:7468::2");
        assert!(reached.contains(" 0% packet loss"), "{reached}");
        for line in ["ping6 -c 1 -W 5 fd00:20::3", "ping6 -c 1 -W 5 web", "nc -w 5 fd00:20::3 8000 </dev/null"] {
            assert!(!ssh(&service, &other, line).status.success(), "{line}");
        }

        // Rules speak of IPv6, too.
        let rules =
            json!({"rules": [{"direction": "in", "protocol": "tcp", "source": "fd00:20::2", "action": "deny"}]});
        assert_eq!(caller.put(&format!("/networks/{lan}/rules"), rules).await.status, 200);
        let refused = "for i in $(seq 60); do curl -6 -sS -m 3 http://db:8000/name || exit 0; sleep 1; done; exit 1";
        says(&service, &web, refused);
        let pinged = says(&service, &web, "ping -6 -c 1 -W 60 db");
        assert!(pinged.contains(" 0% packet loss"), "{pinged}");
    }
}
