//! A fleet is upgraded as `docs/operating.md` says, one machine after the other, and no VM notices: a host that joined, then the
//! replica that stands by, then the active one. In between each version asks the other.

use std::net::TcpStream;
use std::time::Duration;

use berth_testkit::{Caller, HostProcess, Postgres, Service, eventually, replicas};
use serde_json::{Value, json};

use super::guest::{ready, says, with_login};
use super::{BERTH, qemu_among};

/// A VM, where it runs, and its process.
struct Vm {
    vm: Value,
    process: i32,
}

struct Fleet {
    alpha: Service,
    beta: Service,
    gamma: HostProcess,
    _postgres: Postgres,
}

impl Fleet {
    async fn of(old: &str) -> Self {
        let postgres = Postgres::started();
        let [alpha, beta] = replicas(old, "micro", &postgres);
        let admin = alpha.admin().await;
        let mut adding = alpha.berth(&["admin", "host", "add", "gamma"]);
        let added = adding.env("BERTH_URL", &alpha.base).env("BERTH_TOKEN", &admin.token).output().expect("an end");
        let printed = String::from_utf8_lossy(&added.stdout).into_owned() + &String::from_utf8_lossy(&added.stderr);
        let mut gamma = HostProcess::new(old);
        gamma.join(printed.lines().last().expect("a command"));
        all_ready(&admin).await;
        let came = gamma.dir.path().join("images/micro/image.json");
        eventually("an image", 120, || came.exists().then_some(()));
        Self { alpha, beta, gamma, _postgres: postgres }
    }
}

async fn hosts(admin: &Caller) -> Vec<Value> {
    let all = admin.get("/api/v1/admin/hosts").await.body;
    all["data"].as_array().cloned().unwrap_or_default()
}

async fn all_ready(admin: &Caller) {
    let ready = async |admin: Caller| {
        let hosts = hosts(&admin).await;
        hosts.len() == 3 && hosts.iter().all(|host| host["state"] == "ready")
    };
    admin.until("every host", ready).await;
}

/// A VM on each host.
async fn vms(fleet: &Fleet, admin: &Caller) -> Vec<Vm> {
    let hosts = hosts(admin).await;
    let said = async |host: &Value, verb: &str| {
        let path = format!("/api/v1/admin/hosts/{}/{verb}", host["id"].as_str().expect("an id"));
        assert_eq!(admin.act(&path).await.status, 202);
    };
    let (body, mut vms) = (with_login(&fleet.alpha), Vec::new());
    for own in &hosts {
        for other in hosts.iter().filter(|other| *other != own) {
            said(other, "cordon").await;
        }
        let id = admin.create_vm(body.clone()).await;
        let vm = ready(admin, &id).await;
        assert_eq!(vm["host_id"], own["id"]);
        for other in hosts.iter().filter(|other| *other != own) {
            said(other, "uncordon").await;
        }
        says(&fleet.alpha, &vm, "echo kept > kept");
        vms.push(Vm { process: process(fleet, &id).expect("a process"), vm });
    }
    vms
}

/// The process of a VM, on whichever host it is.
fn process(fleet: &Fleet, id: &str) -> Option<i32> {
    let folder = format!("machines/{id}");
    let on_hosts = [fleet.alpha.processes(&folder), fleet.beta.processes(&folder), fleet.gamma.processes(&folder)];
    on_hosts.into_iter().find_map(qemu_among)
}

/// Each VM runs in the process that it had, and what is asked of its host is answered.
async fn are_untouched(fleet: &Fleet, admin: &Caller, vms: &[Vm]) {
    all_ready(admin).await;
    for Vm { vm, process: before } in vms {
        let id = vm["id"].as_str().expect("an id");
        let path = format!("/vms/{id}");
        runs(admin, &path, &vm["message"]).await;
        assert_eq!(process(fleet, id), Some(*before));
        // A host that was away a moment ago is asked again.
        admin
            .until("its console", async |admin| {
                let log = admin.get(&format!("{path}/console")).await;
                assert!([200, 503].contains(&log.status), "{log:?}");
                log.body.to_string().contains("login")
            })
            .await;
    }
}

/// Waits until a VM runs, and nothing is said of it but what was.
async fn runs(admin: &Caller, path: &str, said: &Value) {
    let mut now = Value::Null;
    for _ in 0..600 {
        now = admin.get(path).await.body;
        if now["status"] == "running" && (now["message"].is_null() || now["message"] == *said) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not run: {now}");
}

/// Has each host open this port of its VM, and no other.
async fn open(admin: &Caller, vms: &[Vm], port: u16) {
    for Vm { vm, .. } in vms {
        let path = format!("/vms/{}", vm["id"].as_str().expect("an id"));
        let ports = json!({"exposed_ports": [{"port": port, "protocol": "tcp"}]});
        let changed = admin.patch(&path, ports).await;
        assert_eq!(changed.status, 200, "{changed:?}");
        let opened = &changed.body["exposed_ports"][0];
        assert_eq!(opened["port"], port, "{changed:?}");
        let host = opened["host"].as_str().expect("an address").to_owned();
        let public = u16::try_from(opened["public_port"].as_u64().expect("a port")).expect("a port");
        eventually("the open port", 60, || TcpStream::connect((host.as_str(), public)).ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_upgraded_one_machine_at_a_time_and_no_vm_notices() {
    let old = std::env::var("BERTH_TEST_OLD").expect("the program of an earlier version; type: script/upgrade --fleet");
    let mut fleet = Fleet::of(&old).await;
    let admin = fleet.alpha.admin().await;
    let vms = vms(&fleet, &admin).await;
    // A host that joined.
    assert_eq!(fleet.gamma.stop(), Some(0), "{}", fleet.gamma.log());
    fleet.gamma.upgrade(BERTH);
    fleet.gamma.start(&["host", "serve"]);
    are_untouched(&fleet, &admin, &vms).await;
    open(&admin, &vms, 9000).await;
    // The replica that stands by.
    assert_eq!(fleet.beta.stop(), Some(0), "{}", fleet.beta.log());
    fleet.beta.upgrade(BERTH);
    fleet.beta.start();
    are_untouched(&fleet, &admin, &vms).await;
    open(&admin, &vms, 9001).await;
    // The active one: the other has its turn.
    assert_eq!(fleet.alpha.stop(), Some(0), "{}", fleet.alpha.log());
    eventually("its turn", 120, || fleet.beta.log().contains("Berth answers at").then_some(()));
    fleet.alpha.upgrade(BERTH);
    fleet.alpha.start();
    let admin = fleet.beta.admin().await;
    are_untouched(&fleet, &admin, &vms).await;
    open(&admin, &vms, 9002).await;
}
