//! IPv6 in a network of a project: a system that asks for its address as it comes, and one that has it without asking.

use berth_testkit::{Caller, Service};
use serde_json::{Value, json};

use crate::guest::says;

const ADDRESS: &str = "fd62:6572:7468::15";
const CIDR6: &str = "fd00:20::/64";

/// A VM in a network of this project that has the addresses.
async fn vm(caller: &Caller, public: &str, (name, image): (&str, &str), network: &str) -> String {
    let mut body = berth_testkit::vm(name);
    body["vm_config_id"] = json!("small");
    body["ssh_keys"] = json!([public]);
    body["root_disk"]["create_disk_request"]["image_id"] = json!(image);
    body["network_ids"] = json!([network]);
    caller.create_vm(body).await
}

async fn network(caller: &Caller) -> String {
    let made = caller.post("/networks", json!({"name": "lan", "cidr6": CIDR6})).await;
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

/// Takes minutes: `script/soak` runs it.
mod soak {
    use berth_testkit::Service;
    use serde_json::json;

    use super::{ADDRESS, network, reaches, serves, vm};
    use crate::BERTH;
    use crate::guest::{key, ready, says, ssh};

    #[tokio::test(flavor = "multi_thread")]
    async fn two_vms_reach_each_other_by_ipv6_and_a_third_of_another_project_does_not() {
        let service = Service::started(BERTH, &["micro", "debian-12"]);
        let caller = service.admin().await;
        let (_, public) = key(&service);
        let lan = network(&caller).await;
        let web = vm(&caller, &public, ("web", "debian-12"), &lan).await;
        let db = vm(&caller, &public, ("db", "debian-12"), &lan).await;
        let elsewhere = caller.another_project("elsewhere").await;
        let other = vm(&elsewhere, &public, ("db", "micro"), &network(&elsewhere).await).await;
        let (web, db, other) = (ready(&caller, &web).await, ready(&caller, &db).await, ready(&elsewhere, &other).await);
        assert_eq!(web["networks"][0]["address6"], "fd00:20::2");
        for vm in [&web, &db] {
            serves(&service, vm);
        }
        reaches(&service, &web, "db", "fd00:20::3");
        reaches(&service, &db, "web", "fd00:20::2");

        // The stranger has the same address behind its card and in its network, where nobody is at the others'.
        let settled = "for i in $(seq 60); do ip -6 address | grep -q tentative || exit 0; sleep 1; done; exit 1";
        says(&service, &other, &format!("ip -6 address add {ADDRESS}/64 dev eth0; {settled}"));
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
