//! Random operations on many machines, whose service is killed now and then: afterwards the host has what the rows say.
//!
//! What is under way when the next operation comes, or the service ends, is left to chance. `BERTH_TEST_SECONDS`,
//! `BERTH_TEST_MACHINES`, `BERTH_TEST_NETWORK` and `BERTH_TEST_SEED` ask for another run than the usual one, as
//! `script/soak` does.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use berth_testkit::{Caller, Chance, Service, eventually, vm};
use reqwest::Method;
use serde_json::{Value, json};

use crate::BERTH;

/// Operations of the usual run.
const OPERATIONS: u64 = 100;
/// Machines at the same time.
const MOST: usize = 4;
/// Machines for which something is under way when the next operation begins.
const UNDER_WAY: usize = 3;
/// Data disks beside those that VMs have.
const FREE_DISKS: usize = 3;
/// Statuses in which nothing is under way.
const AT_REST: [&str; 4] = ["running", "stopped", "suspended", "failed"];

/// A setting of this run.
fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// The service, and where chance stands.
struct Walk {
    service: Service,
    caller: Caller,
    chance: Chance,
    most: usize,
    network: String,
    /// How often the service was killed.
    kills: usize,
}

/// The members of a list.
async fn list(caller: &Caller, path: &str) -> Vec<Value> {
    let answer = caller.get(&format!("{path}?limit=100")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body["data"].as_array().expect("a list").clone()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn is_at_rest(vm: &Value) -> bool {
    AT_REST.contains(&text(vm, "status"))
}

/// The addresses that a service's machines have in each mode but for their last number, and nobody else's.
fn prefixes(service: &Service) -> [[u8; 3]; 2] {
    let port: u16 = service.base.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let [high, low] = port.to_be_bytes();
    let of_user = u8::try_from(65 + port / 256 % 60).expect("a part of an address");
    [[127, of_user, low], [127, 210, high.wrapping_add(low.rotate_left(4))]]
}

impl Walk {
    async fn begin(seed: u64) -> Self {
        let most = setting("BERTH_TEST_MACHINES").and_then(|most| usize::try_from(most).ok()).unwrap_or(MOST);
        let mode = std::env::var("BERTH_TEST_NETWORK").ok();
        let mode = mode.unwrap_or_else(|| ["user", "shared", "pool"][usize::try_from(seed % 3).expect("small")].into());
        println!("BERTH_TEST_SEED={seed} BERTH_TEST_MACHINES={most} BERTH_TEST_NETWORK={mode}");
        let mut service = Service::new(BERTH, &["micro"]);
        let [_, [a, b, c]] = prefixes(&service);
        service.configure("stop_seconds = 1\n");
        match mode.as_str() {
            "shared" => service.configure(&format!(
                "[network]\nmode = \"shared\"\naddress = \"{a}.{b}.{c}.1\"\nports = \"20000-29999\"\n"
            )),
            "pool" => service
                .configure(&format!("[network]\nmode = \"pool\"\npool = [\"{a}.{b}.{c}.1-{a}.{b}.{c}.{most}\"]\n")),
            _ => {}
        }
        service.start();
        let caller = service.admin().await;
        let network = caller.post("/networks", json!({"name": "lan"})).await.id();
        Self { service, caller, chance: Chance::new(seed), most, network, kills: 0 }
    }

    fn one_of(&mut self, all: &[Value]) -> Option<String> {
        (!all.is_empty()).then(|| text(&all[self.chance.below(all.len())], "id").to_owned())
    }

    /// Asks for something that may not be legal at the moment. What a VM's owner can ask for never fails otherwise.
    async fn ask(&self, method: Method, path: &str, body: Value) -> String {
        let request = self.caller.request(method.clone(), path);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answer = self.caller.send(request).await;
        let (status, code) = (answer.status, text(&answer.body, "code"));
        let is_refused = matches!((status, code), (400, "invalid_status") | (404 | 409, _));
        // A disk that is not ready is a field that is wrong.
        let is_not_ready = status == 400 && answer.body.to_string().contains("ready");
        assert!((200..300).contains(&status) || is_refused || is_not_ready, "{method} {path}: {answer:?}");
        format!("{method} {path} {status} {code}")
    }

    /// One operation; what it was.
    async fn step(&mut self) -> String {
        let (vms, disks) = (list(&self.caller, "/vms").await, list(&self.caller, "/disks").await);
        let Some(id) = self.one_of(&vms).filter(|_| vms.len() == self.most || self.chance.below(4) > 0) else {
            return self.create(vms.len()).await;
        };
        let number = self.chance.below(18);
        let verbs = ["start", "stop", "restart", "suspend", "resume", "suspend", "resume", "start"];
        if let Some(verb) = verbs.get(number) {
            return self.ask(Method::POST, &format!("/vms/{id}/{verb}"), Value::Null).await;
        }
        match number {
            8 => {
                let size = ["tiny", "small"][self.chance.below(2)];
                self.ask(Method::POST, &format!("/vms/{id}/resize"), json!({"vm_config_id": size})).await
            }
            9 => {
                let source = ["192.0.2.0/24", "127.0.0.0/8"][self.chance.below(2)];
                let rule = json!({"direction": "in", "protocol": "tcp", "source": source, "action": "allow"});
                self.ask(Method::PUT, &format!("/vms/{id}/rules"), json!({"rules": [rule]})).await
            }
            10 | 11 => {
                let port = 8000 + self.chance.below(3);
                let body = json!({"exposed_ports": [{"port": port, "protocol": "tcp"}]});
                self.ask(Method::PATCH, &format!("/vms/{id}"), body).await
            }
            12 => self.ask(Method::DELETE, &format!("/vms/{id}"), Value::Null).await,
            _ => self.of_disks(&id, &vms, &disks).await,
        }
    }

    async fn of_disks(&mut self, vm: &str, vms: &[Value], disks: &[Value]) -> String {
        let free = disks.iter().filter(|disk| disk["vm_id"].is_null()).count();
        let Some(disk) = self.one_of(disks).filter(|_| free > 0 && (free > FREE_DISKS || self.chance.below(3) > 0))
        else {
            let body = json!({"name": "data", "type": "block", "size_gb": 10, "region_id": "local"});
            return self.ask(Method::POST, "/disks", body).await;
        };
        let body = json!({"vm_id": vm});
        match self.chance.below(5) {
            0 => {
                let root = vms.iter().find(|it| it["id"] == vm).map(|it| &it["root_disk"]).expect("a root disk");
                let size = json!({"size_gb": root["size_gb"].as_u64().expect("a size") + 1});
                self.ask(Method::POST, &format!("/root_disks/{}/resize", text(root, "id")), size).await
            }
            1 if free > FREE_DISKS => self.ask(Method::DELETE, &format!("/disks/{disk}"), Value::Null).await,
            1 | 2 => self.ask(Method::POST, &format!("/disks/{disk}/detach"), Value::Null).await,
            _ => self.ask(Method::POST, &format!("/disks/{disk}/attach"), body).await,
        }
    }

    async fn create(&mut self, number: usize) -> String {
        let mut body = vm(&format!("vm-{number}"));
        body["delete_root_disk"] = json!(true);
        body["restart_policy"] = json!(["never", "on-failure"][self.chance.below(2)]);
        if self.chance.below(2) == 0 {
            body["network_ids"] = json!([self.network]);
        }
        if self.chance.below(3) == 0 {
            body["data_disks"] = json!({"create_disks": [{"name": "data", "type": "filesystem", "size_gb": 10}]});
        }
        self.ask(Method::POST, "/vms", body).await
    }

    /// Ends the service as a power failure would, whatever it does, and starts it again.
    async fn kill(&mut self) {
        self.service.kill();
        self.kills += 1;
        self.service.start();
        self.caller = self.service.admin().await;
    }

    /// Waits until so few machines have something under way.
    async fn until_under_way(&self, most: usize) {
        let few =
            async |caller: Caller| list(&caller, "/vms").await.iter().filter(|vm| !is_at_rest(vm)).count() <= most;
        self.caller.until("an end of what is under way", few).await;
    }

    /// Waits until nothing is under way, and compares the host with the rows.
    async fn check(&self) {
        self.until_under_way(0).await;
        let at_rest = async |caller: Caller| {
            let rests = |disk: &Value| disk["status"] == "ready" && disk["change"].is_null();
            list(&caller, "/disks").await.iter().all(rests)
                && list(&caller, "/root_disks").await.iter().all(|disk| disk["change"].is_null())
        };
        self.caller.until("disks at rest", at_rest).await;
        let (vms, disks) = (list(&self.caller, "/vms").await, list(&self.caller, "/disks").await);
        let running: Vec<_> = vms.iter().filter(|vm| vm["status"] == "running").collect();
        for vm in &vms {
            assert_ne!(vm["status"], "failed", "{vm}");
            assert_eq!(self.service.machine(text(vm, "id")).is_some(), vm["status"] == "running", "{vm}");
        }
        let joined = running.iter().any(|vm| vm["networks"].as_array().is_some_and(|all| !all.is_empty()));
        // A machine, and the program that carries its network.
        self.has("machines", 2 * running.len());
        self.has("networks", usize::from(joined));
        self.has_files("machines", &vms.iter().map(|vm| text(vm, "id").to_owned()).collect());
        let of_vms = vms.iter().map(|vm| text(&vm["root_disk"], "id").to_owned());
        self.has_files("disks", &of_vms.chain(disks.iter().map(|disk| text(disk, "id").to_owned())).collect());
        assert!(self.service.files("lost").is_empty() && self.service.files("staging").is_empty());
        let expected: BTreeSet<_> = running.iter().flat_map(|vm| reached_at(vm)).collect();
        eventually("the ports of what runs", 30, || (self.listened() == expected).then_some(()));
        let quota = self.caller.get("/quota").await.body;
        assert_eq!(quota["vms"]["used"], vms.len());
        for vm in &running {
            eventually("its SSH", 300, || is_ssh(ssh_of(vm)).then_some(()));
        }
    }

    /// Whether so many processes work in a folder.
    fn has(&self, folder: &str, count: usize) {
        eventually(&format!("{count} processes in {folder}"), 30, || {
            (self.service.processes(folder).len() == count).then_some(())
        });
    }

    /// Whether a folder has files of all of these and of nothing else.
    fn has_files(&self, folder: &str, ids: &BTreeSet<String>) {
        let files = || self.service.files(folder).into_iter();
        let found =
            || -> BTreeSet<_> { files().map(|it| it.split('.').next().unwrap_or_default().to_owned()).collect() };
        // A VM that never ran since it was stopped need not have a folder.
        let fits = |found: &BTreeSet<String>| found == ids || folder == "machines" && found.is_subset(ids);
        eventually(&format!("{folder} of {ids:?} alone"), 30, || fits(&found()).then_some(()));
    }

    /// Where somebody listens at addresses of this service's machines.
    fn listened(&self) -> BTreeSet<SocketAddrV4> {
        let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
        let read = |line: &str| {
            let [_, local, _, "0A"] = line.split_whitespace().take(4).collect::<Vec<_>>()[..] else { return None };
            let (address, port) = local.split_once(':')?;
            let address = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.swap_bytes());
            Some(SocketAddrV4::new(address, u16::from_str_radix(port, 16).ok()?))
        };
        let prefixes = prefixes(&self.service);
        let own = |at: &SocketAddrV4| prefixes.iter().any(|prefix| at.ip().octets().starts_with(prefix));
        table.lines().filter_map(read).filter(own).collect()
    }
}

fn place(host: &Value, port: &Value) -> SocketAddrV4 {
    let host = host.as_str().and_then(|host| host.parse().ok()).expect("an address");
    SocketAddrV4::new(host, port.as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port"))
}

fn ssh_of(vm: &Value) -> SocketAddrV4 {
    place(&vm["ssh"]["host"], &vm["ssh"]["port"])
}

/// Where a VM that runs is reached.
fn reached_at(vm: &Value) -> Vec<SocketAddrV4> {
    let exposed = vm["exposed_ports"].as_array().expect("a list").iter();
    exposed.map(|port| place(&port["host"], &port["public_port"])).chain([ssh_of(vm)]).collect()
}

/// Whether SSH answers there, as long as no rule keeps the test out.
fn is_ssh(at: SocketAddrV4) -> bool {
    let Ok(stream) = TcpStream::connect_timeout(&SocketAddr::from(at), Duration::from_secs(5)) else { return false };
    let mut line = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(20))).is_ok()
        && BufReader::new(stream).read_line(&mut line).is_ok()
        && line.starts_with("SSH-2.0-")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_has_what_the_rows_say_after_random_operations() {
    let seed = setting("BERTH_TEST_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    let (began, seconds) = (Instant::now(), setting("BERTH_TEST_SECONDS"));
    let mut walk = Walk::begin(seed).await;
    let mut operations = 0;
    while seconds.map_or(operations < OPERATIONS, |seconds| began.elapsed() < Duration::from_secs(seconds)) {
        let done = walk.step().await;
        println!("{operations} at {} s: {done}", began.elapsed().as_secs());
        operations += 1;
        if walk.chance.below(7) == 0 {
            walk.kill().await;
        }
        walk.until_under_way(UNDER_WAY).await;
    }
    walk.check().await;
    walk.kill().await;
    walk.check().await;
    for vm in list(&walk.caller, "/vms").await {
        assert_eq!(walk.caller.delete(&format!("/vms/{}", text(&vm, "id"))).await.status, 202);
    }
    walk.until_under_way(0).await;
    for disk in list(&walk.caller, "/disks").await {
        assert_eq!(walk.caller.delete(&format!("/disks/{}", text(&disk, "id"))).await.status, 204);
    }
    walk.check().await;
    assert_eq!(walk.caller.delete(&format!("/networks/{}", walk.network)).await.status, 204);
    walk.has_files("networks", &BTreeSet::new());
    println!("{operations} operations, the service killed {} times: the host has what the rows say", walk.kills);
}
